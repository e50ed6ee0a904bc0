"""Kubernetes objects as plain mappings: kinds, fields and events. It needs no client."""

from __future__ import annotations

from cloudedge.kube.objects._events import Notice, read_events, selector_of, state_of
from cloudedge.kube.objects._fields import dropped
from cloudedge.kube.objects._kinds import Kind, Object, api_version, identity, metadata, not_served, root

__all__ = [
    "Kind",
    "Notice",
    "Object",
    "api_version",
    "dropped",
    "identity",
    "metadata",
    "not_served",
    "read_events",
    "root",
    "selector_of",
    "state_of",
]
