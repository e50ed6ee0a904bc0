"""The asyncio face of the client: the same calls, awaited.

A call waits in a thread of a small pool, without the GIL, so the event loop goes on and there is one implementation of
everything that matters.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType

import numpy as np
from numpy.typing import DTypeLike

from cloudedge.cube._client import Client, ClientConfig, KeyLike, SeekResult

__all__ = ["AsyncClient"]


class AsyncClient:
    """Reads rows by key from all shards of a table, for asyncio.

    Args:
        config: How to reach the shards.
        max_concurrency: Calls under way at once; further ones wait for their turn.
    """

    def __init__(self, config: ClientConfig, *, max_concurrency: int = 32) -> None:
        self._client = Client(config)
        self._pool = ThreadPoolExecutor(max_concurrency, thread_name_prefix="cube-client")

    async def seek(self, keys: KeyLike, *, pin: str | None = None, dtype: DTypeLike = np.float32) -> SeekResult:
        """Look keys up; see `Client.seek`."""
        call = partial(self._client.seek, keys, pin=pin, dtype=dtype)
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

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
