"""The desired apps of each node: lists of names and versions, and the patch from its report to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloudedge.edge_bie.lab.state import LabState

__all__ = ["delta", "forget", "refresh", "rematch"]

_COMPARED = ("apps", "sysapps", "nodeprops")


def rematch(world: LabState, node: str, labels: Mapping[str, str]) -> None:
    """Give a node exactly the apps whose selectors match its labels."""
    lists: dict[str, list[dict[str, str]]] = {"apps": [], "sysapps": []}
    for app in world.apps_for(labels):
        lists["sysapps" if app["system"] else "apps"].append({"name": app["name"], "version": app["version"]})
    world.store.put("desire", node, {**(world.store.get("desire", node) or {}), **lists})


def refresh(world: LabState, app: Mapping[str, Any]) -> None:
    """Give every node that an app's selector matches the app's version."""
    entry = {"name": app["name"], "version": app["version"]}
    key = _list_of(app)
    for node in world.nodes_for(app["selector"]):
        desire = world.store.get("desire", node) or {}
        apps = desire.get(key, [])
        if entry in apps:
            continue
        if any(other["name"] == app["name"] for other in apps):
            apps = [entry if other["name"] == app["name"] else other for other in apps]
        else:
            apps = [*apps, entry]
        world.store.put("desire", node, {**desire, key: apps})


def forget(world: LabState, app: Mapping[str, Any]) -> None:
    """Remove an app from every node that its selector matches."""
    key = _list_of(app)
    for node in world.nodes_for(app["selector"]):
        desire = world.store.get("desire", node) or {}
        apps = [other for other in desire.get(key, []) if other["name"] != app["name"]]
        world.store.put("desire", node, {**desire, key: apps})


def _list_of(app: Mapping[str, Any]) -> str:
    return "sysapps" if app["system"] else "apps"


def delta(desire: Mapping[str, Any], report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merge patch (RFC 7386) from a node's report to its desired state.

    Properties are always sent whole if any are desired.
    """
    reported = {key: report[key] for key in _COMPARED if key in report}
    patch = _patch(reported, desire)
    if desire.get("nodeprops") is not None:
        patch["nodeprops"] = desire["nodeprops"]
    return patch


def _patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    patch: dict[str, Any] = {key: None for key in old if key not in new}
    for key, value in new.items():
        if key not in old:
            patch[key] = value
        elif isinstance(value, dict) and isinstance(old[key], dict):
            if inner := _patch(old[key], value):
                patch[key] = inner
        elif old[key] != value:
            patch[key] = value
    return patch
