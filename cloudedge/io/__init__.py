"""Files, memory and the network as every room uses them."""

from __future__ import annotations

from cloudedge.io._bounded_body import read_body
from cloudedge.io._memory import free_memory_bytes

__all__ = ["free_memory_bytes", "read_body"]
