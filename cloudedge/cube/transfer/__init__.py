"""Delivery: versions of tables brought to every replica of every shard, and made active together or not at all."""

from __future__ import annotations

from cloudedge.cube.transfer._artifact import Artifact, ArtifactFile, Source
from cloudedge.cube.transfer._replica import Replica, ReplicaStatus, VersionState

__all__ = ["Artifact", "ArtifactFile", "Replica", "ReplicaStatus", "Source", "VersionState"]
