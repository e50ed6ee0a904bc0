"""Serving: bundles behind Paddle Serving's interfaces, on today's Paddle, several versions at once.

A `Runtime` loads bundles side by side and answers calls with the one the pointer says; a `Server` puts it behind HTTP,
gRPC and baidu_std; an `AdminServer` lets others load, probe, activate and unload, as `AdminClient` does from Python.
"""

from cloudedge.serving._admin import AdminServer
from cloudedge.serving._admin_client import AdminClient
from cloudedge.serving._engine import Answer, Call, Engine
from cloudedge.serving._http import HttpLimits
from cloudedge.serving._ops import Op, RequestOp, WebService, load_ops
from cloudedge.serving._routing import Routing, Shadow, Variant
from cloudedge.serving._rowsource import FoundRows, RowSource
from cloudedge.serving._runtime import Runtime, RuntimeConfig, VersionInfo
from cloudedge.serving._server import Server, ServerConfig

__all__ = [
    "AdminClient",
    "AdminServer",
    "Answer",
    "Call",
    "Engine",
    "FoundRows",
    "HttpLimits",
    "Op",
    "RequestOp",
    "Routing",
    "RowSource",
    "Runtime",
    "RuntimeConfig",
    "Server",
    "ServerConfig",
    "Shadow",
    "Variant",
    "VersionInfo",
    "WebService",
    "load_ops",
]
