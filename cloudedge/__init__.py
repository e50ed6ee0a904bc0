"""cloudedge: one release, one version, everywhere, or nothing.

The names below are imported when they are first used, so that ``import cloudedge`` costs next to nothing and
pulls in no framework, no Kubernetes client and no Docker.
"""

from __future__ import annotations

from cloudedge._lazy import lazy_names

TYPE_CHECKING = False  # `typing` takes longer to import than everything here
if TYPE_CHECKING:
    from cloudedge.bundle import Bundle
    from cloudedge.config import Config
    from cloudedge.errors import CloudEdgeError
    from cloudedge.hub import Hub, LocalHub, open_hub
    from cloudedge.release import Target

__all__ = ["Bundle", "CloudEdgeError", "Config", "Hub", "LocalHub", "Target", "__version__", "open_hub"]

__version__ = "0.1.0"

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "bundle": ("Bundle",),
        "config": ("Config",),
        "errors": ("CloudEdgeError",),
        "hub": ("Hub", "LocalHub", "open_hub"),
        "release": ("Target",),
    },
)
