"""Offloading: large bodies are parsed on another thread, so that the loop goes on answering small requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

__all__ = ["offload"]

_T = TypeVar("_T")
_LARGE = 256 * 1024
"""Size whose parsing takes about as long as a whole small request: below it, a thread costs more."""
_readers = ThreadPoolExecutor(2, thread_name_prefix="serving-read")
"""Few threads: a parsed body takes several times its size in memory."""


async def offload(size: int, read: Callable[..., _T], *arguments: Any) -> _T:
    """Parse a body of `size` bytes: on this thread if it is small, on another if it is large."""
    if size < _LARGE:
        return read(*arguments)
    return await asyncio.get_running_loop().run_in_executor(_readers, read, *arguments)
