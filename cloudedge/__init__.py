"""cloudedge: one release, one version, everywhere, or nothing.

The names below are imported when they are first used, so that ``import cloudedge`` costs next to nothing and
pulls in no framework, no Kubernetes client and no Docker.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cloudedge.bundle import Bundle
    from cloudedge.config import Config
    from cloudedge.errors import CloudEdgeError
    from cloudedge.hub import Hub, LocalHub, open_hub
    from cloudedge.release import Target

__all__ = ["Bundle", "CloudEdgeError", "Config", "Hub", "LocalHub", "Target", "__version__", "open_hub"]

__version__ = "0.1.0"

_HOMES = {
    "Bundle": "cloudedge.bundle",
    "CloudEdgeError": "cloudedge.errors",
    "Config": "cloudedge.config",
    "Hub": "cloudedge.hub",
    "LocalHub": "cloudedge.hub",
    "Target": "cloudedge.release",
    "open_hub": "cloudedge.hub",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'cloudedge' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
