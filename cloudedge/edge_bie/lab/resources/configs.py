"""Configs: the users' form, the internal form of lists and nodes, and the apps that a change updates."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from cloudedge.edge_bie.lab.resources import apps
from cloudedge.edge_bie.lab.state import SYSTEM, LabState, check_name, in_use, invalid, taken, too_large
from cloudedge.edge_bie.lab.state.json_types import BOOL, STR, TIME, Listed, Mapped, Shape, Struct, read, write

__all__ = ["INTERNAL", "create", "delete", "replace", "view"]

PREFIX = "_object_"
_LIMIT = 4 << 20
_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_ABOUT: dict[str, Shape] = {
    "name": STR, "namespace": STR, "labels": Mapped(STR), "createTime": TIME, "updateTime": TIME, "description": STR,
    "version": STR, "system": BOOL,
}  # fmt: skip
_VIEW = Struct({**_ABOUT, "data": Listed(Struct({"key": STR, "value": Mapped(STR)}))})
INTERNAL = Struct({**_ABOUT, "data": Mapped(STR)})
_NEEDED = {
    "function": ("function", "version", "runtime", "handler", "bucket", "object"),
    "object": ("source",),
}


def create(world: LabState, body: Any) -> dict[str, Any]:
    """Create a config."""
    config = _parse(world, body, "")
    if world.store.get("config", config["name"]):
        raise taken()
    config["createTime"] = config["updateTime"] = world.now()
    return view(_keep(world, config))


def replace(world: LabState, name: str, body: Any) -> dict[str, Any]:
    """Replace a config, and give every app that mounts it a new version if its pinned one is smaller as text."""
    config = _parse(world, body, name)
    old = world.need("config", name)
    if SYSTEM in old["labels"] and old["labels"] != config["labels"]:
        raise invalid("labels can't be modified of sys apps")
    if all(old[key] == config[key] for key in ("labels", "unlabelled", "data", "description")):
        return view(old)
    config.update(createTime=old["createTime"], updateTime=world.now(), system=old["system"])
    kept = _keep(world, config)
    for app in world.users("config", name):
        apps.follow(world, app, "config", name, kept["version"])
    return view(kept)


def delete(world: LabState, name: str) -> None:
    """Delete a config that no app mounts; a missing one is no error."""
    if world.store.get("config", name) is None:
        return
    if world.users("config", name):
        raise in_use("config", name)
    world.store.delete("config", name)


def view(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config in the users' form."""
    items = []
    for key, value in config["data"].items():
        item = {"type": "kv", "value": value}
        if key.startswith(PREFIX):
            item = {k: v for k, v in orjson.loads(value)["metadata"].items() if k != "userID"}
        items.append({"key": key.removeprefix(PREFIX), "value": item})
    return dict(write({**config, "data": items}, _VIEW))


def _keep(world: LabState, config: dict[str, Any]) -> dict[str, Any]:
    size = len(orjson.dumps(config["data"]))
    if size >= _LIMIT:
        raise too_large(config["name"], size, _LIMIT)
    config["version"] = world.version()
    world.store.put("config", config["name"], config)
    return config


def _parse(world: LabState, body: Any, name: str) -> dict[str, Any]:
    config: dict[str, Any] = read({"name": name, **body}, _VIEW)
    check_name(config.get("name", ""))
    data: dict[str, str] = {}
    for item in config.get("data", ()):
        key, value = item.get("key", ""), item.get("value", {})
        if not _KEY.fullmatch(key):
            raise invalid("Key: 'Key' Error:Field validation for 'Key' failed on the 'config_key' tag")
        kind = value.get("type")
        _check_item(key, kind, value)
        if kind == "kv":
            data[key] = value.get("value", "")
        elif kind in _NEEDED:
            data[PREFIX + key] = _reference(value)
        # Any other type is dropped silently.
    return {
        "name": name or config["name"],
        "namespace": world.namespace,
        "labels": config.get("labels", {}),
        "unlabelled": body.get("labels") is None,  # not the same as empty labels
        "description": config.get("description", ""),
        "data": data,
        "system": False,
    }


def _check_item(key: str, kind: str | None, value: Mapping[str, str]) -> None:
    needed = _NEEDED.get(kind or "", ())
    if value.get("source") == "http" and kind == "object":
        needed = (*needed, "url")
    if any(name not in value for name in needed):
        raise invalid(f"failed to validate {kind} data of config")
    if kind == "kv" and key.startswith(PREFIX):
        raise invalid(f"key of kv data can't start with {PREFIX}")


def _reference(value: Mapping[str, str]) -> str:
    found: dict[str, Any] = {key: value[key] for key in ("md5", "url", "unpack") if value.get(key)}
    found["metadata"] = {**value, "userID": ""}
    return orjson.dumps(found).decode()
