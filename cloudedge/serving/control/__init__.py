"""Control of a replica: the admin client, the desired-state document, and the routing between versions."""

from __future__ import annotations

from cloudedge.serving.control._admin_client import AdminClient
from cloudedge.serving.control._desired import Desired, DesiredVersion
from cloudedge.serving.control._routing import Routing, Shadow, Variant

__all__ = ["AdminClient", "Desired", "DesiredVersion", "Routing", "Shadow", "Variant"]
