"""Nodes: create one with its system apps, replace one whole, and its parts with addresses of their own."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

from cloudedge.edge_bie.lab.resources import apps, desires
from cloudedge.edge_bie.lab.resources._node_view import show
from cloudedge.edge_bie.lab.state import APP_MODE, NODE_NAME, SYSTEM, ApiError, LabState, check_name, invalid, taken
from cloudedge.edge_bie.lab.state.json_types import ANY, BOOL, INT, STR, Listed, Mapped, Struct, read

__all__ = ["batch", "core", "create", "delete", "properties", "replace", "set_core", "set_mode", "set_properties"]

CORE_VERSION = "v2.4.3"
_FREQUENCY, _API_PORT, _AGENT_PORT = 20, 30050, 30080
_ACCELERATORS = {"nvidia", "jetson", "ascend", "bitmain", "cambricon", "kunlun"}
_OPTIONAL = ("baetyl-function", "baetyl-rule", "baetyl-ekuiper")
_GPU = "baetyl-accelerator-metrics"
_BATCH = 20
_LABEL = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]?")
_LONGEST, _LONGEST_PREFIX = 63, 253
_NODE = Struct(
    {
        "name": STR, "accelerator": STR, "nodeMode": STR, "cluster": BOOL, "labels": Mapped(STR),
        "annotations": Mapped(STR), "attr": Mapped(ANY), "sysApps": Listed(STR), "description": STR,
    }
)  # fmt: skip
_CORE = Struct(
    {
        "version": STR, "frequency": INT, "apiport": INT, "agentport": INT, "logLevel": STR, "byteUnit": STR,
        "speedLimit": INT,
    },
    defaults={"agentport": _AGENT_PORT, "logLevel": "debug", "byteUnit": "KB"},
)  # fmt: skip
_PROPERTIES = Struct({"state": Struct({"desire": Mapped(ANY)})})


def create(world: LabState, body: Any) -> dict[str, Any]:
    """Create a node with its system apps, and match it with all apps."""
    node = _parse(body, "")
    if world.store.get("node", node["name"]):
        raise taken()
    node.update(
        namespace=world.namespace,
        createTime=world.now(),
        version=world.version(),
        mode="cloud",
        frequency=_FREQUENCY,
        core={"version": CORE_VERSION, "apiport": _API_PORT, "agentport": _AGENT_PORT},
    )
    node["sysApps"] = _with_gpu(node["accelerator"], node["sysApps"])
    world.store.put("node", node["name"], node)
    for alias in ("baetyl-core", "baetyl-init", "baetyl-broker", *(a for a in node["sysApps"] if a in _OPTIONAL)):
        _system_app(world, node, alias)
    desires.rematch(world, node["name"], node["labels"])
    return show(world, node, report=False)


def replace(world: LabState, name: str, body: Any) -> dict[str, Any]:
    """Replace a node: omitted fields are removed, including labels, accelerator and optional system apps."""
    node = _parse(body, name)
    old = world.need("node", name)
    for key in ("namespace", "createTime", "mode", "frequency", "core", "cluster", "nodeMode"):
        node[key] = old[key]
    node["labels"]["baetyl-node-mode"] = old["nodeMode"]
    if node["accelerator"] != old["accelerator"]:
        node["sysApps"] = _with_gpu(node["accelerator"], node["sysApps"])
    node["version"] = world.version() if any(node[k] != old.get(k) for k in node if k != "version") else old["version"]
    world.store.put("node", name, node)
    for alias in set(old["sysApps"]) - set(node["sysApps"]):
        _remove_system_apps(world, name, lambda app, alias=alias: alias in app)
    for alias in node["sysApps"]:
        if alias in _OPTIONAL and alias not in old["sysApps"]:
            _system_app(world, node, alias)
    desires.rematch(world, name, node["labels"])
    return show(world, node, report=False)


def delete(world: LabState, name: str) -> None:
    """Delete a node and its system apps; the node is not notified."""
    if world.store.get("node", name) is None:
        return
    _remove_system_apps(world, name, lambda _: True)
    for kind in ("node", "desire", "report"):
        world.store.delete(kind, name)


def batch(world: LabState, body: Any) -> dict[str, Any]:
    """Read several nodes; missing ones are omitted."""
    names = read(body, Struct({"names": Listed(STR)})).get("names", [])
    if len(names) > _BATCH:
        raise invalid("Key: 'NodeNames.Names' Error:Field validation for 'Names' failed on the 'max' tag")
    found = [show(world, node) for name in names if (node := world.store.get("node", name)) is not None]
    return {"total": len(found), "items": found}


def properties(world: LabState, name: str) -> dict[str, Any]:
    """Return a node's desired and reported properties."""
    node = world.need("node", name)
    desire = (world.store.get("desire", name) or {}).get("nodeprops") or {}
    report = (world.store.get("report", name) or {}).get("nodeprops") or {}
    state = {key: value for key, value in (("report", report), ("desire", desire)) if value}
    times = node.get("propertyTimes", {})
    return {"state": state, "metadata": {"desire": times} if times else {}}


def set_properties(world: LabState, name: str, body: Any) -> dict[str, Any]:
    """Replace a node's desired properties."""
    wanted = read(body, _PROPERTIES).get("state", {}).get("desire", {})
    if not all(isinstance(value, str) for value in wanted.values()):
        raise invalid()
    node = world.need("node", name)
    desire = world.store.get("desire", name) or {}
    old, times = desire.get("nodeprops") or {}, node.get("propertyTimes", {})
    now = world.now()
    times = {key: now if old.get(key) != value else times.get(key, now) for key, value in wanted.items()}
    world.store.put("desire", name, {**desire, "nodeprops": wanted})
    world.store.put("node", name, {**node, "propertyTimes": times})
    return properties(world, name)


def set_mode(world: LabState, name: str, body: Any) -> None:
    """Set whether a node follows the cloud or itself."""
    mode = read(body, Struct({"mode": STR})).get("mode", "")
    if mode not in {"cloud", "local"}:
        raise invalid()
    world.store.put("node", name, {**world.need("node", name), "mode": mode})


def core(world: LabState, name: str) -> dict[str, Any]:
    """Return the settings of a node's core."""
    node = world.need("node", name)
    shown = {"frequency": node["frequency"], "logLevel": "debug", "byteUnit": "KB", **node["core"]}
    return {key: value for key, value in shown.items() if value and key != "previous"}


def set_core(world: LabState, name: str, body: Any) -> dict[str, Any]:
    """Set a node's report interval and the ports of its core; its core app gets a new version."""
    wanted = read(body, _CORE)
    if not 1 <= wanted.get("frequency", 0) <= 300:  # noqa: PLR2004 - the control plane's own rule
        raise invalid("invalid frequency")
    if not all(1024 <= wanted.get(port, 0) <= 65535 for port in ("apiport", "agentport")):  # noqa: PLR2004
        raise invalid("invalid port")
    node = world.need("node", name)
    now = {key: value for key, value in wanted.items() if key != "frequency"}
    if now["version"] != node["core"]["version"]:
        now["previous"] = node["core"]["version"]
    world.store.put("node", name, {**node, "frequency": wanted["frequency"], "core": now})
    app = next(a for a in world.apps_for({NODE_NAME: name}) if a["name"].startswith("baetyl-core"))
    changed = {**copy.deepcopy(dict(app)), "description": f"frequency {wanted['frequency']}s"}
    kept = apps.keep(world, changed, app)
    desires.refresh(world, kept)
    return apps.view(world, kept)


def versions(world: LabState, name: str) -> dict[str, Any]:
    """Return the core versions that a node can have: the previous, the current and the newest."""
    node = world.need("node", name)
    known = [node["core"].get("previous"), node["core"]["version"], CORE_VERSION]
    return {"versions": list(dict.fromkeys(version for version in known if version))}


def _parse(body: Any, name: str) -> dict[str, Any]:
    given = read({"name": name, **body}, _NODE)
    if not given.get("name"):
        raise invalid("name is required")
    check_name(given["name"])
    labels = given.get("labels", {})
    if not all(_is_label(key, value) for key, value in labels.items()):
        raise invalid("Key: 'Node.Labels' Error:Field validation for 'Labels' failed on the 'label' tag")
    mode = given.get("nodeMode") or "kube"
    if mode not in {"kube", "native", "android"}:
        raise invalid("only kube or native or android is surpported with nodemode")
    cluster = given.get("cluster", False)
    if cluster and mode == "native":
        raise invalid("cluster is not supported with native nodeMode")
    for alias in given.get("sysApps", ()):
        if alias not in (*_OPTIONAL, _GPU):
            raise invalid(f"sysapp ({alias}) is not supported")
    accelerator = given.get("accelerator", "")
    own = {
        NODE_NAME: name or given["name"],
        "baetyl-accelerator": accelerator,
        "baetyl-cluster": "true" if cluster else "false",
        "baetyl-node-mode": mode,
    }
    return {
        "name": name or given["name"],
        "accelerator": accelerator,
        "cluster": cluster,
        "nodeMode": mode,
        "labels": {**labels, **own},
        "annotations": given.get("annotations", {}),
        "description": given.get("description", ""),
        "sysApps": given.get("sysApps", []),
    }


def _is_label(key: str, value: str) -> bool:
    prefix, slash, rest = key.partition("/")
    if slash and not (prefix and len(prefix) <= _LONGEST_PREFIX and _LABEL.fullmatch(prefix)):
        return False
    return all(len(text) <= _LONGEST and _LABEL.fullmatch(text) for text in (rest if slash else key, value))


def _with_gpu(accelerator: str, aliases: list[str]) -> list[str]:
    others = [alias for alias in aliases if alias != _GPU]
    return [*others, _GPU] if accelerator in _ACCELERATORS else others


def _system_app(world: LabState, node: Mapping[str, Any], alias: str) -> None:
    """Create one of a node's own system apps, with its config."""
    name, config = f"{alias}-{world.letters(9)}", f"{alias}-conf-{world.letters(9)}"
    labels = {SYSTEM: "true", NODE_NAME: node["name"], "baetyl-app-name": name}
    world.store.put(
        "config",
        config,
        {
            "name": config, "namespace": world.namespace, "labels": labels, "description": "", "system": True,
            "data": {"conf.yml": "logger:\n  level: debug\n"}, "version": world.version(),
            "createTime": world.now(), "updateTime": world.now(),
        },
    )  # fmt: skip
    invisible = {"resource-invisible": "true"} if alias in {"baetyl-core", "baetyl-init"} else {}
    mount = {"name": "conf", "mountPath": "/etc/baetyl", "readOnly": True}
    app = {
        "name": name, "namespace": world.namespace, "type": "container", "mode": node["nodeMode"], "system": True,
        "labels": {SYSTEM: "true", APP_MODE: node["nodeMode"], **invisible}, "selector": f"{NODE_NAME}={node['name']}",
        "nodeSelector": "", "description": "", "cronStatus": 0, "cronTime": world.now(), "createTime": world.now(),
        "replica": 1, "workload": "deployment", "dnsPolicy": "ClusterFirst", "initServices": [],
        "services": [{"name": alias, "image": f"docker.io/baetyltech/{alias}:{CORE_VERSION}", "volumeMounts": [mount]}],
        "volumes": [{"name": "conf", "config": {"name": config}}],
    }  # fmt: skip
    apps.keep(world, app)


def _remove_system_apps(world: LabState, node: str, chosen: Any) -> None:
    for app in world.apps_for({NODE_NAME: node}):
        if app["system"] and chosen(app["name"]):
            apps.delete(world, app["name"])
            for volume in app["volumes"]:
                if "config" in volume:
                    world.store.delete("config", volume["config"]["name"])


def not_ready(name: str) -> ApiError:
    """Return the error for a node that should run nothing, not even its own system."""
    return ApiError("ErrNodeNotReady", f"The node ({name} )is not ready, please retry later.")
