"""A runtime behind its ports: the data port, the admin API, and reports of both."""

from __future__ import annotations

from cloudedge.serving.server._admin_api import AdminServer
from cloudedge.serving.server._assemble import ReplicaHooks, ReplicaSettings, run_replica
from cloudedge.serving.server._server import Server, ServerConfig

__all__ = ["AdminServer", "ReplicaHooks", "ReplicaSettings", "Server", "ServerConfig", "run_replica"]
