"""Limits of a server: sizes, counts and time-outs, and the bytes of requests under way."""

from __future__ import annotations

from dataclasses import dataclass

from cloudedge.errors import ConfigError

__all__ = ["HeldBytes", "HttpLimits"]


@dataclass(frozen=True)
class HttpLimits:
    """The limits of one server, over HTTP and the other protocols. Immutable; checked when made."""

    max_body_bytes: int = 64 * 1024 * 1024
    """Most bytes of a request, in every protocol, compressed or not."""
    max_answer_bytes: int = 64 * 1024 * 1024
    """Most bytes of an answer, in every protocol."""
    max_head_bytes: int = 32 * 1024
    """Most bytes of a request's line and headers."""
    max_held_bytes: int = 512 * 1024 * 1024
    """Most bytes of requests from their first byte to their answer, over all connections."""
    max_connections: int = 4096
    """Most connections of HTTP and baidu_std together, and of gRPC."""
    max_calls: int = 256
    """Most gRPC calls at once: each may hold a whole body before it is counted."""
    idle_timeout_s: float = 75.0
    """Longest time of a connection between two requests."""
    body_timeout_s: float = 30.0
    """Longest time from a request's first byte to its last."""
    write_timeout_s: float = 30.0
    """Longest wait for a client that does not read its answers."""
    linger_s: float = 0.5
    """Time for which a stopping server still answers on open connections: each answer ends its connection."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value <= 0:
                raise ConfigError(f"{name} must be above 0, not {value}")


class HeldBytes:
    """Counts the bytes of requests that are being received or answered; used on one thread."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.count = 0

    def take(self, count: int) -> bool:
        """Add bytes; return True if the sum is within the limit. The caller gives them back either way."""
        self.count += count
        return self.count <= self._limit

    def give(self, count: int) -> None:
        """Subtract bytes."""
        self.count -= count
