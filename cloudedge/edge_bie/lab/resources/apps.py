"""Apps: storage, change detection, and distribution to nodes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from cloudedge.edge_bie.lab.resources import desires
from cloudedge.edge_bie.lab.resources._app_rules import check, equal, mirror, parse
from cloudedge.edge_bie.lab.resources._app_types import APP, APP_ITEM, APP_VIEW
from cloudedge.edge_bie.lab.state import APP_MODE, SYSTEM, ApiError, LabState, in_use, invalid
from cloudedge.edge_bie.lab.state.json_types import write

__all__ = ["create", "delete", "follow", "get", "item", "keep", "replace", "view", "wire"]

_WAITING = 1
"""The state of a scheduled app before its time."""


def create(world: LabState, body: Any, base: str | None = None) -> dict[str, Any]:
    """Create an app, on top of another's services and volumes if one is named."""
    given = parse(body, "")
    check(world, given)
    if world.store.get("app", given["name"]):
        raise in_use()
    found = world.need("app", base) if base is not None else None
    if found and found["type"] != given["type"]:
        raise invalid("the type of baseApp is conflicted")
    app = _to_app(world, given)
    if found:
        app["services"] = [*found["services"], *app["services"]]
        app["volumes"] = [*copy.deepcopy(found["volumes"]), *app["volumes"]]
    _check_parts(app)
    app.update(createTime=world.now(), cronTime=given.get("cronTime") or world.now(), system=False)
    kept = keep(world, app)
    desires.refresh(world, kept)
    return view(world, {**kept, "waiting": ""})


def replace(world: LabState, name: str, body: Any) -> dict[str, Any]:
    """Replace an app; if it looks different, it gets a new version, and nodes deploy it again."""
    given = parse(body, name)
    check(world, given)
    old = world.need("app", name)
    _check_visible(old)
    if SYSTEM in old["labels"] and (old["selector"] != given.get("selector", "") or not given.get("system")):
        raise invalid("selector\uff0clabels or system field can't be modified of sys apps")
    app = _to_app(world, given)
    app.update(createTime=old["createTime"], system=old["system"])
    if app["cronStatus"] == old["cronStatus"]:
        app["cronTime"] = old["cronTime"]
    elif (old["cronStatus"], app["cronStatus"]) != (_WAITING, 0):
        raise invalid("failed to add cron, can't set up a cron job which has been deployed")
    _check_parts(app)
    kept = keep(world, app, old)
    if old["selector"] != kept["selector"]:
        desires.forget(world, old)
    desires.refresh(world, kept)
    # The answer repeats the request; only a read shows what was stored.
    sent = {"type": given["type"], "mode": given["mode"], "autoScaleCfg": given.get("autoScaleCfg")}
    return view(world, {**app, **sent, "version": kept["version"], "waiting": ""})


def delete(world: LabState, name: str) -> None:
    """Delete an app and remove it from its nodes; a missing one is no error."""
    app = world.store.get("app", name)
    if app is not None:
        world.store.delete("app", name)
        desires.forget(world, app)


def follow(world: LabState, name: str, kind: str, resource: str, version: str) -> None:
    """Give an app a new version because a config or secret changed, if the new version is greater as text."""
    app = world.store.get("app", name)
    if app is None or not any(
        volume.get(kind, {}).get("name") == resource and version > volume[kind].get("version", "")
        for volume in app["volumes"]
    ):
        return
    kept = keep(world, copy.deepcopy(dict(app)), app)
    desires.refresh(world, kept)


def keep(world: LabState, app: dict[str, Any], old: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    """Pin everything the app mounts to its newest version and store the app, unless it equals the old one."""
    for volume in app["volumes"]:
        for kind in ("config", "secret"):
            if kind in volume:
                name = volume[kind].get("name", "")
                volume[kind] = {"name": name, "version": world.need(kind, name)["version"]}
    if old is not None:
        if equal(app, old):
            return old
        app.update(type=old["type"], mode=old["mode"])
    # A missing autoScaleCfg is stored as an empty one, and is then different from a missing one.
    app["autoScaleCfg"] = app.get("autoScaleCfg") or {}
    app.update(version=world.version(), updateTime=world.now())
    world.store.put("app", app["name"], app)
    return app


def view(world: LabState, app: Mapping[str, Any]) -> dict[str, Any]:
    """Return an app in the users' form: registries and certificates are separated from secrets again."""
    shown: dict[str, Any] = copy.deepcopy(dict(app))
    shown["selector"] = shown.get("waiting") or shown["selector"]
    shown["registries"], volumes = [], []
    for volume in shown["volumes"]:
        secret = world.store.get("secret", volume["secret"].get("name", "")) if "secret" in volume else None
        if "secret" in volume and secret is None:
            continue
        kind = secret["labels"].get("secret-type") if secret else ""
        if secret and kind == "registry":
            login = {key: secret["data"].get(key, "") for key in ("address", "username")}
            shown["registries"].append({"name": secret["name"], **login})
            continue
        if kind == "certificate":
            volume["certificate"] = volume.pop("secret")
        volumes.append(volume)
    shown["volumes"] = volumes
    mirror(shown)
    shown["labels"].pop(APP_MODE, None)
    return dict(write(shown, APP_VIEW))


def get(world: LabState, name: str) -> dict[str, Any]:
    """Return an app in the users' form; the core and init apps of nodes are hidden."""
    app = world.need("app", name)
    _check_visible(app)
    return view(world, app)


def item(app: Mapping[str, Any]) -> dict[str, Any]:
    """Return an app in its form for lists."""
    labels = {key: value for key, value in app["labels"].items() if key != APP_MODE}
    return dict(write({**app, "labels": labels}, APP_ITEM))


def wire(app: Mapping[str, Any]) -> dict[str, Any]:
    """Return an app in its form for nodes."""
    return dict(write(app, APP))


def _check_visible(app: Mapping[str, Any]) -> None:
    if app["labels"].get("resource-invisible") == "true":
        raise ApiError("ErrResourceInvisible", f"The (app) resource ({app['name']}) is not visible.")


def _to_app(world: LabState, given: Mapping[str, Any]) -> dict[str, Any]:
    app = {key: copy.deepcopy(value) for key, value in given.items() if key in APP.fields}
    app["namespace"] = world.namespace
    for key, empty in (("selector", ""), ("nodeSelector", ""), ("description", ""), ("cronStatus", 0)):
        app.setdefault(key, empty)
    for key in ("services", "initServices", "volumes"):
        app[key] = app.get(key, [])
    app["volumes"] = [
        {("secret" if key == "certificate" else key): value for key, value in volume.items()}
        for volume in app["volumes"]
    ]
    app["volumes"] += [{"name": r["name"], "secret": {"name": r["name"]}} for r in given.get("registries", ())]
    app["labels"] = {**given.get("labels", {}), APP_MODE: given["mode"]}
    if app["cronStatus"] == _WAITING:
        # Kept away from nodes until its time, which never comes: the lab has no scheduler.
        app["waiting"], app["selector"] = app["selector"], ""
    return app


def _check_parts(app: Mapping[str, Any]) -> None:
    volumes: set[str] = set()
    for volume in app["volumes"]:
        if volume["name"] in volumes:
            raise _conflict("Volumes[]", volume["name"])
        volumes.add(volume["name"])
    services: set[str] = set()
    for service in app["services"]:
        if service["name"] in services:
            raise _conflict("Services[]", service["name"])
        services.add(service["name"])
        for mount in service.get("volumeMounts", ()):
            if mount.get("name", "") not in volumes:
                raise ApiError(
                    "ErrVolumeNotFoundWhenMount",
                    f"The mount volume name({mount.get('name', '')}) can't find in the Volumes[].",
                )


def _conflict(where: str, name: str) -> ApiError:
    return ApiError(
        "ErrAppNameConflict",
        f"A naming conflict occurs when you try to create/update app. where={where}. name={name}.",
    )
