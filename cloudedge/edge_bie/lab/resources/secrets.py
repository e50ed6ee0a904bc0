"""Secrets, and the registries and certificates that are stored as secrets. They share their names."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import orjson

from cloudedge.edge_bie.lab.resources import apps
from cloudedge.edge_bie.lab.state import LabState, check_name, in_use, invalid, taken, too_large
from cloudedge.edge_bie.lab.state.json_types import STR, TIME, Mapped, Struct, read, write

__all__ = ["KINDS", "TYPE", "create", "delete", "refresh", "replace", "view", "wire"]

TYPE = "secret-type"
KINDS = {"secret": "config", "registry": "registry", "certificate": "certificate"}
"""By kind: the value of its label `secret-type`."""
_LIMIT = 64 << 10
_ABOUT = {"name": STR, "namespace": STR, "createTime": TIME, "updateTime": TIME, "description": STR, "version": STR}
_LOGIN = {"address": STR, "username": STR, "password": STR}
_PAIR = {"key": STR, "certificate": STR}
_SHAPES = {
    "secret": Struct({**_ABOUT, "data": Mapped(STR)}, frozenset({"description"})),
    "registry": Struct({**_ABOUT, **_LOGIN}, frozenset({"description", "address", "username"})),
    "certificate": Struct({**_ABOUT, "data": Struct(_PAIR, pointer=False)}, frozenset({"description"})),
}


def create(world: LabState, kind: str, body: Any) -> dict[str, Any]:
    """Create an object of one kind."""
    given = _parse(kind, body, "")
    if world.store.get("secret", given["name"]):
        raise taken()
    _check(kind, given["data"])
    secret = {
        **given,
        "namespace": world.namespace,
        "labels": {TYPE: KINDS[kind]},
        "createTime": world.now(),
        "updateTime": world.now(),
    }
    return view(kind, _keep(world, secret))


def replace(world: LabState, kind: str, name: str, body: Any) -> dict[str, Any]:
    """Replace a secret; of a registry only the description changes."""
    given = _parse(kind, body, name)
    old = world.need("secret", name, called=kind)
    data = given["data"]
    if kind == "registry" or (kind == "certificate" and not data.get("key")):
        data = old["data"]
    if data == old["data"] and given["description"] == old["description"]:
        return view(kind, old)
    kept = _keep(world, {**old, "data": data, "description": given["description"], "updateTime": world.now()})
    if kind == "secret":
        _propagate(world, kept)
    return view(kind, kept)


def refresh(world: LabState, name: str, body: Any) -> dict[str, Any]:
    """Give a registry another password."""
    given = _parse("registry", body, name)
    old = world.need("secret", name, called="registry")
    data = {**old["data"], "password": given["data"].get("password", "")}
    _check("registry", data)
    kept = _keep(world, {**old, "data": data, "updateTime": world.now()})
    _propagate(world, kept)
    return view("registry", kept)


def delete(world: LabState, kind: str, name: str) -> None:
    """Delete an object that no app uses; a missing one is no error."""
    if world.store.get("secret", name) is None:
        return
    if world.users("secret", name):
        raise in_use(kind, name)
    world.store.delete("secret", name)


def view(kind: str, secret: Mapping[str, Any], *, data: bool = True) -> dict[str, Any]:
    """Return an object in the users' form; without passwords and keys, and in lists without a secret's data."""
    shown = dict(secret)
    if kind == "registry":
        shown.update({key: secret["data"].get(key, "") for key in ("address", "username")})
    elif kind == "certificate":
        shown["data"] = {"certificate": secret["data"].get("certificate", "")}
    elif not data:
        shown["data"] = {}
    return dict(write(shown, _SHAPES[kind]))


def wire(secret: Mapping[str, Any]) -> dict[str, Any]:
    """Return a secret in the nodes' form: values in base64."""
    data = {key: base64.b64encode(value.encode()).decode() for key, value in secret["data"].items()}
    shape = Struct({**_ABOUT, "labels": Mapped(STR), "data": Mapped(STR)})
    return dict(write({**secret, "data": data}, shape))


def _propagate(world: LabState, secret: Mapping[str, Any]) -> None:
    for app in world.users("secret", secret["name"]):
        apps.follow(world, app, "secret", secret["name"], secret["version"])


def _parse(kind: str, body: Any, name: str) -> dict[str, Any]:
    given = read({"name": name, **body}, _SHAPES[kind])
    if given.get("name"):
        check_name(given["name"])
    else:
        raise invalid("name is required")
    if kind == "secret" and body.get("data") is None:
        raise invalid("Key: 'SecretView.Data' Error:Field validation for 'Data' failed on the 'required' tag")
    data = {key: given.get(key, "") for key in _LOGIN} if kind == "registry" else given.get("data", {})
    return {"name": name or given["name"], "description": given.get("description", ""), "data": data}


def _check(kind: str, data: Mapping[str, str]) -> None:
    if kind == "registry" and not all(data.get(key) for key in _LOGIN):
        raise invalid("address/username/password is required")
    if kind == "certificate" and not all(data.get(key) for key in _PAIR):
        raise invalid("private key and certificate can't be empty")


def _keep(world: LabState, secret: dict[str, Any]) -> dict[str, Any]:
    size = len(orjson.dumps({key: base64.b64encode(value.encode()).decode() for key, value in secret["data"].items()}))
    if size >= _LIMIT:
        raise too_large(secret["name"], size, _LIMIT)
    secret["version"] = world.version()
    world.store.put("secret", secret["name"], secret)
    return secret
