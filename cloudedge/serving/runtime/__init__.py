"""The runtime: versions loaded side by side in one process, and the routing that chooses one for each request."""

from __future__ import annotations

from cloudedge.serving.runtime._config import RuntimeConfig, VersionInfo
from cloudedge.serving.runtime._follower import Follower
from cloudedge.serving.runtime._runtime import Runtime

__all__ = ["Follower", "Runtime", "RuntimeConfig", "VersionInfo"]
