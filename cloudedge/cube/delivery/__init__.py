"""Delivery to cloudedge's own cube servers: artifacts, plans, replicas, resharding."""

from __future__ import annotations

from cloudedge.cube.delivery._artifact_cache import ArtifactCache
from cloudedge.cube.delivery._cube_replica import CubeReplica
from cloudedge.cube.delivery._delivery import DELIVER, Delivered, Delivery, SwitchReport, has_moved
from cloudedge.cube.delivery._delivery_plan import (
    DeliveryPlan,
    DeliveryPolicy,
    DeliveryStep,
    ObservedReplica,
    WantedVersion,
    plan_delivery,
    plan_rollback,
)
from cloudedge.cube.delivery._replica import Replica, ReplicaStatus, VersionState
from cloudedge.cube.delivery._replica_delivery import ReplicaDelivery, ReplicaPlan
from cloudedge.cube.delivery._replica_report import Expected, ReplicaReport, look, look_twice, require_agreement
from cloudedge.cube.delivery._replica_steps import observe, table_of
from cloudedge.cube.delivery._reshard import Resharded, free_servers, require_apart, require_live, reshard, write_conf
from cloudedge.cube.delivery._row_changes import find_rows
from cloudedge.cube.delivery._server_layout import ServerAddress, ServerLayout
from cloudedge.cube.delivery._table_shards import ShardRows, TableVersion

__all__ = [
    "DELIVER",
    "ArtifactCache",
    "CubeReplica",
    "Delivered",
    "Delivery",
    "DeliveryPlan",
    "DeliveryPolicy",
    "DeliveryStep",
    "Expected",
    "ObservedReplica",
    "Replica",
    "ReplicaDelivery",
    "ReplicaPlan",
    "ReplicaReport",
    "ReplicaStatus",
    "Resharded",
    "ServerAddress",
    "ServerLayout",
    "ShardRows",
    "SwitchReport",
    "TableVersion",
    "VersionState",
    "WantedVersion",
    "find_rows",
    "free_servers",
    "has_moved",
    "look",
    "look_twice",
    "observe",
    "plan_delivery",
    "plan_rollback",
    "require_agreement",
    "require_apart",
    "require_live",
    "reshard",
    "table_of",
    "write_conf",
]
