"""Fields of admin answers that were renamed. Servers answer both names; clients read either and use the new one.

free_memory_bytes    was memory_free_bytes, at serving replicas
keys                 was ids, in the statistics of serving replicas
missing_keys         was ids_missing, there
defaulted_keys       was ids_defaulted, there
pin                  was name, for a version of a cube server
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["with_free_memory", "with_key_counts", "with_pin"]

_FREE, _OLD_FREE = "free_memory_bytes", "memory_free_bytes"
_KEY_COUNTS = {"keys": "ids", "missing_keys": "ids_missing", "defaulted_keys": "ids_defaulted"}


def with_free_memory(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer with the free memory under its name and under the old one; unknown memory is None."""
    free = answer.get(_FREE, answer.get(_OLD_FREE))
    return {**answer, _FREE: free, _OLD_FREE: free}


def with_pin(version: Mapping[str, Any]) -> dict[str, Any]:
    """Return a cube server's version with its name under ``pin``; older servers answer ``name`` alone."""
    return {"pin": version.get("name"), **version}


def with_key_counts(statistics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the statistics of a serving replica's version with each count of keys under both its names."""
    both = dict(statistics)
    for new, old in _KEY_COUNTS.items():
        if new in statistics or old in statistics:
            both[new] = both[old] = statistics.get(new, statistics.get(old))
    return both
