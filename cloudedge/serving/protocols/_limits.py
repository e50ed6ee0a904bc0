"""Limits of a serving replica, over all its protocols."""

from __future__ import annotations

from dataclasses import dataclass

from cloudedge.http1 import ConnectionLimits
from cloudedge.serving.formats import BodyLimits

__all__ = ["HttpLimits"]


@dataclass(frozen=True)
class HttpLimits(ConnectionLimits):
    """The limits of one replica, over HTTP and the other protocols. Immutable; checked when made.

    `max_connections` counts HTTP and baidu_std together, and gRPC apart.
    """

    max_inflated_bytes: int = BodyLimits.max_inflated_bytes
    """Most bytes of a compressed request, decompressed."""
    max_inflate_ratio: int = BodyLimits.max_inflate_ratio
    """Most bytes that one compressed byte becomes; applies to requests of more than 1 MiB, decompressed."""
    max_parsed_bytes: int = BodyLimits.max_parsed_bytes
    """Most memory of a request's messages, tensors, texts and numbers once it is parsed, as estimated."""
    max_calls: int = 256
    """Most gRPC calls at once: each may hold a whole body before it is counted."""
    linger_s: float = 0.5
    """Time for which a stopping server still answers on open connections: each answer ends its connection."""

    @property
    def bodies(self) -> BodyLimits:
        """The limits of what one body may become."""
        return BodyLimits(
            min(self.max_inflated_bytes, self.max_body_bytes), self.max_inflate_ratio, self.max_parsed_bytes
        )
