"""The limits of one HTTP server, and the bytes it holds for its clients."""

from __future__ import annotations

from dataclasses import dataclass

from cloudedge.errors import ConfigError

__all__ = ["ConnectionLimits", "HeldBytes"]


@dataclass(frozen=True)
class ConnectionLimits:
    """The limits of one server's clients. Immutable; checked when made."""

    max_body_bytes: int = 64 * 1024 * 1024
    """The most bytes of a request, in every protocol, compressed or not."""
    max_answer_bytes: int = 64 * 1024 * 1024
    """The most bytes of an answer, in every protocol."""
    max_head_bytes: int = 32 * 1024
    """The most bytes of a request's line and headers."""
    max_held_bytes: int = 512 * 1024 * 1024
    """The most bytes of requests from their first byte until they are answered, over all connections."""
    max_connections: int = 4096
    idle_timeout_s: float = 75.0
    """For a connection between two requests."""
    body_timeout_s: float = 30.0
    """From a request's first byte to its last."""
    write_timeout_s: float = 30.0
    """For a client that does not read its answers."""

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
        """Add bytes, and tell whether the sum is within the limit; the caller gives them back either way."""
        self.count += count
        return self.count <= self._limit

    def give(self, count: int) -> None:
        """Subtract bytes."""
        self.count -= count
