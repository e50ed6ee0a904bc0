"""HTTP/1.1 on this side of the wire: the proxy that switches a service between versions."""

from __future__ import annotations

__all__ = []
