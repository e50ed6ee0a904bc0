"""Cube delivery: from what a trainer finished to versions that every replica of every shard answers from.

What travels is an `Artifact` (a shard's base, or a delta of its rows), made in a `Workshop`; where it goes is a
`Replica`; a `Delivery` brings versions to all of them and activates them together. Files are served by a `FileServer`
and brought in by `fetch`.

Upstream's servers are reached as `UpstreamReplica` and switched together by a `GuardedSwitch`; an `UpstreamFleet` opens
them for a delivery of bundles' tables, and a `Transfer` keeps them on what a trainer's donefiles say, which a
`DonefileSource` reads wherever they lie.
"""

from __future__ import annotations

from cloudedge.cube._artifact import Artifact, ArtifactFile, Source
from cloudedge.cube._fetch import Fetched, Throttle, fetch
from cloudedge.cube._files import FileServer
from cloudedge.cube.transfer._configured import ConfiguredTransfer
from cloudedge.cube.transfer._courier import Courier
from cloudedge.cube.transfer._cube_replica import CubeReplica
from cloudedge.cube.transfer._cube_transfer import CubeTransfer
from cloudedge.cube.transfer._deliver import Delivered, Delivery
from cloudedge.cube.transfer._guarded import GuardedSwitch, SwitchReport
from cloudedge.cube.transfer._ids import VersionIds, journal_memory
from cloudedge.cube.transfer._layout import Layout, ServerAddress
from cloudedge.cube.transfer._plan import DeliveryPlan, Observed, Policy, Step, Wanted, plan_delivery, plan_rollback
from cloudedge.cube.transfer._replica import Replica, ReplicaStatus, VersionState
from cloudedge.cube.transfer._reshard import (
    Resharded,
    free_servers,
    require_apart,
    require_live,
    reshard,
    write_conf,
)
from cloudedge.cube.transfer._shards import ShardRows, TableVersion
from cloudedge.cube.transfer._sources import Choice, Donefiles, DonefileSource, Work, choose
from cloudedge.cube.transfer._status import StatusServer
from cloudedge.cube.transfer._transfer import Transfer, TransferReport
from cloudedge.cube.transfer._upstream import UpstreamReplica, UpstreamTimes
from cloudedge.cube.transfer._upstream_delivery import UpstreamDelivery
from cloudedge.cube.transfer._upstream_fleet import TransferOptions, UpstreamFleet
from cloudedge.cube.transfer._watch import Expected, ReplicaReport, look, look_twice, require_agreement
from cloudedge.cube.transfer._workshop import Workshop

__all__ = [
    "Artifact",
    "ArtifactFile",
    "Choice",
    "ConfiguredTransfer",
    "Courier",
    "CubeReplica",
    "CubeTransfer",
    "Delivered",
    "Delivery",
    "DeliveryPlan",
    "DonefileSource",
    "Donefiles",
    "Expected",
    "Fetched",
    "FileServer",
    "GuardedSwitch",
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
    "StatusServer",
    "Step",
    "SwitchReport",
    "TableVersion",
    "Throttle",
    "Transfer",
    "TransferOptions",
    "TransferReport",
    "UpstreamDelivery",
    "UpstreamFleet",
    "UpstreamReplica",
    "UpstreamTimes",
    "VersionIds",
    "VersionState",
    "Wanted",
    "Work",
    "Workshop",
    "choose",
    "fetch",
    "free_servers",
    "journal_memory",
    "look",
    "look_twice",
    "plan_delivery",
    "plan_rollback",
    "require_agreement",
    "require_apart",
    "require_live",
    "reshard",
    "write_conf",
]
