"""Telling a replica which versions to hold and which of them answers."""

from __future__ import annotations

from cloudedge.serving.control._admin_client import AdminClient
from cloudedge.serving.control._desired import Desired, DesiredVersion
from cloudedge.serving.control._routing import Routing, Shadow, Variant

__all__ = ["AdminClient", "Desired", "DesiredVersion", "Routing", "Shadow", "Variant"]
