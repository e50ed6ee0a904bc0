"""The server: a runtime behind its ports, the data port and the admin API, with metrics of both."""

from __future__ import annotations

from cloudedge.serving.server._admin_api import AdminServer
from cloudedge.serving.server._assemble import ReplicaHooks, ReplicaSettings, run_replica
from cloudedge.serving.server._server import Server, ServerConfig

__all__ = ["AdminServer", "ReplicaHooks", "ReplicaSettings", "Server", "ServerConfig", "run_replica"]
