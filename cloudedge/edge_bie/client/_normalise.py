"""Equality of objects: fields that the server adds, mirrors or reorders by itself make no difference.

The server's own comparison does not help: it considers equal probes different and an absent ``autoScaleCfg`` a change,
and ignores ``startupProbe``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloudedge.edge_bie.client._apps import MIRRORED, App
from cloudedge.edge_bie.client._configs import Config, File, Registry, Secret
from cloudedge.edge_bie.client._diff import Difference, compare

__all__ = ["Thing", "differences", "kept_by_server", "normal", "same"]

Thing = Config | Secret | Registry | App

_SERVER = frozenset({"version", "namespace", "createTime", "updateTime", "system"})
_APP = frozenset({"cronTime", "cronStatus", "ota"})
_DEFAULTS = {"mode": "kube", "type": "container", "workload": "deployment", "dnsPolicy": "ClusterFirst"}
_PORT = {"protocol": "TCP", "serviceType": "ClusterIP"}
_JOB = {"restartPolicy": "Never"}
_LABELS = frozenset({"baetyl-app-mode"})


def normal(thing: Thing) -> dict[str, Any]:
    """Return the significant fields of an object, in one canonical form.

    A registry's password is not part of it: BIE never returns it.
    """
    if isinstance(thing, App):
        return _app(thing.to_json())
    value = {k: v for k, v in thing.to_json().items() if k not in _SERVER and k != "password"}
    if isinstance(thing, Config):
        value["data"] = {
            key: item.to_value() if isinstance(item, File) else {"type": "kv", "value": item.value}
            for key, item in thing.items.items()
        }
        return _pruned({k: v for k, v in value.items() if k != "data"}) | {"data": value["data"]}
    return _pruned(value)


def differences(old: Thing, new: Thing) -> list[Difference]:
    """Return the differences that writing one over the other would make."""
    return list(compare(normal(old), normal(new), hide="data" if isinstance(new, Secret) else ""))


def same(one: Thing, other: Thing) -> bool:
    """Return True if writing one over the other would change nothing."""
    return normal(one) == normal(other)


def kept_by_server(current: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that an update must send back unchanged."""
    kept = {k: v for k, v in current.items() if k in (*_SERVER, *_APP)}
    if not _pruned(current.get("autoScaleCfg") or {}):
        # Stored as an empty object; leaving it out counts as a change and redeploys.
        kept["autoScaleCfg"] = current.get("autoScaleCfg") or {}
    return kept


def _app(value: Mapping[str, Any]) -> dict[str, Any]:
    app = {k: v for k, v in value.items() if k not in _SERVER and k not in _APP}
    app = {k: v for k, v in app.items() if _DEFAULTS.get(k) != v}
    app["labels"] = {k: v for k, v in (app.get("labels") or {}).items() if k not in _LABELS}
    if {k: v for k, v in (app.get("jobConfig") or _JOB).items() if v} == _JOB:
        app.pop("jobConfig", None)
    # A trailing blank marks a change that the server would not notice otherwise.
    app["description"] = str(app.get("description") or "").rstrip()
    for kind in ("services", "initServices"):
        app[kind] = [_service(service) for service in app.get(kind) or ()]
    app["volumes"] = {volume["name"]: _volume(volume) for volume in app.get("volumes") or ()}
    app["registries"] = sorted(entry["name"] for entry in app.get("registries") or ())
    return _pruned(app)


def _service(value: Mapping[str, Any]) -> dict[str, Any]:
    service = {k: v for k, v in value.items() if k not in MIRRORED}
    service["image"] = str(service.get("image") or "").strip()
    service["volumeMounts"] = [
        {k: v for k, v in mount.items() if k != "immutable"} for mount in service.get("volumeMounts") or ()
    ]
    service["ports"] = [_port(port) for port in service.get("ports") or ()]
    return _pruned(service)


def _port(value: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in value.items() if _PORT.get(k) != v}


def _volume(value: Mapping[str, Any]) -> dict[str, Any]:
    return {
        kind: {k: v for k, v in inner.items() if k != "version"} if isinstance(inner, Mapping) else inner
        for kind, inner in value.items()
        if inner and kind != "name"
    }


def _pruned(value: Mapping[str, Any]) -> dict[str, Any]:
    """Drop absent, null, empty and false values, which are the same to BIE. Elements of lists stay."""
    cleaned = {key: _inside(inner) for key, inner in value.items()}
    return {k: v for k, v in cleaned.items() if v is not None and v is not False and v not in ("", [], {})}


def _inside(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _pruned(value)
    return [_inside(inner) for inner in value] if isinstance(value, (list, tuple)) else value
