"""The control plane's view of a node: readiness, readable numbers, and only known fields."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any

from cloudedge.edge_bie.lab.state import HIDDEN_LABELS, ApiError, LabState
from cloudedge.edge_bie.lab.state.json_types import ANY, BOOL, INT, STR, TIME, Listed, Mapped, Struct, read, write

__all__ = ["NEVER", "OFFLINE", "ONLINE", "readiness", "show"]

NEVER, ONLINE, OFFLINE = 0, 1, 2
_GRACE_S = 20
"""Added to the interval of reports."""

_APP = Struct({"name": STR, "version": STR})
_CONTAINER = Listed(Struct({"name": STR, "usage": Mapped(STR), "state": STR, "reason": STR}))
_INSTANCE = Struct(
    {
        "name": STR, "serviceName": STR, "appName": STR, "usage": Mapped(STR), "extension": ANY, "status": STR,
        "cause": STR, "ip": STR, "nodeName": STR, "pid": INT, "ppid": INT, "createTime": TIME,
        "containers": _CONTAINER, "initContainers": _CONTAINER,
    }
)  # fmt: skip
_STATS = Listed(
    Struct(
        {"name": STR, "version": STR, "deployType": STR, "status": STR, "cause": STR, "instances": Mapped(_INSTANCE)}
    )
)
_HOST = Struct(
    {
        "hostname": STR, "address": STR, "arch": STR, "kernelVer": STR, "os": STR, "containerRuntime": STR,
        "machineID": STR, "bootID": STR, "systemUUID": STR, "osImage": STR, "variant": STR, "hostID": STR, "role": STR,
        "labels": Mapped(STR), "clientIP": STR,
    },
    frozenset({"containerRuntime", "machineID", "bootID", "systemUUID", "osImage"}),
)  # fmt: skip
_HOST_STATS = Struct(
    {
        "diskPressure": BOOL, "memoryPressure": BOOL, "pidPressure": BOOL, "NetworkUnavailable": BOOL, "ready": BOOL,
        "usage": Mapped(STR), "capacity": Mapped(STR), "percent": Mapped(STR), "netio": Mapped(STR), "extension": ANY,
    }
)  # fmt: skip
_REPORT = Struct(
    {
        "time": STR,
        "apps": Listed(_APP),
        "sysapps": Listed(_APP),
        "core": Struct({"goVersion": STR, "binVersion": STR, "gitRevision": STR}),
        "appstats": _STATS,
        "sysappstats": _STATS,
        "node": Mapped(_HOST),
        "nodestats": Mapped(_HOST_STATS),
        "nodeinsnum": Mapped(INT),
        "modeinfo": STR,
    }
)
_NODE = Struct(
    {
        "namespace": STR, "name": STR, "version": STR, "createTime": TIME, "accelerator": STR, "labels": Mapped(STR),
        "annotations": Mapped(STR), "desire": Mapped(ANY), "sysApps": Listed(STR),
        "description": STR, "cluster": BOOL, "ready": INT, "mode": STR, "nodeMode": STR,
    },
    frozenset({"cluster", "ready", "mode"}),
)  # fmt: skip


def readiness(world: LabState, node: Mapping[str, Any], report: Mapping[str, Any] | None) -> int:
    """Return whether a node never reported, is online or is offline."""
    if not report or not report.get("time"):
        return NEVER
    age = (world.clock.now() - datetime.fromisoformat(report["time"].replace("Z", "+00:00"))).total_seconds()
    return ONLINE if age * world.rate < node["frequency"] + _GRACE_S else OFFLINE


def show(world: LabState, node: Mapping[str, Any], *, desire: bool = False, report: bool = True) -> dict[str, Any]:
    """Return a node in the users' form.

    Raises:
        ApiError: the node's report has a value of the wrong type, since reports are not validated on arrival.
    """
    stored = world.store.get("report", node["name"]) or {}
    shown = {
        **node,
        "labels": {key: value for key, value in node["labels"].items() if key not in HIDDEN_LABELS},
        "ready": readiness(world, node, stored) if report else NEVER,
    }
    if desire:
        shown["desire"] = world.store.get("desire", node["name"])
    written = dict(write(shown, _NODE))
    if report:
        written["report"] = _shown(world, node["name"], stored, online=shown["ready"] == ONLINE)
        written["appMode"] = _app_mode(written["report"])
    return written


def _shown(world: LabState, name: str, stored: Mapping[str, Any], *, online: bool) -> Any:
    """Return a report in the users' form, cached, since it is read far more often than it changes."""
    kept = world.shown.get(name)
    if kept is not None and kept[0] is stored and kept[1] is online:
        return kept[2]
    try:
        found = write(_report(read(stored, _REPORT), online=online), _REPORT)
    except ApiError as error:
        raise ApiError("UnknownError", error.message) from None
    world.shown[name] = (stored, online, found)
    return found


def _report(report: dict[str, Any], *, online: bool) -> dict[str, Any]:
    for stats in report.get("nodestats", {}).values():
        _readable(stats)
    counts: dict[str, int] = {}
    for app in (*report.get("appstats", ()), *report.get("sysappstats", ())):
        if not online:
            app["status"] = ""
        for instance in app.get("instances", {}).values():
            counts[instance.get("nodeName", "")] = counts.get(instance.get("nodeName", ""), 0) + 1
            usage = instance.get("usage", {})
            for resource in ("cpu", "memory"):
                if resource in usage:
                    usage[resource] = _written(resource, _quantity(resource, usage[resource]))
    report["nodeinsnum"] = counts
    return report


def _readable(stats: dict[str, Any]) -> None:
    """Convert quantities to plain numbers, and add the share in use."""
    usage, capacity, percent = (stats.setdefault(key, {}) for key in ("usage", "capacity", "percent"))
    for resource in ("memory", "cpu"):
        numbers = []
        for place in (usage, capacity):
            if resource in place:
                numbers.append(_quantity(resource, place[resource]))
                place[resource] = _written(resource, numbers[-1])
        full = len(numbers) == 2 and numbers[1] != 0  # noqa: PLR2004 - both are known
        percent[resource] = _decimal(min(1.0, numbers[0] / numbers[1])) if full else "0"
    extension = stats.get("extension")
    if isinstance(extension, dict):
        names = (
            ("usedMemory", usage, "gpu"), ("totalMemory", capacity, "gpu"), ("percent", percent, "gpu"),
            ("diskUsed", usage, "disk"), ("diskTotal", capacity, "disk"), ("diskPercent", percent, "disk"),
        )  # fmt: skip
        for name, place, resource in names:
            if name in extension:
                place[resource] = _number(extension[name])
    if extension is not None:
        counters = ("netBytesSent", "netBytesRecv", "netPacketsRecv", "netPacketsSent")
        known = extension if isinstance(extension, dict) else {}
        stats["netio"] = {name: _number(known[name]) for name in counters if name in known}


def _app_mode(report: Mapping[str, Any]) -> str:
    hosts = report.get("node", {}).values()
    native = any(not host.get("containerRuntime") and not host.get("machineID") for host in hosts)
    return "native" if native else "kube"


_QUANTITY = re.compile(r"([+-]?[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?")
_UNITS = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000),
    **{unit: Fraction(1000**power) for power, unit in enumerate("kMGTPE", 1)},
    **{f"{unit}i": Fraction(1024**power) for power, unit in enumerate("KMGTPE", 1)},
}  # fmt: skip


@lru_cache(maxsize=1 << 14)
def _quantity(resource: str, text: str) -> int:
    """Parse a Kubernetes quantity: bytes of memory, thousandths of a CPU."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ApiError("UnknownError", f"quantities must match the regular expression: {text!r}")
    value = Fraction(match[1]) * _UNITS.get(match[2] or "", Fraction(1))
    return math.ceil(value * 1000 if resource == "cpu" else value)


def _written(resource: str, value: int) -> str:
    return _decimal(value / 1000) if resource == "cpu" else str(value)


def _number(value: Any) -> str:
    return _decimal(float(value)) if isinstance(value, int | float) and not isinstance(value, bool) else "0"


def _decimal(value: float) -> str:
    return format(Decimal(repr(value)), "f").removesuffix(".0")
