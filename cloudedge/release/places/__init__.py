"""Cube servers and serving replicas as places of a release, wherever they run."""

from __future__ import annotations

from cloudedge.release.places._cube_rows import CubeRows
from cloudedge.release.places._server_names import cube_conf, live_shards, parse_place, shard_place
from cloudedge.release.places._servers import (
    Dispatch,
    ServingPlace,
    ShardPlace,
    changed_bytes,
    loaded_state,
    require_probed,
    shard_replica,
    shares_in,
    tables_of,
    traffic_of,
    traffic_since,
)

__all__ = [
    "CubeRows",
    "Dispatch",
    "ServingPlace",
    "ShardPlace",
    "changed_bytes",
    "cube_conf",
    "live_shards",
    "loaded_state",
    "parse_place",
    "require_probed",
    "shard_place",
    "shard_replica",
    "shares_in",
    "tables_of",
    "traffic_of",
    "traffic_since",
]
