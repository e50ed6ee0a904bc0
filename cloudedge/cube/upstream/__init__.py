"""Delivery to Paddle Serving's own cube servers, and from the donefiles of its trainers."""

from __future__ import annotations

from cloudedge.cube.upstream._atomic_switch import AtomicSwitch
from cloudedge.cube.upstream._configured import ConfiguredTransfer
from cloudedge.cube.upstream._cube_transfer import CubeTransfer
from cloudedge.cube.upstream._donefile_source import Choice, Donefiles, DonefileSource, Work, choose
from cloudedge.cube.upstream._status_server import StatusServer
from cloudedge.cube.upstream._transfer import Transfer, TransferReport
from cloudedge.cube.upstream._upstream_delivery import UpstreamDelivery
from cloudedge.cube.upstream._upstream_fleet import TransferOptions, UpstreamFleet
from cloudedge.cube.upstream._upstream_replica import UpstreamReplica, UpstreamTimes
from cloudedge.cube.upstream._version_ids import VersionIds, journal_memory

__all__ = [
    "AtomicSwitch",
    "Choice",
    "ConfiguredTransfer",
    "CubeTransfer",
    "DonefileSource",
    "Donefiles",
    "StatusServer",
    "Transfer",
    "TransferOptions",
    "TransferReport",
    "UpstreamDelivery",
    "UpstreamFleet",
    "UpstreamReplica",
    "UpstreamTimes",
    "VersionIds",
    "Work",
    "choose",
    "journal_memory",
]
