"""Serving: bundles behind Paddle Serving's interfaces, on today's Paddle, several versions at once.

A `Runtime` loads bundles side by side and answers calls with the active one. A `Server` puts it behind HTTP, gRPC and
baidu_std. An `AdminServer` takes orders to load, probe, activate and unload; `AdminClient` gives them from Python.
A `Client` asks for predictions.

Names are imported on first use: a program that only administers replicas loads none of the modules that answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudedge._lazy import lazy_names

if TYPE_CHECKING:
    from cloudedge.serving.client import Client, EndpointPolicy, EndpointState, Prediction
    from cloudedge.serving.control import AdminClient, Desired, DesiredVersion, Routing, Shadow, Variant
    from cloudedge.serving.engine import Answer, Call, Engine
    from cloudedge.serving.model import BundleRows, FoundRows, RowSource
    from cloudedge.serving.protocols import HttpLimits, Op, RequestOp, Tls, Traces, WebService, load_ops
    from cloudedge.serving.runtime import Follower, Runtime, RuntimeConfig, VersionInfo
    from cloudedge.serving.server import AdminServer, Server, ServerConfig
    from cloudedge.serving.stock import (
        TARGETS,
        ExportPlan,
        HotLoad,
        export,
        follow,
        load_into,
        plan_export,
        publish_for_monitor,
    )

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
    "EndpointPolicy",
    "EndpointState",
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

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "client": (
            "Client",
            "EndpointPolicy",
            "EndpointState",
            "Prediction",
        ),
        "control": (
            "AdminClient",
            "Desired",
            "DesiredVersion",
            "Routing",
            "Shadow",
            "Variant",
        ),
        "engine": (
            "Answer",
            "Call",
            "Engine",
        ),
        "model": (
            "BundleRows",
            "FoundRows",
            "RowSource",
        ),
        "protocols": (
            "HttpLimits",
            "Op",
            "RequestOp",
            "Tls",
            "Traces",
            "WebService",
            "load_ops",
        ),
        "runtime": (
            "Follower",
            "Runtime",
            "RuntimeConfig",
            "VersionInfo",
        ),
        "server": (
            "AdminServer",
            "Server",
            "ServerConfig",
        ),
        "stock": (
            "ExportPlan",
            "HotLoad",
            "TARGETS",
            "export",
            "follow",
            "load_into",
            "plan_export",
            "publish_for_monitor",
        ),
    },
)
