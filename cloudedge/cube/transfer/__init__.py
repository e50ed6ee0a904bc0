"""Cube delivery: from what a trainer finished to versions that every replica of every shard answers from.

What travels is an `Artifact` (a shard's base, or a delta of its rows); where it goes is a `Replica`; files are served
by a `FileServer` and brought in by `fetch`.
"""

from __future__ import annotations

from cloudedge.cube.transfer._artifact import Artifact, ArtifactFile, Source
from cloudedge.cube.transfer._fetch import Fetched, Throttle, fetch
from cloudedge.cube.transfer._files import FileServer
from cloudedge.cube.transfer._replica import Replica, ReplicaStatus, VersionState

__all__ = [
    "Artifact",
    "ArtifactFile",
    "Fetched",
    "FileServer",
    "Replica",
    "ReplicaStatus",
    "Source",
    "Throttle",
    "VersionState",
    "fetch",
]
