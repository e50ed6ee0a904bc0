"""Cube: the sparse half of a model, in Paddle Serving's formats.

SequenceFiles and tables are built into parts (`build`), parts are loaded and looked up (`Store`) or served (`Server`,
`AdminServer`), clients read rows from many shards (`Client`, `AsyncClient`), and the files around them (cube.conf,
transfer.conf, gflags.conf, donefiles) are read and written.
"""

from __future__ import annotations

from cloudedge.cube._admin import AdminServer
from cloudedge.cube._aio import AsyncClient
from cloudedge.cube._build import BuildReport, PartReport, build, run_build
from cloudedge.cube._check import CheckReport, check
from cloudedge.cube._client import Client, ClientConfig, SeekResult
from cloudedge.cube._conf import CubeConf, CubeDict
from cloudedge.cube._donefile import DoneEntry, append_donefile, read_donefile
from cloudedge.cube._dump import DumpReport, dump
from cloudedge.cube._errors import ShardUnavailable, UnknownVersion, VersionSkew
from cloudedge.cube._gflags import ServerFlags
from cloudedge.cube._inspect import inspect
from cloudedge.cube._layout import BuildName
from cloudedge.cube._plan import BuildPlan, plan_build
from cloudedge.cube._quant import dequantise, quantise
from cloudedge.cube._server import Server, ServerConfig, VersionInfo
from cloudedge.cube._store import MAX_VALUE_BYTES, Store
from cloudedge.cube._transfer_conf import TransferConf

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
