"""Apps that a node should run, parsed from the sync API and checked before anything relies on them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal

from cloudedge.edge_bie.model._names import APP_LABEL, NAME, PROBE
from cloudedge.errors import InputError

__all__ = [
    "AppRef",
    "DesiredApp",
    "DesiredService",
    "DesiredVolume",
    "Mount",
    "Port",
    "read_name",
    "read_text",
    "read_version",
    "slot_of",
]

_STATEMENT = re.compile(r"(.+)-statement-[0-9a-f]{10}")
_CPUS = re.compile(r"\d{1,6}(\.\d{1,6})?m?")
_MEMORY = re.compile(r"\d{1,15}(\.\d{1,6})?([KMGT]i|[kKMGT])?")
_COUNT = re.compile(r"\d{1,3}")
_VERSION = re.compile(r"[a-zA-Z0-9_][-._a-zA-Z0-9]{0,63}")
_HOST_FIELDS = ("hostNetwork", "hostPID", "hostIPC", "devices")


@dataclass(frozen=True)
class AppRef:
    """One version of an app, the form of desires and reports."""

    name: str
    version: str

    @classmethod
    def parse(cls, value: Any) -> AppRef:
        """Parse an entry of a desire.

        Raises:
            InputError: It is no app reference.
        """
        if not isinstance(value, dict):
            raise InputError(f"a desire names an app by {value!r}")
        return cls(read_name(value.get("name"), "app"), read_version(value.get("version", ""), "app version"))

    def to_json(self) -> dict[str, str]:
        """Return the form of desires and reports."""
        return {"name": self.name, "version": self.version}


@dataclass(frozen=True)
class Port:
    """A port of the host that leads to one of the service."""

    host: int
    container: int


@dataclass(frozen=True)
class Mount:
    """The mount point of a volume in a service."""

    volume: str
    path: str
    read_only: bool = False


@dataclass(frozen=True)
class DesiredVolume:
    """A volume of an app."""

    name: str
    kind: Literal["config", "secret", "hostPath", "emptyDir"]
    source: str = ""
    """The config's or secret's name, or the host's path."""
    version: str = ""
    """The version of the config that the app was pinned to."""


@dataclass(frozen=True)
class DesiredService:
    """One container of an app, or one process."""

    name: str
    image: str
    command: tuple[str, ...]
    args: tuple[str, ...]
    env: Mapping[str, str]
    ports: tuple[Port, ...]
    mounts: tuple[Mount, ...]
    cwd: str = ""
    cpus: str = ""
    memory: str = ""
    gpus: int = 0
    privileged: bool = False


@dataclass(frozen=True)
class DesiredApp:
    """An app in the form that the node gets."""

    ref: AppRef
    labels: Mapping[str, str]
    services: tuple[DesiredService, ...]
    volumes: tuple[DesiredVolume, ...]
    workload: str = "deployment"
    host_access: tuple[str, ...] = ()
    """The fields that ask for the host's namespaces, devices or capabilities, which this kind of node never gives."""

    @classmethod
    def parse(cls, value: Any, *, version: str = "") -> DesiredApp:
        """Parse an app.

        Raises:
            InputError: A part of it is invalid, or cannot run on this kind of node; names it.
        """
        if not isinstance(value, dict):
            raise InputError(f"an app is an object, not {type(value).__name__}")
        name = read_name(value.get("name"), "app")
        found = value.get("version") or version
        workload = str(value.get("workload") or "deployment")
        if workload not in ("deployment", "daemonset"):
            raise InputError(f"app {name}: workload {workload!r} does not run on this kind of node")
        services = tuple(_service(item, name) for item in _list(value, "services"))
        if not services:
            raise InputError(f"app {name} has no services")
        # The one allowed init service tests the server on stock nodes; this kind of node tests it by itself.
        if any(not isinstance(item, dict) or item.get("name") != PROBE for item in _list(value, "initServices")):
            raise InputError(f"app {name} has init services, which this kind of node does not run")
        volumes = tuple(_volume(item, name) for item in _list(value, "volumes"))
        known = {volume.name for volume in volumes}
        for service in services:
            for mount in service.mounts:
                if mount.volume not in known:
                    raise InputError(f"app {name}: service {service.name} mounts {mount.volume!r}, which is no volume")
        return cls(
            AppRef(name, found and read_version(found, "app version")),
            {str(key): str(item) for key, item in (value.get("labels") or {}).items()},
            services,
            volumes,
            workload,
            tuple(dict.fromkeys(_host_access(value, _list(value, "services")))),
        )

    @property
    def host_ports(self) -> tuple[int, ...]:
        """Every host port of the app."""
        return tuple(port.host for service in self.services for port in service.ports if port.host)

    @property
    def configs(self) -> tuple[DesiredVolume, ...]:
        """The configs it mounts."""
        return tuple(volume for volume in self.volumes if volume.kind == "config")

    @property
    def secrets(self) -> tuple[DesiredVolume, ...]:
        """The secrets it mounts, and those that open registries."""
        return tuple(volume for volume in self.volumes if volume.kind == "secret")


def slot_of(app: DesiredApp) -> str:
    """Return the name shared by all revisions of an app: its predecessor runs under the same name."""
    if app.labels.get(APP_LABEL):
        return app.labels[APP_LABEL]
    for volume in app.configs:
        named = _STATEMENT.fullmatch(volume.source)
        if named:
            return named[1]
    return app.ref.name


def _service(value: Any, app: str) -> DesiredService:
    try:
        limits = (value.get("resources") or {}).get("limits") or {}
        return DesiredService(
            name=read_name(value.get("name"), "service"),
            image=str(value.get("image") or ""),
            command=tuple(str(word) for word in value.get("command") or ()),
            args=tuple(str(word) for word in value.get("args") or ()),
            env={str(item["name"]): str(item.get("value") or "") for item in value.get("env") or ()},
            ports=tuple(_port(item) for item in value.get("ports") or ()),
            mounts=tuple(_mount(item) for item in value.get("volumeMounts") or ()),
            cwd=str(value.get("workingDir") or ""),
            cpus=_limit(limits, "cpu", _CPUS),
            memory=_limit(limits, "memory", _MEMORY),
            gpus=int(_limit(limits, "nvidia.com/gpu", _COUNT) or 0),
            privileged=any(bool((value.get(key) or {}).get("privileged")) for key in ("security", "securityContext")),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"app {app}: one of its services cannot be read: {error!r}") from error


def _host_access(app: Mapping[str, Any], services: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """List the fields of an app and its services that reach out of a container, `privileged` aside."""
    for each in (app, *services):
        yield from (field for field in _HOST_FIELDS if each.get(field))
        for field in ("security", "securityContext"):
            given = each.get(field) or {}
            if not isinstance(given, dict):
                raise InputError(f"{field} is not an object")
            yield from (f"{field}.{name}" for name, value in given.items() if value and name != "privileged")


def _limit(limits: Mapping[str, Any], what: str, pattern: re.Pattern[str]) -> str:
    value = str(limits.get(what) or "")
    return read_text(value, f"limit {what}", pattern) if value else ""


def _port(item: Mapping[str, Any]) -> Port:
    host, container = int(item.get("hostPort") or 0), int(item.get("containerPort") or 0)
    if str(item.get("protocol") or "TCP").upper() != "TCP":
        raise InputError(f"port {container}: only TCP can be handed over from one version to the next")
    if not 0 <= host < 1 << 16 or not 0 < container < 1 << 16:
        raise InputError(f"port {host} → {container} is not valid")
    return Port(host, container)


def _mount(item: Mapping[str, Any]) -> Mount:
    path = str(item.get("mountPath") or "")
    if ".." in PurePosixPath(path).parts or not path.strip("/") or "\0" in path:
        raise InputError(f"{path!r} is not a path to mount at")
    if item.get("subPath"):
        raise InputError(f"{path}: this kind of node has no subPath")
    return Mount(str(item["name"]), "/" + path.strip("/"), bool(item.get("readOnly")))


def _volume(value: Any, app: str) -> DesiredVolume:
    try:
        name = str(value["name"])
        for kind in ("config", "secret"):
            if value.get(kind):
                source = read_name(value[kind].get("name"), kind)
                return DesiredVolume(name, kind, source, str(value[kind].get("version") or ""))
        if value.get("hostPath"):
            return DesiredVolume(name, "hostPath", str(value["hostPath"]["path"]))
        if "emptyDir" in value:
            return DesiredVolume(name, "emptyDir")
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(f"app {app}: one of its volumes cannot be read: {error!r}") from error
    raise InputError(f"app {app}: volume {name!r} is of a kind this node does not know")


def _list(value: Mapping[str, Any], key: str) -> list[Any]:
    items = value.get(key) or []
    if not isinstance(items, list):
        raise InputError(f"{key} is not a list")
    return items


def read_name(value: Any, what: str) -> str:
    """Return a checked name.

    Raises:
        InputError: It is no valid name.
    """
    return read_text(value, f"{what} name", NAME)


def read_version(value: Any, what: str) -> str:
    """Return a checked version; some become names of folders.

    Raises:
        InputError: It is no valid version.
    """
    return read_text(value, what, _VERSION)


def read_text(value: Any, what: str, pattern: re.Pattern[str]) -> str:
    """Return a text that matches a pattern.

    Raises:
        InputError: It is no text, or does not match.
    """
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise InputError(f"{what} {value!r} is not valid")
    return value
