"""The lab: a control plane for edge nodes that behaves like BIE's, traps included, on one machine without an account.

It needs `pip install 'cloudedge[serve]'`.
"""

from __future__ import annotations

from cloudedge.edge_bie.lab._lab import NAMESPACE, Lab
from cloudedge.edge_bie.lab.ports import Faults

__all__ = ["NAMESPACE", "Faults", "Lab"]
