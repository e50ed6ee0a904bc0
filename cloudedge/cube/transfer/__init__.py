"""Cube delivery: from what a trainer finished to versions that every replica of every shard answers from.

What travels is an `Artifact` (a shard's base, or a delta of its rows), made in a `Workshop`; where it goes is a
`Replica`; a `Delivery` brings versions to all of them and activates them together. Files are served by a `FileServer`
and brought in by `fetch`.
"""

from __future__ import annotations

from cloudedge.cube.transfer._artifact import Artifact, ArtifactFile, Source
from cloudedge.cube.transfer._courier import Courier
from cloudedge.cube.transfer._cube_replica import CubeReplica
from cloudedge.cube.transfer._deliver import Delivered, Delivery
from cloudedge.cube.transfer._fetch import Fetched, Throttle, fetch
from cloudedge.cube.transfer._files import FileServer
from cloudedge.cube.transfer._layout import Layout, ServerAddress
from cloudedge.cube.transfer._plan import DeliveryPlan, Observed, Policy, Step, Wanted, plan_delivery, plan_rollback
from cloudedge.cube.transfer._replica import Replica, ReplicaStatus, VersionState
from cloudedge.cube.transfer._reshard import Resharded, free_servers, reshard, write_conf
from cloudedge.cube.transfer._shards import ShardRows, TableVersion
from cloudedge.cube.transfer._watch import Expected, ReplicaReport, look, require_agreement
from cloudedge.cube.transfer._workshop import Workshop

__all__ = [
    "Artifact",
    "ArtifactFile",
    "Courier",
    "CubeReplica",
    "Delivered",
    "Delivery",
    "DeliveryPlan",
    "Expected",
    "Fetched",
    "FileServer",
    "Layout",
    "Observed",
    "Policy",
    "Replica",
    "ReplicaReport",
    "ReplicaStatus",
    "Resharded",
    "ServerAddress",
    "ShardRows",
    "Source",
    "Step",
    "TableVersion",
    "Throttle",
    "VersionState",
    "Wanted",
    "Workshop",
    "fetch",
    "free_servers",
    "look",
    "plan_delivery",
    "plan_rollback",
    "require_agreement",
    "reshard",
    "write_conf",
]
