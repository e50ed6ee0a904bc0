"""cloudedge's own edge node: BAETYL's protocol, verified and resumable downloads, and hand-over without downtime."""

from cloudedge.edge_bie.node._agent import NodeAgent, NodeSettings
from cloudedge.edge_bie.node._docker import DockerRuntime
from cloudedge.edge_bie.node._rights import Rights
from cloudedge.edge_bie.node._runtime import ProcessRuntime, Runtime, Supervised
from cloudedge.edge_bie.node._sync import Link
from cloudedge.edge_bie.node._units import remembered

__all__ = [
    "DockerRuntime",
    "Link",
    "NodeAgent",
    "NodeSettings",
    "ProcessRuntime",
    "Rights",
    "Runtime",
    "Supervised",
    "remembered",
]
