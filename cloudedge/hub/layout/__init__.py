"""Hubs kept as an OCI image layout, in a directory or in an object store."""

from __future__ import annotations

from cloudedge.hub.layout._layout_hub import LayoutHub
from cloudedge.hub.layout._local_hub import LocalHub

__all__ = ["LayoutHub", "LocalHub"]
