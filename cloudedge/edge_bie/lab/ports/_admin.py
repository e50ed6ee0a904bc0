"""The management API: routes, visibility in lists, and the form of answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import translate
from functools import partial
from typing import Any

import orjson

from cloudedge.edge_bie.lab.ports._requests import Request
from cloudedge.edge_bie.lab.resources import NEVER, OFFLINE, ONLINE, apps, configs, nodes, readiness, secrets, show
from cloudedge.edge_bie.lab.state import SYSTEM, ApiError, LabState, invalid, not_found, reserved, selectors
from cloudedge.edge_bie.lab.state.json_types import write

__all__ = ["NOTHING", "answer_admin"]

NOTHING = {"success": True}
_READY = {"online": ONLINE, "offline": OFFLINE, "uninstall": NEVER}
_ECHOED = (
    "selector", "nodeSelector", "fieldSelector", "keywordType", "keyword", "alias", "continue", "cluster", "ready",
    "createSort", "name",
)  # fmt: skip


@dataclass(frozen=True)
class _Kind:
    """The operations on one kind of object."""

    stored: str
    create: Callable[[LabState, Any], Any]
    replace: Callable[[LabState, str, Any], Any]
    delete: Callable[[LabState, str], None]
    get: Callable[[LabState, str], Any]
    item: Callable[[LabState, Mapping[str, Any]], Any]
    """The form in lists."""
    type: str = ""
    """For secrets only."""


def _secret(kind: str) -> _Kind:
    return _Kind(
        "secret",
        lambda world, body: secrets.create(world, kind, body),
        lambda world, name, body: secrets.replace(world, kind, name, body),
        lambda world, name: secrets.delete(world, kind, name),
        lambda world, name: secrets.view(kind, world.need("secret", name, called=kind)),
        lambda _, row: secrets.view(kind, row, data=False),
        secrets.KINDS[kind],
    )


_KINDS = {
    "configs": _Kind(
        "config", configs.create, configs.replace, configs.delete,
        lambda world, name: configs.view(world.need("config", name)),
        lambda _, row: write(row, configs.INTERNAL),  # with all data, and in the nodes' form
    ),
    "secrets": _secret("secret"),
    "registries": _secret("registry"),
    "certificates": _secret("certificate"),
    "apps": _Kind("app", apps.create, apps.replace, apps.delete, apps.get, lambda _, row: apps.item(row)),
    "nodes": _Kind(
        "node", nodes.create, nodes.replace, nodes.delete,
        lambda world, name: show(world, world.need("node", name), desire=True), show,
    ),
}  # fmt: skip


def answer_admin(world: LabState, request: Request) -> Any:
    """Carry out a request and return its answer.

    Raises:
        ApiError: the request is refused.
    """
    match request.path.strip("/").split("/"):
        case ["v1", kind] if kind in _KINDS:
            found = _collection(world, request, kind)
        case ["v1", kind, name] if kind in _KINDS:
            found = _object(world, request, kind, name)
        case ["v1", kind, name, *rest] if kind in _KINDS:
            part = _PARTS.get(f"{request.method} {kind}/{'/'.join(rest)}")
            if part is None:
                raise _no_method()
            found = part(world, name, request)
        case ["v1", "namespace"]:
            found = _namespace(world, request)
        case ["v1", "quotas"] if request.method == "GET":
            return {}
        case ["v1", "properties", name] if request.method == "GET":
            return _property(world, name)
        case _:
            raise _no_method()
    return NOTHING if found is None else found


def _no_method() -> ApiError:
    return ApiError("ErrRequestMethodNotFound", "访问了不存在的api接口。\nThe request method is not found.")


def _body(request: Request) -> dict[str, Any]:
    try:
        body = orjson.loads(request.body)
    except orjson.JSONDecodeError as error:
        raise invalid(str(error) if request.body else "EOF") from None
    if not isinstance(body, dict):
        raise invalid("json: cannot unmarshal into Go value")
    return body


def _check_not_reserved(name: Any) -> None:
    if isinstance(name, str) and "baetyl" in name:
        raise reserved()


# -- collections -----------------------------------------------------------------------------------------------------


def _collection(world: LabState, request: Request, kind: str) -> Any:
    if request.method == "GET":
        return _list(world, request, kind)
    if request.method == "PUT" and kind == "nodes":
        if "batch" not in request.query:
            raise invalid()
        return nodes.batch(world, _body(request))
    if request.method != "POST":
        raise _no_method()
    body = _body(request)
    if kind != "nodes":
        _check_not_reserved(body.get("name"))
    if kind == "apps":
        return apps.create(world, body, request.query.get("base"))
    return _KINDS[kind].create(world, body)


def _list(world: LabState, request: Request, kind: str) -> dict[str, Any]:
    options: dict[str, Any] = {key: request.query[key] for key in _ECHOED if request.query.get(key)}
    for key in ("pageNo", "pageSize", "limit"):
        if request.query.get(key):
            if not re.fullmatch(r"-?\d{1,18}", request.query[key]):
                raise ApiError("UnknownError", f'strconv.ParseInt: parsing "{request.query[key]}": invalid syntax')
            options[key] = int(request.query[key])
    if kind != "nodes":
        if SYSTEM not in options.get("selector", ""):
            options["selector"] = ",".join(filter(None, (options.get("selector", "").strip(), f"!{SYSTEM}")))
        if _KINDS[kind].type:
            options["selector"] += f",{secrets.TYPE}={_KINDS[kind].type}"
    wanted = _like(options.get("name", ""))
    rows = [
        row
        for row in world.store.all(_KINDS[kind].stored)
        if wanted(row["name"]) and selectors.matches(options.get("selector", ""), row["labels"])
    ]
    if kind == "nodes":
        rows = _sorted_nodes(world, rows, options)
    page = [_KINDS[kind].item(world, row) for row in _page(rows, options)]
    return {"total": len(rows), **{key: value for key, value in options.items() if value}, "items": page}


def _like(name: str) -> Callable[[str], Any]:
    """Return the test for a name's LIKE pattern: a part of it, or `%` for anything."""
    if not name:
        return lambda _: True
    pattern = name if "%" in name else f"%{name}%"
    escaped = re.sub(r"([\[\]*?])", "", pattern)
    return re.compile(translate(escaped.replace("%", "*").replace("_", "?")), re.IGNORECASE).match


def _page(rows: list[Mapping[str, Any]], options: dict[str, Any]) -> list[Mapping[str, Any]]:
    size = options.get("pageSize", 0)
    if size <= 0:
        return rows
    options["pageNo"] = max(1, options.get("pageNo", 1))
    start = (options["pageNo"] - 1) * size
    return rows[start : start + size]


def _sorted_nodes(
    world: LabState, rows: list[Mapping[str, Any]], options: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    """Sort nodes: online ones first, each group newest first, unless the request asks for another order."""
    checks: tuple[tuple[str, Iterable[str], str], ...] = (
        ("ready", _READY, "ready"), ("cluster", ("single", "cluster"), "cluster"),
        ("createSort", ("asc", "desc"), "create sort"),
    )  # fmt: skip
    for key, known, called in checks:
        if options.get(key, "") not in ("", *known):
            raise invalid(f"filter node {called}  value error ")
    heard = world.heard()
    states = {row["name"]: readiness(world, row, {"time": heard.get(row["name"], "")}) for row in rows}
    if not any(options.get(key) for key, _, _ in checks):
        return sorted(rows, key=lambda row: states[row["name"]] != ONLINE)
    if options.get("cluster"):
        rows = [row for row in rows if row["cluster"] == (options["cluster"] == "cluster")]
    if options.get("ready"):
        rows = [row for row in rows if states[row["name"]] == _READY[options["ready"]]]
    return rows[::-1] if options.get("createSort") == "asc" else rows


# -- single objects --------------------------------------------------------------------------------------------------


def _object(world: LabState, request: Request, kind: str, name: str) -> Any:
    known = _KINDS[kind]
    if request.method == "GET":
        return known.get(world, name)
    if request.method == "PUT":
        return known.replace(world, name, _body(request))
    if request.method != "DELETE":
        raise _no_method()
    if kind != "nodes":
        _check_not_reserved(name)
    known.delete(world, name)
    return None


def _of_app(kind: str, world: LabState, name: str, _: Request) -> dict[str, Any]:
    """Return objects that belong to an app by its label, as only those of system apps do; without data."""
    world.need("app", name)
    selector = f"baetyl-app-name={name}"
    rows = [row for row in world.store.all(_KINDS[kind].stored) if selectors.matches(selector, row["labels"])]
    items = [{key: value for key, value in _KINDS[kind].item(world, row).items() if key != "data"} for row in rows]
    return {"total": len(items), "selector": selector, "items": items}


def _apps_by_name(world: LabState, names: list[str]) -> dict[str, Any]:
    kept = ("name", "labels", "version", "namespace", "selector", "nodeSelector", "createTime", "description",
            "cronStatus", "cronTime")  # fmt: skip
    found = [app for name in names if (app := world.store.get("app", name)) is not None]
    items = [apps.item({key: app[key] for key in kept if key in app}) for app in found]
    return {"total": len(items), "items": items}


def _namespace(world: LabState, request: Request) -> Any:
    if request.method == "POST":
        world.store.put("namespace", world.namespace, {"name": world.namespace})
    elif request.method == "DELETE":
        world.need("namespace", world.namespace)
        world.store.delete("namespace", world.namespace)
        return None
    elif request.method != "GET":
        raise _no_method()
    return dict(world.need("namespace", world.namespace))


def _property(world: LabState, name: str) -> dict[str, Any]:
    if name != "sync-server-address":
        raise not_found("property", name)
    return {"name": name, "value": world.sync_url, "createTime": world.now(), "updateTime": world.now()}


def _users(kind: str) -> Callable[[LabState, str, Request], Any]:
    """Return the handler that lists the apps which mount an object."""

    def answer(world: LabState, name: str, _: Request) -> dict[str, Any]:
        world.need(kind, name)
        return _apps_by_name(world, world.users(kind, name))

    return answer


def _apps_of_node(world: LabState, name: str, _: Request) -> dict[str, Any]:
    world.need("node", name)
    desire = world.store.get("desire", name) or {}
    return _apps_by_name(world, [app["name"] for key in ("sysapps", "apps") for app in desire.get(key, ())])


def _install(world: LabState, name: str, _: Request) -> dict[str, Any]:
    world.need("node", name)
    return {"cmd": f"cloudedge edge node --cloud {world.sync_url} --name {name}"}


def _functions(world: LabState, name: str, _: Request) -> dict[str, Any]:
    world.need("node", name)
    return {"functions": []}


_PARTS: dict[str, Callable[[LabState, str, Request], Any]] = {
    **{f"GET {kind}/apps": _users(_KINDS[kind].stored) for kind in _KINDS if kind not in {"apps", "nodes"}},
    **{f"GET apps/{kind}": partial(_of_app, kind) for kind in ("configs", "secrets", "registries", "certificates")},
    "POST registries/refresh": lambda world, name, request: secrets.refresh(world, name, _body(request)),
    "GET nodes/stats": lambda world, name, _: show(world, world.need("node", name)),
    "GET nodes/apps": _apps_of_node,
    "GET nodes/functions": _functions,
    "GET nodes/deploys": lambda *_: None,  # a stub in the original, too
    "GET nodes/init": _install,
    "GET nodes/properties": lambda world, name, _: nodes.properties(world, name),
    "PUT nodes/properties": lambda world, name, request: nodes.set_properties(world, name, _body(request)),
    "PUT nodes/mode": lambda world, name, request: nodes.set_mode(world, name, _body(request)),
    "GET nodes/core/configs": lambda world, name, _: nodes.core(world, name),
    "PUT nodes/core/configs": lambda world, name, request: nodes.set_core(world, name, _body(request)),
    "GET nodes/core/versions": lambda world, name, _: nodes.versions(world, name),
}  # fmt: skip
"""Handlers of addresses below an object's."""
