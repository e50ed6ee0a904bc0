"""The operations on objects of every kind: list, read, put, delete, and list the apps that use one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Protocol, TypeVar

from cloudedge.edge_bie.client._apps import App
from cloudedge.edge_bie.client._configs import Config, Registry, Secret
from cloudedge.edge_bie.client._http import Transport
from cloudedge.edge_bie.client._normalise import differences, kept_by_server, same
from cloudedge.edge_bie.client._writes import Writer, Written
from cloudedge.edge_bie.model import check_name
from cloudedge.errors import ConfigError, Conflict, InputError, NotFound, Unavailable

__all__ = ["PAGE", "Resources", "read_as", "read_whole_app", "require_found"]

PAGE: Final = 200
_LISTING_TRIES: Final = 3
_REPAIR_TRIES: Final = 5
_DIFFERENCES_SHOWN: Final = 3

T = TypeVar("T", Config, Secret, Registry, App)
U = TypeVar("U")
V_co = TypeVar("V_co", covariant=True)


class Resources:
    """Named objects of every kind, by their paths."""

    def __init__(self, transport: Transport, writer: Writer, *, namespace: str) -> None:
        self._transport = transport
        self._writer = writer
        self._namespace = namespace

    def every(self, path: str, selector: str = "", page_size: int = PAGE) -> list[Mapping[str, Any]]:
        query: dict[str, str | int] = {"selector": selector} if selector else {}
        found: dict[str, Mapping[str, Any]] = {}
        for _ in range(_LISTING_TRIES):
            number, total = 1, 0
            while True:
                page = self._transport.call(
                    "GET", path, what=f"listing {path}", query={**query, "pageNo": number, "pageSize": page_size}
                )
                items, total = _page(page, path)
                found |= {item["name"]: self._check_namespace(item) for item in items}
                if not items or number * page_size >= total:
                    break
                number += 1
            # Pages are computed on every call, and nodes that come online move to the front: one may slip through.
            if len(found) >= total:
                break
        return list(found.values())

    def get(self, kind: str, name: str, path: str) -> Mapping[str, Any] | None:
        try:
            return self.read(kind, name, path)
        except NotFound:
            return None

    def read(self, kind: str, name: str, path: str) -> Mapping[str, Any]:
        check_name(name, what="node" if kind == "app" else kind)
        what = f"reading {kind} {name}"
        value = self._transport.call("GET", path, what=what)
        if not isinstance(value, Mapping):
            raise Unavailable(f"{what}: the answer is not an object")
        return self._check_namespace(value)

    def _check_namespace(self, value: Mapping[str, Any]) -> Mapping[str, Any]:
        wanted, found = self._namespace, value.get("namespace")
        if wanted and found and found != wanted:
            raise ConfigError(
                f"{self._transport.url} answered for namespace {found}, not for this cloud's {wanted}",
                hint="Check that the keys belong to this account.",
            )
        return value

    def put(self, kind: str, path: str, wanted: T, model: type[T]) -> T:
        where = f"{path}/{wanted.name}"

        def look() -> T | None:
            found = self.get(kind, wanted.name, where)
            return None if found is None else read_as(model, found)

        with self._writer.alone(kind, wanted.name):
            raw = self.get(kind, wanted.name, where)
            current = None if raw is None else read_as(model, raw)
            if current is not None and same(current, wanted):
                return current
            self._writer.apart(kind, wanted.name)
            if raw is None or current is None:
                write = Written("create", kind, wanted.name, "POST", path, wanted.to_json())
                self._writer.create(write, look)
            else:
                body = _update_body(raw, current, wanted)
                write = Written("update", kind, wanted.name, "PUT", where, body, current.version)
                self._writer.write(write)
            back = self._writer.read_back(write, look, lambda found: _describe_mismatch(found, wanted))
            found = require_found(back, kind, wanted.name)
            if isinstance(found, (Config, Secret)) and current is not None:
                self._repin(path, found)
        return found

    def _repin(self, path: str, changed: Config | Secret) -> None:
        """Write every app again that still has an older version of what it mounts.

        A new version reaches apps only if it is greater *as text*: not from 999 to 1000, and not always from one
        write to the next within a second.
        """
        for summary in self.users(path, changed.name):
            for _ in range(_REPAIR_TRIES):
                raw = self.get("app", summary.name, f"apps/{summary.name}")
                if raw is None or not _has_older_version(read_whole_app(raw), changed):
                    break
                self.repin_app(summary.name)
            else:
                raise Conflict(
                    f"app {summary.name} stays on an older version of {changed.name} than {changed.version}",
                    hint="Write the app again, and look for another writer; new nodes cannot start this version.",
                    object=f"app/{summary.name}",
                )

    def repin_app(self, name: str) -> None:
        """Write an app unchanged; the server then pins everything it mounts again."""
        path = f"apps/{name}"
        with self._writer.alone("app", name):
            raw = require_found(self.get("app", name, path), "app", name)
            app = read_whole_app(raw)
            body = {**app.to_json(), **kept_by_server(raw)}
            self._writer.write(Written("repin", "app", name, "PUT", path, body, app.version))

    def users(self, path: str, name: str) -> list[App]:
        value = self._transport.call("GET", f"{path}/{name}/apps", what=f"listing the apps that mount {name}")
        return [read_as(App, item) for item in _page(value, f"{path}/{name}/apps")[0]]

    def delete(self, kind: str, name: str, path: str) -> None:
        with self._writer.alone(kind, name):
            found = self.get(kind, name, path)
            if found is None:
                return
            write = Written("delete", kind, name, "DELETE", path, None, str(found.get("version") or ""))
            self._writer.write(write)
            self._writer.read_back(
                write, lambda: self.get(kind, name, path), lambda left: "it still exists" if left else ""
            )


class _Readable(Protocol[V_co]):
    def from_json(self, value: Mapping[str, Any], /) -> V_co: ...


def read_as(model: _Readable[V_co], value: Mapping[str, Any]) -> V_co:
    """Read an object.

    Raises:
        Unavailable: the value is not such an object.
    """
    try:
        return model.from_json(value)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Unavailable(
            f"an object does not have BIE's form: {error!r}", hint="Check for a proxy in between."
        ) from error


def _page(value: Any, path: str) -> tuple[list[Mapping[str, Any]], int]:
    """Read a page of a list, and the total number of objects."""
    items = value.get("items") or [] if isinstance(value, Mapping) else None
    total = value.get("total") or 0 if isinstance(value, Mapping) else 0
    named = isinstance(items, list) and all(isinstance(i, Mapping) and isinstance(i.get("name"), str) for i in items)
    if items is None or not named or not isinstance(total, int):
        raise Unavailable(f"listing {path}: the answer is not a list of named objects")
    return items, total


def require_found(found: U | None, kind: str, name: str) -> U:
    """Return the found object.

    Raises:
        NotFound: it is None.
    """
    if found is None:
        raise NotFound(f"{kind} {name} does not exist", hint="Create it first, or check the name.", name=name)
    return found


def read_whole_app(value: Mapping[str, Any]) -> App:
    """Read an app from a single read: without services and volumes it has none, it is no summary."""
    return replace(read_as(App, value), is_summary=False)


def _has_older_version(app: App, changed: Config | Secret) -> bool:
    kind = "config" if isinstance(changed, Config) else "secret"
    pins = [volume.version for volume in app.volumes if getattr(volume, kind) == changed.name]
    return any(version and version != changed.version for version in pins)


def _update_body(raw: Mapping[str, Any], current: Any, wanted: Any) -> dict[str, Any]:
    """Return the body of an update: the desired object on top of the fields that the server needs back unchanged."""
    if not isinstance(wanted, App):
        return {**current.extra, **wanted.to_json()}
    if (current.type, current.mode) != (wanted.type, wanted.mode):
        raise InputError(
            f"app {wanted.name} is {current.type}/{current.mode} , and BIE ignores a change of either",
            hint="Give the new app another name.",
        )
    body = {**kept_by_server(raw), **wanted.to_json()}
    if same(_without_startup(current), _without_startup(wanted)):
        # The server does not compare startup probes; adding or removing a trailing blank is a change that it sees.
        body["description"] = wanted.description.rstrip() + ("" if current.description.endswith(" ") else " ")
    return body


def _without_startup(app: App) -> App:
    services = tuple(replace(s, extra={k: v for k, v in s.extra.items() if k != "startupProbe"}) for s in app.services)
    return replace(app, services=services)


def _describe_mismatch(found: T | None, wanted: T) -> str:
    if found is None:
        return "it does not exist"
    return ", ".join(f"{d.path} is {d.old!r}, not {d.new!r}" for d in differences(found, wanted)[:_DIFFERENCES_SHOWN])
