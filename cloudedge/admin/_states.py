"""The states of a version at a server, as admin answers name them.

Cube and serving servers share these names, with one difference in meaning. A cube server's version is ``loaded`` once
its rows are in memory; the caller verifies it. A serving replica's version is ``ready`` once it is loaded, measured and
asked its probes: the replica verifies as part of the load.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "DRAINING",
    "FAILED",
    "LOADED",
    "LOADING",
    "PARTIAL",
    "QUEUED",
    "READY",
    "STAGED",
    "STAGING",
    "UNDER_WAY",
    "UNLOADED",
    "UNLOADING",
]

QUEUED: Final = "queued"
"""Accepted; work has not begun."""
STAGING: Final = "staging"
"""The server fetches its files."""
PARTIAL: Final = "partial"
"""Some of its files are there, and no fetch is under way."""
STAGED: Final = "staged"
"""All its files are there; it is not in memory."""
LOADING: Final = "loading"
LOADED: Final = "loaded"
"""In memory, at a cube server."""
READY: Final = "ready"
"""In memory, and its probes have run, at a serving replica."""
UNLOADING: Final = "unloading"
"""Its last requests are being answered."""
UNLOADED: Final = "unloaded"
"""The answer to an unload; such a version is listed no more."""
FAILED: Final = "failed"
"""Staging or loading it failed; ``error`` states why."""
DRAINING: Final = "draining"
"""Of a server, not of a version: it finishes what is under way and ends."""

UNDER_WAY: Final = frozenset({QUEUED, STAGING, LOADING})
"""States that a server leaves without further calls."""
