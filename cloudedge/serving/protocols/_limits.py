"""Limits of a serving replica, over all its protocols."""

from __future__ import annotations

from dataclasses import dataclass

from cloudedge.http1 import ConnectionLimits

__all__ = ["HttpLimits"]


@dataclass(frozen=True)
class HttpLimits(ConnectionLimits):
    """The limits of one replica, over HTTP and the other protocols. Immutable; checked when made.

    `max_connections` counts HTTP and baidu_std together, and gRPC apart.
    """

    max_calls: int = 256
    """Most gRPC calls at once: each may hold a whole body before it is counted."""
    linger_s: float = 0.5
    """Time for which a stopping server still answers on open connections: each answer ends its connection."""
