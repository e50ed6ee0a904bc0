"""Clients that read rows of a table by key from all its shards, blocking or with asyncio."""

from __future__ import annotations

from cloudedge.cube.client._async_client import AsyncClient
from cloudedge.cube.client._client import (
    UNKNOWN_VERSION_CODE,
    Client,
    ClientConfig,
    SeekResult,
    ShardAnswer,
    ShardAnswers,
)
from cloudedge.cube.client._errors import ShardUnavailable, UnknownVersion, VersionSkew

__all__ = [
    "UNKNOWN_VERSION_CODE",
    "AsyncClient",
    "Client",
    "ClientConfig",
    "SeekResult",
    "ShardAnswer",
    "ShardAnswers",
    "ShardUnavailable",
    "UnknownVersion",
    "VersionSkew",
]
