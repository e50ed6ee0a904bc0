"""The lab's three ports: the management API, the nodes' sync API and the object files, with faults on demand."""

from __future__ import annotations

from cloudedge.edge_bie.lab.ports._admin import answer_admin
from cloudedge.edge_bie.lab.ports._faults import Chance, Faults
from cloudedge.edge_bie.lab.ports._objects import ObjectFiles
from cloudedge.edge_bie.lab.ports._request_pipeline import Front
from cloudedge.edge_bie.lab.ports._requests import CRASHED, LIMITS, RequestHandler, on_calls
from cloudedge.edge_bie.lab.ports._sync import answer_sync

__all__ = [
    "CRASHED",
    "LIMITS",
    "Chance",
    "Faults",
    "Front",
    "ObjectFiles",
    "RequestHandler",
    "answer_admin",
    "answer_sync",
    "on_calls",
]
