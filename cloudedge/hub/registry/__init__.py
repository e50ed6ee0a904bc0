"""Hubs in an OCI registry: authentication, uploads, and tags with their history."""

from __future__ import annotations

from cloudedge.hub.registry._registry_hub import RegistryHub, RegistrySettings, open_registry

__all__ = ["RegistryHub", "RegistrySettings", "open_registry"]
