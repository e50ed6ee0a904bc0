"""Apps: the services, volumes and selector that BIE runs on every matching node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["MIRRORED", "App", "Mount", "Port", "Service", "Volume"]

MIRRORED = frozenset({"type", "replica", "hostNetwork", "jobConfig"})
"""Fields of a service from older versions of BIE, copied from the app on every read."""


@dataclass(frozen=True)
class Port:
    """A port of a container, and the host's port that leads to it."""

    container: int
    host: int | None = None
    protocol: str = "TCP"
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def to_json(self) -> dict[str, Any]:
        """Return the API's form."""
        host = {} if self.host is None else {"hostPort": self.host}
        return {**self.extra, **host, "containerPort": self.container, "protocol": self.protocol}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Port:
        """Read the API's form."""
        extra = {k: v for k, v in value.items() if k not in ("containerPort", "hostPort", "protocol")}
        return cls(value.get("containerPort") or 0, value.get("hostPort"), value.get("protocol") or "TCP", extra)


@dataclass(frozen=True)
class Mount:
    """The path at which a container sees a volume."""

    name: str
    path: str
    read_only: bool = False
    auto_clean: bool = False
    """Old downloads are removed; rolling back then downloads again."""
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def to_json(self) -> dict[str, Any]:
        """Return the API's form."""
        flags = {"readOnly": self.read_only, "autoClean": self.auto_clean}
        return {**self.extra, "name": self.name, "mountPath": self.path, **{k: v for k, v in flags.items() if v}}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Mount:
        """Read the API's form."""
        known = ("name", "mountPath", "readOnly", "autoClean", "immutable")  # the server sets the last one
        extra = {k: v for k, v in value.items() if k not in known}
        return cls(
            value.get("name", ""),
            value.get("mountPath", ""),
            bool(value.get("readOnly")),
            bool(value.get("autoClean")),
            extra,
        )


@dataclass(frozen=True)
class Volume:
    """A volume: a config, a secret, or a kind in `extra` (``hostPath``, ``emptyDir``, ``certificate``)."""

    name: str
    config: str = ""
    secret: str = ""
    version: str = ""
    """The config's or secret's version, pinned by the server whenever the app is written; never sent."""
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def to_json(self) -> dict[str, Any]:
        """Return the API's form."""
        value: dict[str, Any] = {**self.extra, "name": self.name}
        if self.config:
            value["config"] = {"name": self.config}
        if self.secret:
            value["secret"] = {"name": self.secret}
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Volume:
        """Read the API's form."""
        config, secret = value.get("config") or {}, value.get("secret") or {}
        extra = {k: v for k, v in value.items() if k not in ("name", "config", "secret")}
        version = (config or secret).get("version") or ""
        return cls(value.get("name", ""), config.get("name", ""), secret.get("name", ""), version, extra)


@dataclass(frozen=True)
class Service:
    """One container of an app."""

    name: str
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    ports: tuple[Port, ...] = ()
    mounts: tuple[Mount, ...] = ()
    limits: Mapping[str, str] = field(default_factory=dict)
    """``cpu`` and ``memory``; requests never reach Kubernetes."""
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Probes, security, pull policy, and all other fields."""

    def to_json(self) -> dict[str, Any]:
        """Return the API's form."""
        value: dict[str, Any] = {**self.extra, "name": self.name, "image": self.image}
        lists: dict[str, list[Any]] = {
            "command": list(self.command),
            "args": list(self.args),
            "env": [{"name": name, "value": text} for name, text in self.env.items()],
            "ports": [port.to_json() for port in self.ports],
            "volumeMounts": [mount.to_json() for mount in self.mounts],
        }
        value |= {name: entries for name, entries in lists.items() if entries}
        if self.limits:
            value["resources"] = {**(value.get("resources") or {}), "limits": dict(self.limits)}
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Service:
        """Read the API's form."""
        known = ("name", "image", "command", "args", "env", "ports", "volumeMounts")
        extra = {k: v for k, v in value.items() if k not in known}
        resources = dict(extra.pop("resources", None) or {})
        limits = resources.pop("limits", None) or {}
        if resources:
            extra["resources"] = resources
        return cls(
            name=value.get("name", ""),
            image=value.get("image", ""),
            command=tuple(value.get("command") or ()),
            args=tuple(value.get("args") or ()),
            env={e["name"]: e.get("value", "") for e in value.get("env") or ()},
            ports=tuple(map(Port.from_json, value.get("ports") or ())),
            mounts=tuple(map(Mount.from_json, value.get("volumeMounts") or ())),
            limits=limits,
            extra=extra,
        )


@dataclass(frozen=True)
class App:
    """An app. A list has summaries, without services, volumes and registries: see `is_summary`."""

    name: str
    selector: str = ""
    """Nodes with matching labels run it; empty: none."""
    services: tuple[Service, ...] = ()
    volumes: tuple[Volume, ...] = ()
    registries: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    replica: int = 1
    """Always sent: without it, nodes run nothing and apply that every ten seconds."""
    description: str = ""
    workload: str = "deployment"
    type: str = "container"
    mode: str = "kube"
    version: str = ""
    namespace: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)
    is_summary: bool = False

    @property
    def configs(self) -> dict[str, str]:
        """The configs it mounts, each with the version to which the app is pinned."""
        return {volume.config: volume.version for volume in self.volumes if volume.config}

    @property
    def secrets(self) -> frozenset[str]:
        """The secrets it mounts."""
        return frozenset(volume.secret for volume in self.volumes if volume.secret)

    @property
    def host_ports(self) -> tuple[int, ...]:
        """The ports it occupies on its host."""
        return tuple(port.host for service in self.services for port in service.ports if port.host)

    def to_json(self) -> dict[str, Any]:
        """Return the body of a create or an update, without the fields that the server maintains."""
        value: dict[str, Any] = {
            **self.extra,
            "name": self.name,
            "mode": self.mode,
            "type": self.type,
            "workload": self.workload,
            "replica": self.replica,
            "description": self.description,
            "labels": dict(self.labels),
            "selector": self.selector,
            "services": [service.to_json() for service in self.services],
            "volumes": [volume.to_json() for volume in self.volumes],
        }
        if self.registries:
            value["registries"] = [{"name": name} for name in self.registries]
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> App:
        """Read an app, or its summary in a list."""
        known = (
            "name", "mode", "type", "workload", "replica", "description", "labels", "selector", "services", "volumes",
            "registries", "version", "namespace", "createTime", "system",
        )  # fmt: skip
        return cls(
            name=value.get("name", ""),
            selector=value.get("selector") or "",
            services=tuple(_service(value, each) for each in value.get("services") or ()),
            volumes=tuple(map(Volume.from_json, value.get("volumes") or ())),
            registries=tuple(entry["name"] for entry in value.get("registries") or ()),
            labels=dict(value.get("labels") or {}),
            replica=value.get("replica") or 0,
            description=value.get("description") or "",
            workload=value.get("workload") or "deployment",
            type=value.get("type") or "container",
            mode=value.get("mode") or "kube",
            version=value.get("version") or "",
            namespace=value.get("namespace") or "",
            extra={k: v for k, v in value.items() if k not in known},
            is_summary="services" not in value and "volumes" not in value,
        )


def _service(app: Mapping[str, Any], value: Mapping[str, Any]) -> Service:
    """Read a service without the fields that the server copies into it from the app: sent back, the copy would win."""
    is_copy = (app.get("mode") or "kube") == "kube"
    return Service.from_json({k: v for k, v in value.items() if not (is_copy and k in MIRRORED)})
