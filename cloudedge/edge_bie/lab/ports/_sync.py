"""The sync port: receives nodes' reports and answers with their desired apps and the objects for them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timezone
from typing import Any

import orjson

from cloudedge.edge_bie.lab.ports._requests import Request
from cloudedge.edge_bie.lab.resources import apps, configs, desires, nodes, secrets
from cloudedge.edge_bie.lab.state import ApiError, LabState, invalid, not_found
from cloudedge.edge_bie.lab.state.json_types import STR, Listed, Struct, read, write

__all__ = ["answer_sync", "identity"]

_WANTED = Struct({"infos": Listed(Struct({"kind": STR, "name": STR, "version": STR}))})
_KINDS = {
    "application": "app", "app": "app", "configuration": "config", "config": "config", "secret": "secret",
}  # fmt: skip
_CORE, _INIT = "baetyl-core", "baetyl-init"


def identity(request: Request) -> tuple[str, str]:
    """Return the namespace and name that a node sends.

    Raises:
        ApiError: it sends none.
    """
    namespace, _, name = request.headers.get("common-name", "").partition(".")
    if not namespace or not name:
        raise ApiError("ErrRequestAccessDenied", "访问已被拒绝。\nThe request access is denied.")
    return namespace, name


def answer_sync(world: LabState, request: Request) -> Any:
    """Carry out a node's request."""
    namespace, name = identity(request)
    if request.method != "POST" or request.path not in {"/v1/sync/report", "/v1/sync/desire"}:
        raise ApiError("ErrRequestMethodNotFound", "访问了不存在的api接口。\nThe request method is not found.")
    try:
        body = orjson.loads(request.body)
    except orjson.JSONDecodeError as error:
        raise ApiError("UnknownError", str(error)) from None
    if request.path.endswith("report"):
        if namespace != world.namespace:
            raise not_found("node", name)
        if not isinstance(body, dict):
            raise ApiError("UnknownError", "json: cannot unmarshal into Go value of type v1.Report")
        return _report(world, name, request, body)
    return {"values": [_value(world, namespace, info) for info in read(body, _WANTED).get("infos", ())] or None}


def _report(world: LabState, name: str, request: Request, report: dict[str, Any]) -> Any:
    node = world.need("node", name)
    for host in report["node"].values() if isinstance(report.get("node"), dict) else ():
        if isinstance(host, dict):
            host["clientIP"] = request.peer
    old = world.store.get("report", name) or {}
    source = request.headers.get("source", "")
    if source == _CORE:
        _keep_core(report, old)
    if source == _INIT and old:
        report = {**old, **{key: report[key] for key in ("sysapps", "sysappstats") if report.get(key) is not None}}
    else:
        # The node's own clock is ignored.
        report["time"] = world.clock.now().astimezone(timezone.utc).isoformat().replace("+00:00", "Z")
    if not report.get("nodeprops"):
        report.pop("nodeprops", None)
    world.store.put("report", name, report, lazy=True)
    world.hear(name, report["time"])
    desire = world.store.get("desire", name) or {}
    if not desire.get("sysapps"):
        raise nodes.not_ready(name)
    return None if node["mode"] == "local" else desires.delta(desire, report)


def _keep_core(report: dict[str, Any], old: Mapping[str, Any]) -> None:
    """Keep the known state of the core app if the core omits itself; the init app looks after it."""
    for key in ("sysapps", "sysappstats"):
        entries = report.get(key) or []
        if not any(_CORE in entry.get("name", "") for entry in entries):
            entries = [*entries, *[entry for entry in old.get(key) or () if _CORE in entry.get("name", "")][:1]]
        report[key] = entries or None


def _value(world: LabState, namespace: str, info: Mapping[str, str]) -> dict[str, Any]:
    """Return one object; the requested version is ignored."""
    kind = _KINDS.get(info.get("kind", ""))
    if kind is None:
        raise ApiError("UnknownError", "unsupported request type")
    if namespace != world.namespace:
        raise not_found(kind, info.get("name", ""))
    found = world.need(kind, info.get("name", ""))
    if kind == "app":
        value = apps.wire(found)
    elif kind == "config":
        _check_sources(found)
        value = write(found, configs.INTERNAL)
    else:
        value = secrets.wire(found)
    return {**{key: text for key, text in info.items() if text}, "value": value}


def _check_sources(config: Mapping[str, Any]) -> None:
    """Refuse a reference into an object store: signing its links needs a plugin that the lab lacks."""
    for key, text in config["data"].items():
        if key.startswith("_object_") and "url" not in orjson.loads(text):
            source = orjson.loads(text)["metadata"].get("source", "")
            raise invalid(f"failed to validate object source ({source})")
