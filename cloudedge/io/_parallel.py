"""Calls in parallel, in threads: bounded in number, and all ended when the function returns or raises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["in_threads", "map_in_threads"]

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_in_threads(
    do: Callable[[Item], Result], items: Sequence[Item], jobs: int, *, finish: bool = False, name: str = "parallel"
) -> list[Result]:
    """Call a function for every item, begun in their order; return the results in that order.

    Args:
        do: The function.
        items: Its arguments. A single one is done in the caller's thread.
        jobs: Calls at the same time.
        finish: Begin every call also after one has failed; else those not yet begun are left out.
        name: The threads' name, for people who look at a process.

    Raises:
        Exception: that of the first item in order whose call failed, once no call runs any more.
    """
    if len(items) <= 1:
        return [do(item) for item in items]
    with ThreadPoolExecutor(max(1, min(jobs, len(items))), thread_name_prefix=name) as pool:
        futures = [pool.submit(do, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=not finish)
            raise


def in_threads(calls: Sequence[Callable[[], None]], jobs: int, *, finish: bool = False) -> None:
    """Make calls in threads; as `map_in_threads`."""
    map_in_threads(lambda call: call(), calls, jobs, finish=finish)
