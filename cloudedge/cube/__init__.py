"""Cube: the sparse half of a model, in Paddle Serving's formats.

SequenceFiles and tables are built into parts (`build`), parts are loaded and looked up (`Store`) or served (`Server`,
`AdminServer`), clients read rows from many shards (`Client`, `AsyncClient`), and the files around them (cube.conf,
transfer.conf, gflags.conf, donefiles) are read and written.
"""

from __future__ import annotations

from cloudedge.cube.builder import (
    MAX_VALUE_BYTES,
    BuildPlan,
    BuildReport,
    CheckReport,
    DumpReport,
    PartReport,
    Store,
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
    CubeDict,
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
    "CubeDict",
    "DoneEntry",
    "DumpReport",
    "PartReport",
    "SeekResult",
    "Server",
    "ServerConfig",
    "ServerFlags",
    "ShardUnavailable",
    "Store",
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
