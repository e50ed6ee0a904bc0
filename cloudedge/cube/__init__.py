"""Cube: the sparse half of a model, in Paddle Serving's formats.

`build` makes parts from SequenceFiles and tables. `PartStore` looks rows up in parts, `Server` and `AdminServer` serve
them, `Client` and `AsyncClient` read rows from many shards. cube.conf, transfer.conf, gflags.conf and donefiles are
read and written as Paddle Serving does.
"""

from __future__ import annotations

from cloudedge._lazy import renamed_names
from cloudedge.cube.builder import (
    MAX_VALUE_BYTES,
    BuildPlan,
    BuildReport,
    CheckReport,
    DumpReport,
    PartReport,
    PartStore,
    build,
    check,
    dump,
    inspect,
    plan_build,
    run_build,
)
from cloudedge.cube.client import (
    AsyncClient,
    Client,
    ClientConfig,
    SeekResult,
    ShardUnavailable,
    UnknownVersion,
    VersionSkew,
)
from cloudedge.cube.formats import (
    BuildName,
    CubeConf,
    CubeTable,
    DoneEntry,
    ServerFlags,
    TransferConf,
    append_donefile,
    dequantise,
    quantise,
    read_donefile,
)
from cloudedge.cube.server import AdminServer, Server, ServerConfig, VersionInfo

__all__ = [
    "MAX_VALUE_BYTES",
    "AdminServer",
    "AsyncClient",
    "BuildName",
    "BuildPlan",
    "BuildReport",
    "CheckReport",
    "Client",
    "ClientConfig",
    "CubeConf",
    "CubeTable",
    "DoneEntry",
    "DumpReport",
    "PartReport",
    "PartStore",
    "SeekResult",
    "Server",
    "ServerConfig",
    "ServerFlags",
    "ShardUnavailable",
    "TransferConf",
    "UnknownVersion",
    "VersionInfo",
    "VersionSkew",
    "append_donefile",
    "build",
    "check",
    "dequantise",
    "dump",
    "inspect",
    "plan_build",
    "quantise",
    "read_donefile",
    "run_build",
]

__getattr__ = renamed_names(__name__, {"CubeDict": "cloudedge.cube.CubeTable", "Store": "cloudedge.cube.PartStore"})
