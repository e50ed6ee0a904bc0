"""Delivery to Paddle Serving's own cube servers, and from the donefiles of its trainers."""

from __future__ import annotations

from cloudedge.cube.upstream._configured import ConfiguredTransfer
from cloudedge.cube.upstream._cube_transfer import CubeTransfer
from cloudedge.cube.upstream._status_server import StatusServer
from cloudedge.cube.upstream._transfer import Transfer, TransferReport
from cloudedge.cube.upstream.servers import (
    AtomicSwitch,
    TransferOptions,
    UpstreamDelivery,
    UpstreamFleet,
    UpstreamReplica,
    UpstreamTimes,
    VersionIds,
    journal_memory,
)
from cloudedge.cube.upstream.sources import Choice, Donefiles, DonefileSource, Work, choose

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
