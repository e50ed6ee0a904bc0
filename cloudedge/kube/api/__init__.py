"""Requests to the API server: the session, its errors, discovery, lists and writes."""

from __future__ import annotations

from cloudedge.kube.api._discovery import PADDLE_SERVICES, Capabilities, Discovery, schema_has
from cloudedge.kube.api._errors import Passing, Status, refusal
from cloudedge.kube.api._listing import listed
from cloudedge.kube.api._session import ATTEMPTS, Session, configured
from cloudedge.kube.api._websocket import BROKEN
from cloudedge.kube.api._writes import APPLY, MERGE, Write

__all__ = [
    "APPLY",
    "ATTEMPTS",
    "BROKEN",
    "MERGE",
    "PADDLE_SERVICES",
    "Capabilities",
    "Discovery",
    "Passing",
    "Session",
    "Status",
    "Write",
    "configured",
    "listed",
    "refusal",
    "schema_has",
]
