"""Upstream's cube servers: one replica, the fleet of all shards, delivery to it and its atomic switch."""

from __future__ import annotations

from cloudedge.cube.upstream.servers._atomic_switch import AtomicSwitch
from cloudedge.cube.upstream.servers._upstream_delivery import UpstreamDelivery
from cloudedge.cube.upstream.servers._upstream_fleet import TransferOptions, UpstreamFleet
from cloudedge.cube.upstream.servers._upstream_replica import UpstreamReplica, UpstreamTimes
from cloudedge.cube.upstream.servers._version_ids import VersionIds, journal_memory

__all__ = [
    "AtomicSwitch",
    "TransferOptions",
    "UpstreamDelivery",
    "UpstreamFleet",
    "UpstreamReplica",
    "UpstreamTimes",
    "VersionIds",
    "journal_memory",
]
