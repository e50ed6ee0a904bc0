"""BIE's resources and the rules for them: apps, configs, secrets, nodes, and the desired apps of each node."""

from __future__ import annotations

from cloudedge.edge_bie.lab.resources import apps, configs, desires, nodes, secrets
from cloudedge.edge_bie.lab.resources._node_view import NEVER, OFFLINE, ONLINE, readiness, show

__all__ = ["NEVER", "OFFLINE", "ONLINE", "apps", "configs", "desires", "nodes", "readiness", "secrets", "show"]
