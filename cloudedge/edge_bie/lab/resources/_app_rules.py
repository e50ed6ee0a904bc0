"""The rules for apps: validation, defaults, and equality."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloudedge.edge_bie.lab.resources._app_types import APP_VIEW
from cloudedge.edge_bie.lab.state import ApiError, LabState, check_name, invalid
from cloudedge.edge_bie.lab.state.json_types import read

__all__ = ["check", "equal", "mirror", "parse"]

_NAME_LIMIT = 55
_SELECTOR_LIMIT = 255
_WORKLOADS = ("deployment", "daemonset", "statefulset", "job")


def parse(body: Any, name: str) -> dict[str, Any]:
    """Read an app in the users' form, and fill in defaults."""
    app: dict[str, Any] = read({"name": name, **body}, APP_VIEW)
    check_name(app.get("name", ""))
    app["name"] = name or app["name"]
    if len(app["name"]) > _NAME_LIMIT:
        raise invalid("name is too long")
    for service in (*app.get("services", ()), *app.get("initServices", ())):
        check_name(service.get("name", ""), service=True)
    for volume in app.get("volumes", ()):
        check_name(volume.get("name", ""))
    if app["type"] not in {"container", "function", "helm", "yaml"}:
        raise invalid("type is invalid")
    if app["type"] == "container":
        _check_images(app)
    if app["type"] == "function" and not all("functionConfig" in service for service in app.get("services", ())):
        raise invalid("function config can't be empty in function app")
    mirror(app)
    if app["workload"] not in _WORKLOADS:
        raise invalid("failed to parse service type, service type should be deployment / daemonset / statefulset / job")
    return app


def _check_images(app: Mapping[str, Any]) -> None:
    for service in app.get("services", ()):
        service["image"] = service.get("image", "").strip()
        if app["mode"] == "kube" and not service["image"]:
            raise invalid("image is required in kube mode")
        if app["mode"] == "native" and not service.get("programConfig"):
            raise invalid("program config is required in native mode")


def mirror(app: dict[str, Any]) -> None:
    """Copy the app's fields into its services and back, as the control plane does for old clients."""
    services = app.get("services", [])
    first = services[0] if services else {}
    if not app.get("workload"):
        app["workload"] = first.get("type") or "deployment"
    else:
        for service in services:
            service["type"] = service.get("type") or app["workload"]
    if not app.get("hostNetwork") and first.get("hostNetwork"):
        app["hostNetwork"] = True
    elif app.get("hostNetwork"):
        for service in services:
            service["hostNetwork"] = True
    if not app.get("replica"):
        app["replica"] = first.get("replica") or 0
    else:
        for service in services:
            service["replica"] = service.get("replica") or app["replica"]
    _mirror_job(app, services, first)


def _mirror_job(app: dict[str, Any], services: list[dict[str, Any]], first: Mapping[str, Any]) -> None:
    if not app.get("jobConfig", {}).get("restartPolicy"):
        if first.get("jobConfig") is not None:
            app["jobConfig"] = dict(first["jobConfig"])
            return
        app["jobConfig"] = {"restartPolicy": "Never"}
    for service in services:
        if not service.get("jobConfig", {}).get("restartPolicy"):
            service["jobConfig"] = dict(app["jobConfig"])


def check(world: LabState, app: Mapping[str, Any]) -> None:
    """Refuse missing references, repeated ports and times in the past. Labels are not checked.

    Raises:
        ApiError: the app has one of these.
    """
    _check_references(world, app)
    _check_ports(app)
    if app.get("cronStatus") == 1 and app.get("cronTime", "") <= world.now():
        raise invalid("failed to add cron job, time should be set after now")
    if len(app.get("selector", "")) > _SELECTOR_LIMIT:
        raise ApiError("UnknownError", "Error 1406 (22001): Data too long for column 'selector' at row 1")
    scale = app.get("autoScaleCfg", {})
    if scale.get("metrics"):
        if scale.get("minReplicas", 0) <= 0:
            raise invalid("minReplicas must be greater than 0")
        if scale.get("maxReplicas", 0) < scale["minReplicas"]:
            raise invalid("minReplicas must be less than maxReplicas")


def _check_references(world: LabState, app: Mapping[str, Any]) -> None:
    for volume in app.get("volumes", ()):
        for kind in ("config", "secret", "certificate"):
            if kind in volume:
                world.need("config" if kind == "config" else "secret", volume[kind].get("name", ""))
    for registry in app.get("registries", ()):
        world.need("secret", registry.get("name", ""))


def _check_ports(app: Mapping[str, Any]) -> None:
    ports: set[tuple[str, int]] = set()
    for service in (*app.get("services", ()), *app.get("initServices", ())):
        mapped = [port for port in service.get("ports", ()) if _claim_port(port, ports)]
        if mapped and app["replica"] > 1:
            raise invalid("port mapping is only supported under single replica")


def _claim_port(port: Mapping[str, Any], ports: set[tuple[str, int]]) -> bool:
    """Record a port of the host; returns True if it is mapped from a container's."""
    protocol = "udp" if port.get("protocol") == "UDP" else "tcp"
    is_node_port = port.get("serviceType") == "NodePort"
    number = port.get("nodePort" if is_node_port else "hostPort", 0)
    if is_node_port and number <= 0:
        raise invalid("invalid NodePort")
    if not number:
        return False
    if (protocol, number) in ports:
        raise invalid(f"duplicate {protocol} ports")
    ports.add((protocol, number))
    return not is_node_port


_COMPARED = (
    "name", "hostname", "image", "replica", "hostNetwork", "runtime", "security", "imagePullPolicy", "jobConfig",
    "functionConfig", "volumeMounts", "ports", "devices", "workingDir", "args", "command", "env", "labels", "functions",
)  # fmt: skip
"""Fields of a service. A startup probe is not compared; the other two are, but never found equal."""
_COMPARED_OF_APP = (
    "cronStatus", "labels", "replica", "hostNetwork", "preserveUpdates", "dnsPolicy", "workload", "selector",
    "description", "nodeSelector",
)  # fmt: skip


def equal(new: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
    """Return True if the control plane considers two apps equal; for some equal ones it does not."""
    return (
        new.get("autoScaleCfg") is not None  # a missing one is compared with an empty one and differs
        and new["autoScaleCfg"] == old["autoScaleCfg"]
        and _same(new, old, _COMPARED_OF_APP)
        and _plain(new.get("jobConfig")) == _plain(old.get("jobConfig"))
        and new["volumes"] == old["volumes"]
        and _same_services(new["services"], old["services"])
        and _same_services(new["initServices"], old["initServices"])
    )


def _same(new: Mapping[str, Any], old: Mapping[str, Any], keys: tuple[str, ...]) -> bool:
    return all((new.get(key) or None) == (old.get(key) or None) for key in keys)


def _plain(value: Mapping[str, Any] | None) -> dict[str, Any]:
    return {key: item for key, item in (value or {}).items() if item}


def _same_services(new: list[dict[str, Any]], old: list[dict[str, Any]]) -> bool:
    return len(new) == len(old) and all(
        _same(mine, theirs, _COMPARED)
        and mine.get("resources") == theirs.get("resources")
        and all(
            service.get(probe) is None for service in (mine, theirs) for probe in ("livenessProbe", "readinessProbe")
        )
        for mine, theirs in zip(new, old, strict=True)
    )
