"""Large bodies are read on a thread of their own, so that the loop goes on answering small requests meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

__all__ = ["aside"]

_T = TypeVar("_T")
_LARGE = 256 * 1024
"""Bytes that take about as long to read as a small request takes altogether: below it, a thread costs more."""
_readers = ThreadPoolExecutor(2, thread_name_prefix="serving-read")
"""Few: what is read takes several times the room of its body."""


async def aside(size: int, read: Callable[..., _T], *arguments: Any) -> _T:
    """Read something of so many bytes, here if they are few."""
    if size < _LARGE:
        return read(*arguments)
    return await asyncio.get_running_loop().run_in_executor(_readers, read, *arguments)
