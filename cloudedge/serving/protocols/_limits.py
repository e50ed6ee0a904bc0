"""The limits of a serving replica, over all its protocols."""

from __future__ import annotations

from dataclasses import dataclass

from cloudedge.http1 import ConnectionLimits

__all__ = ["HttpLimits"]


@dataclass(frozen=True)
class HttpLimits(ConnectionLimits):
    """What one replica accepts, over HTTP and the other protocols. Immutable; checked when made.

    `max_connections` counts HTTP and baidu_std together, and gRPC apart.
    """

    max_calls: int = 256
    """Of gRPC, at once: each may hold a whole body before it is counted."""
    linger_s: float = 0.5
    """How long a server that stops still answers on connections that are kept open: each answer ends its connection."""
