"""The asyncio client: the calls of `Client`, awaited.

A call waits in a thread of a small pool, without the GIL, so the event loop goes on and there is one implementation of
the protocol.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from cloudedge._renamed_arguments import renamed_arguments
from cloudedge.cube.client._client import Client, ClientConfig, KeyLike, SeekResult

__all__ = ["AsyncClient"]


class AsyncClient:
    """Reads rows by key from all shards of a table, for asyncio.

    Args:
        config: The addresses of the shards, or a client to use; it is closed with this one.
        max_concurrency: Calls under way at once; further ones wait for their turn.
    """

    def __init__(self, config: ClientConfig | Client, *, max_concurrency: int = 32) -> None:
        self._client = Client(config) if isinstance(config, ClientConfig) else config
        self._pool = ThreadPoolExecutor(max_concurrency, thread_name_prefix="cube-client")

    @classmethod
    @renamed_arguments(dict_name="table")
    def from_conf(
        cls,
        path: str | os.PathLike[str],
        table: str,
        *,
        follow: bool = False,
        max_concurrency: int = 32,
        **more: Any,
    ) -> AsyncClient:
        """Read cube.conf and make a client of one of its tables; see `Client.from_conf`."""
        return cls(Client.from_conf(path, table, follow=follow, **more), max_concurrency=max_concurrency)

    async def seek(
        self,
        keys: KeyLike,
        *,
        pin: str | None = None,
        dtype: DTypeLike = np.float32,
        timeout_s: float | None = None,
    ) -> SeekResult:
        """Look keys up; see `Client.seek`. The time that a call waits for its turn counts too."""
        loop = asyncio.get_running_loop()
        until = None if timeout_s is None else loop.time() + timeout_s

        def call() -> SeekResult:
            left = None if until is None else max(0.0, until - loop.time())
            return self._client.seek(keys, pin=pin, dtype=dtype, timeout_s=left)

        return await loop.run_in_executor(self._pool, call)

    async def aclose(self) -> None:
        """Wait for calls under way, then close all connections."""
        await asyncio.get_running_loop().run_in_executor(None, self._pool.shutdown)
        self._client.close()

    async def __aenter__(self) -> AsyncClient:  # noqa: PYI034 - typing.Self is not in 3.10
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
