"""Nodes: the apps they should run and their reports, of which any field may be absent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["AppStats", "Container", "Instance", "Node", "Ready", "Report"]

Ready = Literal["never", "online", "offline"]
_READY: tuple[Ready, ...] = ("never", "online", "offline")


@dataclass(frozen=True)
class Container:
    """A container as its node reports it."""

    name: str
    state: str
    """``Waiting``, ``Running`` or ``Terminated``."""
    reason: str = ""


@dataclass(frozen=True)
class Instance:
    """A pod, or a process."""

    name: str
    status: str
    cause: str = ""
    created: str = ""
    """The creation time by the node's clock; RFC 3339."""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()


@dataclass(frozen=True)
class AppStats:
    """The state of an app on a node. `Running` means that a pod exists, not that it answers."""

    name: str
    version: str = ""
    status: str = ""
    """Empty for every app of a node that is not online."""
    cause: str = ""
    """The reason why it was not applied; the only sign of failure."""
    instances: tuple[Instance, ...] = ()


@dataclass(frozen=True)
class Report:
    """The last report of a node."""

    time: str = ""
    """The arrival time by the server's clock; RFC 3339."""
    hosts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Per host: address, arch, os..."""
    stats: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Per host: ``usage``, ``capacity``, ``percent`` of cpu and memory, and of disk and gpu if they are measured."""
    apps: Mapping[str, str] = field(default_factory=dict)
    """By app: the accepted version, which says nothing about health."""
    app_stats: tuple[AppStats, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def app(self, name: str) -> AppStats | None:
        """Return the state of one app."""
        return next((stats for stats in self.app_stats if stats.name == name), None)


@dataclass(frozen=True)
class Node:
    """A node."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    ready: Ready = "never"
    desire_apps: Mapping[str, str] = field(default_factory=dict)
    """By app: the version the node should run; lists and `stats` leave it out."""
    report: Report | None = None
    accelerator: str = ""
    description: str = ""
    version: str = ""
    namespace: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def to_json(self) -> dict[str, Any]:
        """Return the body of a create or an update, which replaces the whole node."""
        defaults: dict[str, Any] = {"cluster": False, "nodeMode": "kube", "sysApps": [], "annotations": {}}
        return {
            **defaults,
            **self.extra,
            "name": self.name,
            "labels": dict(self.labels),
            "description": self.description,
            "accelerator": self.accelerator,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Node:
        """Read a node."""
        known = (
            "name", "labels", "ready", "desire", "report", "accelerator", "description", "version", "namespace",
            "createTime", "appMode",
        )  # fmt: skip
        ready = value.get("ready")
        return cls(
            name=value.get("name", ""),
            labels=dict(value.get("labels") or {}),
            ready=_READY[ready] if isinstance(ready, int) and 0 <= ready < len(_READY) else "never",
            desire_apps=_versions((value.get("desire") or {}).get("apps")),
            report=_report(value["report"]) if value.get("report") else None,
            accelerator=value.get("accelerator") or "",
            description=value.get("description") or "",
            version=value.get("version") or "",
            namespace=value.get("namespace") or "",
            extra={k: v for k, v in value.items() if k not in known},
        )


def _versions(entries: Any) -> dict[str, str]:
    return {entry.get("name", ""): entry.get("version", "") for entry in _list(entries)}


def _report(value: Mapping[str, Any]) -> Report:
    known = ("time", "node", "nodestats", "apps", "appstats")
    return Report(
        time=str(value.get("time") or ""),
        hosts=_map(value.get("node")),
        stats=_map(value.get("nodestats")),
        apps=_versions(value.get("apps")),
        app_stats=tuple(map(_app_stats, _list(value.get("appstats")))),
        extra={k: v for k, v in value.items() if k not in known},
    )


def _app_stats(value: Mapping[str, Any]) -> AppStats:
    return AppStats(
        name=value.get("name", ""),
        version=value.get("version", ""),
        status=value.get("status", ""),
        cause=value.get("cause", ""),
        instances=tuple(_instance(name, each) for name, each in _map(value.get("instances")).items()),
    )


def _instance(name: str, value: Mapping[str, Any]) -> Instance:
    return Instance(
        name=value.get("name") or name,
        status=value.get("status", ""),
        cause=value.get("cause", ""),
        created=str(value.get("createTime") or ""),
        containers=_containers(value.get("containers")),
        init_containers=_containers(value.get("initContainers")),
    )


def _containers(entries: Any) -> tuple[Container, ...]:
    return tuple(Container(c.get("name", ""), c.get("state", ""), c.get("reason", "")) for c in _list(entries))


def _list(value: Any) -> list[Mapping[str, Any]]:
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []


def _map(value: Any) -> dict[str, Mapping[str, Any]]:
    return {k: v for k, v in value.items() if isinstance(v, Mapping)} if isinstance(value, Mapping) else {}
