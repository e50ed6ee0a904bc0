"""Paddle Serving's cube-server and cube-agent as they behave, faults included, on real sockets in this process.

`UpstreamServer` answers seeks and control commands from two slots, `UpstreamAgent` downloads, reloads and enables the
way the original does, and `UpstreamCluster` runs both for every shard and copy of a table.
"""

from __future__ import annotations

from cloudedge.testing.upstream_cube._agent import UpstreamAgent
from cloudedge.testing.upstream_cube._cluster import Instance, UpstreamCluster
from cloudedge.testing.upstream_cube._dict import Dict, LoadFailed, load_base, load_patch
from cloudedge.testing.upstream_cube._server import UpstreamServer

__all__ = [
    "Dict",
    "Instance",
    "LoadFailed",
    "UpstreamAgent",
    "UpstreamCluster",
    "UpstreamServer",
    "load_base",
    "load_patch",
]
