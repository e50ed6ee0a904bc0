"""Fields of admin answers that were renamed: servers answer both names, clients read the new one.

free_memory_bytes    was memory_free_bytes, at serving replicas
pin                  was name, for a version of a cube server
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["with_free_memory", "with_pin"]

_FREE, _OLD_FREE = "free_memory_bytes", "memory_free_bytes"


def with_free_memory(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer with the free memory under its name and under the old one; unknown memory is None."""
    free = answer.get(_FREE, answer.get(_OLD_FREE))
    return {**answer, _FREE: free, _OLD_FREE: free}


def with_pin(version: Mapping[str, Any]) -> dict[str, Any]:
    """Return a cube server's version with its name under ``pin``; older servers answer ``name`` alone."""
    return {"pin": version.get("name"), **version}
