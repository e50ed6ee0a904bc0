"""What a node is told: apps, configs and secrets as the sync API sends them, checked before anything relies on them.

BIE runs every answer through Go's text/template: ``{{.BAETYL_NODE_NAME}}`` becomes the node's name, and anything else
between such braces stops a stock node. Here it stops the app it is in, and no other.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal

from cloudedge.edge_bie._names import APP_LABEL, PROBE
from cloudedge.errors import InputError

__all__ = ["App", "AppRef", "Config", "Mount", "Object", "Port", "Service", "Volume", "filled_in", "slot_of"]

_OBJECT = "_object_"
_STATEMENT = re.compile(r"(.+)-statement-[0-9a-f]{10}")
_NAME = re.compile(r"[a-z0-9][-a-z0-9.]{0,61}[a-z0-9]")
_KEY = re.compile(r"(?!\.{1,2}$)[-._a-zA-Z0-9]{1,253}")
_FIELD = re.compile(r"\{\{\s*\.([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")
_CPUS = re.compile(r"\d{1,6}(\.\d{1,6})?m?")
_MEMORY = re.compile(r"\d{1,15}(\.\d{1,6})?([KMGT]i|[kKMGT])?")
_COUNT = re.compile(r"\d{1,3}")
_VERSION = re.compile(r"[a-zA-Z0-9_][-._a-zA-Z0-9]{0,63}")


@dataclass(frozen=True)
class AppRef:
    """One version of an app, as desires and reports name it."""

    name: str
    version: str

    @classmethod
    def parse(cls, value: Any) -> AppRef:
        """Read one out of a desire.

        Raises:
            InputError: it is none.
        """
        if not isinstance(value, dict):
            raise InputError(f"a desire names an app by {value!r}")
        return cls(_name(value.get("name"), "app"), _text(value.get("version", ""), "app version", _VERSION))

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
    """Where a service wants a volume."""

    volume: str
    path: str
    read_only: bool = False


@dataclass(frozen=True)
class Volume:
    """What is mounted."""

    name: str
    kind: Literal["config", "secret", "hostPath", "emptyDir"]
    source: str = ""
    """The config's or secret's name, or the host's path."""
    version: str = ""
    """The version of the config that the app was pinned to."""


@dataclass(frozen=True)
class Service:
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
class App:
    """An app as the node gets it."""

    ref: AppRef
    labels: Mapping[str, str]
    services: tuple[Service, ...]
    volumes: tuple[Volume, ...]
    workload: str = "deployment"

    @classmethod
    def parse(cls, value: Any, *, version: str = "") -> App:
        """Read an app.

        Raises:
            InputError: something in it cannot be, or cannot be run here; names it.
        """
        if not isinstance(value, dict):
            raise InputError(f"an app is an object, not {type(value).__name__}")
        name = _name(value.get("name"), "app")
        workload = str(value.get("workload") or "deployment")
        if workload not in ("deployment", "daemonset"):
            raise InputError(f"app {name}: workload {workload!r} does not run on this kind of node")
        services = tuple(_service(item, name) for item in _list(value, "services"))
        if not services:
            raise InputError(f"app {name} has no services")
        # Ours tries the server before it starts, on nodes that do not; this kind of node does that by itself.
        if any(not isinstance(item, dict) or item.get("name") != PROBE for item in _list(value, "initServices")):
            raise InputError(f"app {name} has init services, which this kind of node does not run")
        volumes = tuple(_volume(item, name) for item in _list(value, "volumes"))
        known = {volume.name for volume in volumes}
        for service in services:
            for mount in service.mounts:
                if mount.volume not in known:
                    raise InputError(f"app {name}: service {service.name} mounts {mount.volume!r}, which is no volume")
        return cls(
            AppRef(name, str(value.get("version") or version)),
            {str(key): str(item) for key, item in (value.get("labels") or {}).items()},
            services,
            volumes,
            workload,
        )

    @property
    def host_ports(self) -> tuple[int, ...]:
        """Every port of the host it wants."""
        return tuple(port.host for service in self.services for port in service.ports if port.host)

    @property
    def configs(self) -> tuple[Volume, ...]:
        """The configs it mounts."""
        return tuple(volume for volume in self.volumes if volume.kind == "config")

    @property
    def secrets(self) -> tuple[Volume, ...]:
        """The secrets it mounts, and those that open registries."""
        return tuple(volume for volume in self.volumes if volume.kind == "secret")


@dataclass(frozen=True)
class Object:
    """A file that a config refers to."""

    key: str
    url: str
    md5: str = ""
    sha256: str = ""
    unpack: str = ""
    token: str = ""


@dataclass(frozen=True)
class Config:
    """A config or secret: texts that become files, and files to download."""

    name: str
    version: str
    texts: Mapping[str, bytes]
    objects: tuple[Object, ...] = ()

    @classmethod
    def parse(cls, value: Any) -> Config:
        """Read a config in the form the edge gets.

        Raises:
            InputError: something in it cannot be.
        """
        name, version, data = _parts(value, "config")
        texts, objects = {}, []
        for key, item in data.items():
            if key.startswith(_OBJECT):
                objects.append(_object(name, key.removeprefix(_OBJECT), item))
            else:
                texts[_text(key, f"key of config {name}", _KEY)] = item.encode()
        return cls(name, version, texts, tuple(objects))

    @classmethod
    def parse_secret(cls, value: Any) -> Config:
        """Read a secret: its values travel as base64.

        Raises:
            InputError: something in it cannot be.
        """
        name, version, data = _parts(value, "secret")
        try:
            texts = {
                _text(key, f"key of secret {name}", _KEY): base64.b64decode(item, validate=True)
                for key, item in data.items()
            }
        except (binascii.Error, ValueError):
            raise InputError(f"secret {name} holds a value that is not base64") from None
        return cls(name, version, texts)


def slot_of(app: App) -> str:
    """Name the line of revisions an app belongs to: its predecessor is the one that runs under the same name."""
    if app.labels.get(APP_LABEL):
        return app.labels[APP_LABEL]
    for volume in app.configs:
        named = _STATEMENT.fullmatch(volume.source)
        if named:
            return named[1]
    return app.ref.name


def filled_in(value: Any, fields: Mapping[str, str]) -> Any:
    """Put the node's own values where an answer names them, as stock nodes do.

    Raises:
        InputError: it names one that is not known, or holds braces that mean nothing.
    """
    if isinstance(value, str):
        if "{{" not in value:
            return value
        try:
            text = _FIELD.sub(lambda found: fields[found[1]], value)
        except KeyError as error:
            raise InputError(f"the template names {error.args[0]!r}, which this node does not know") from None
        if "{{" in text:
            raise InputError("a value holds '{{', which BIE takes for a template")
        return text
    if isinstance(value, dict):
        return {key: filled_in(item, fields) for key, item in value.items()}
    if isinstance(value, list):
        return [filled_in(item, fields) for item in value]
    return value


def _object(config: str, key: str, item: str) -> Object:
    try:
        value = json.loads(item)
        notes = value.get("metadata") or {}
        found = Object(
            _text(key, f"key of config {config}", _KEY),
            str(value.get("url") or notes.get("url") or ""),
            str(value.get("md5") or "").lower(),
            str(value.get("sha256") or notes.get("sha256") or "").lower().removeprefix("sha256:"),
            str(value.get("unpack") or ""),
            str(value.get("token") or ""),
        )
    except (ValueError, AttributeError, RecursionError):
        raise InputError(f"config {config}: the reference {key!r} cannot be read") from None
    if not found.url.startswith(("http://", "https://")):
        raise InputError(f"config {config}: {key!r} has no http URL to download it from")
    return found


def _parts(value: Any, what: str) -> tuple[str, str, dict[str, str]]:
    if not isinstance(value, dict):
        raise InputError(f"a {what} is an object, not {type(value).__name__}")
    name, data = _name(value.get("name"), what), value.get("data") or {}
    if not isinstance(data, dict) or not all(isinstance(item, str) for item in data.values()):
        raise InputError(f"{what} {name}: its data are not texts by key")
    return name, _text(str(value.get("version") or ""), f"version of {what} {name}", _VERSION), data


def _service(value: Any, app: str) -> Service:
    try:
        limits = (value.get("resources") or {}).get("limits") or {}
        return Service(
            name=_name(value.get("name"), "service"),
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
            privileged=bool((value.get("security") or {}).get("privileged")),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"app {app}: one of its services cannot be read: {error!r}") from error


def _limit(limits: Mapping[str, Any], what: str, pattern: re.Pattern[str]) -> str:
    value = str(limits.get(what) or "")
    return _text(value, f"limit {what}", pattern) if value else ""


def _port(item: Mapping[str, Any]) -> Port:
    host, container = int(item.get("hostPort") or 0), int(item.get("containerPort") or 0)
    if str(item.get("protocol") or "TCP").upper() != "TCP":
        raise InputError(f"port {container}: only TCP can be handed over from one version to the next")
    if not 0 <= host < 1 << 16 or not 0 < container < 1 << 16:
        raise InputError(f"port {host} → {container} is none")
    return Port(host, container)


def _mount(item: Mapping[str, Any]) -> Mount:
    path = str(item.get("mountPath") or "")
    if ".." in PurePosixPath(path).parts or not path.strip("/") or "\0" in path:
        raise InputError(f"{path!r} is no path to mount at")
    if item.get("subPath"):
        raise InputError(f"{path}: subPath is not offered by this kind of node")
    return Mount(str(item["name"]), "/" + path.strip("/"), bool(item.get("readOnly")))


def _volume(value: Any, app: str) -> Volume:
    try:
        name = str(value["name"])
        for kind in ("config", "secret"):
            if value.get(kind):
                source = _name(value[kind].get("name"), kind)
                return Volume(name, kind, source, str(value[kind].get("version") or ""))
        if value.get("hostPath"):
            return Volume(name, "hostPath", str(value["hostPath"]["path"]))
        if "emptyDir" in value:
            return Volume(name, "emptyDir")
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(f"app {app}: one of its volumes cannot be read: {error!r}") from error
    raise InputError(f"app {app}: volume {name!r} is of a kind this node does not know")


def _list(value: Mapping[str, Any], key: str) -> list[Any]:
    items = value.get(key) or []
    if not isinstance(items, list):
        raise InputError(f"{key} is not a list")
    return items


def _name(value: Any, what: str) -> str:
    return _text(value, f"{what} name", _NAME)


def _text(value: Any, what: str, pattern: re.Pattern[str]) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise InputError(f"{what} {value!r} is none")
    return value
