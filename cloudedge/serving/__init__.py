"""Serving: bundles behind Paddle Serving's interfaces, on today's Paddle, several versions at once.

A `Runtime` loads bundles side by side and answers calls with the one the pointer says; a `Server` puts it behind HTTP,
gRPC and baidu_std; an `AdminServer` lets others load, probe, activate and unload, as `AdminClient` does from Python.
A `Client` asks for predictions.

The names are imported when they are first used: who only administers replicas needs nothing of what answers requests.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cloudedge.serving._admin import AdminServer
    from cloudedge.serving._admin_client import AdminClient
    from cloudedge.serving._client import Client, Prediction
    from cloudedge.serving._desired import Desired, DesiredVersion
    from cloudedge.serving._engine import Answer, Call, Engine
    from cloudedge.serving._export import TARGETS, ExportPlan, export, plan_export
    from cloudedge.serving._follower import Follower
    from cloudedge.serving._hotload import HotLoad, follow, load_into, publish_for_monitor
    from cloudedge.serving._limits import HttpLimits
    from cloudedge.serving._ops import Op, RequestOp, WebService, load_ops
    from cloudedge.serving._routing import Routing, Shadow, Variant
    from cloudedge.serving._rowsource import BundleRows, FoundRows, RowSource
    from cloudedge.serving._runtime import Runtime
    from cloudedge.serving._runtime_config import RuntimeConfig, VersionInfo
    from cloudedge.serving._server import Server, ServerConfig
    from cloudedge.serving._tls import Tls
    from cloudedge.serving._traces import Traces

__all__ = [
    "TARGETS",
    "AdminClient",
    "AdminServer",
    "Answer",
    "BundleRows",
    "Call",
    "Client",
    "Desired",
    "DesiredVersion",
    "Engine",
    "ExportPlan",
    "Follower",
    "FoundRows",
    "HotLoad",
    "HttpLimits",
    "Op",
    "Prediction",
    "RequestOp",
    "Routing",
    "RowSource",
    "Runtime",
    "RuntimeConfig",
    "Server",
    "ServerConfig",
    "Shadow",
    "Tls",
    "Traces",
    "Variant",
    "VersionInfo",
    "WebService",
    "export",
    "follow",
    "load_into",
    "load_ops",
    "plan_export",
    "publish_for_monitor",
]

_HOMES = {
    "_admin": ("AdminServer",),
    "_admin_client": ("AdminClient",),
    "_client": ("Client", "Prediction"),
    "_desired": ("Desired", "DesiredVersion"),
    "_engine": ("Answer", "Call", "Engine"),
    "_export": ("TARGETS", "ExportPlan", "export", "plan_export"),
    "_follower": ("Follower",),
    "_hotload": ("HotLoad", "follow", "load_into", "publish_for_monitor"),
    "_limits": ("HttpLimits",),
    "_ops": ("Op", "RequestOp", "WebService", "load_ops"),
    "_routing": ("Routing", "Shadow", "Variant"),
    "_rowsource": ("BundleRows", "FoundRows", "RowSource"),
    "_runtime": ("Runtime",),
    "_runtime_config": ("RuntimeConfig", "VersionInfo"),
    "_server": ("Server", "ServerConfig"),
    "_tls": ("Tls",),
    "_traces": ("Traces",),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"cloudedge.serving.{home}"), name)
    raise AttributeError(f"module 'cloudedge.serving' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
