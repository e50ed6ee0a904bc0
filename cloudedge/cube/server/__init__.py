"""The cube server: versions on disk and in memory, its admin API, and the files it serves to other replicas."""

from __future__ import annotations

from cloudedge.cube.server._admin_api import AdminServer
from cloudedge.cube.server._assemble import ShardHooks, ShardSettings, find_version, run_shard
from cloudedge.cube.server._download import Fetched, fetch, plain_url
from cloudedge.cube.server._file_server import FileServer
from cloudedge.cube.server._server import Server, ServerConfig, VersionInfo
from cloudedge.cube.server._version_store import VersionStore
from cloudedge.io import Throttle

__all__ = [
    "AdminServer",
    "Fetched",
    "FileServer",
    "Server",
    "ServerConfig",
    "ShardHooks",
    "ShardSettings",
    "Throttle",
    "VersionInfo",
    "VersionStore",
    "fetch",
    "find_version",
    "plain_url",
    "run_shard",
]
