"""The test that a program may be batched: it answers each row independently of the rows beside it.

Requests share a run only where no row's answer depends on other rows. A program with a sum, a softmax or a
normalisation along the batch looks like any other from outside: the first dimension of its outputs proves nothing. So
the test runs the same rows one by one and together, in two batch sizes, and compares the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloudedge.errors import InputError

__all__ = ["batching_obstacle", "vary_rows"]

Array = NDArray[Any]
Feed = Mapping[str, Array]

_SIZES = (2, 5)
"""Batch sizes of the two runs: a constant first dimension that happens to equal one size differs from the other."""
_TOLERANCES = {2: 1e-2}
"""Allowed difference relative to the largest value, by item size of the type: half precision needs more."""
_TOLERANCE = 1e-4


def batching_obstacle(run: Callable[[Feed], Sequence[Array]], feed: Feed) -> str:
    """Return the reason why requests must not share a run, or an empty string if they may.

    Args:
        run: Runs the program.
        feed: Its inputs, any number of rows; this function makes the rows differ.
    """
    try:
        return _compare_runs(run, vary_rows(feed, max(_SIZES), whole=True))
    except InputError:  # the program refuses some integers: use only those that it is known to take
        return _compare_runs(run, vary_rows(feed, max(_SIZES), whole=False))


def _compare_runs(run: Callable[[Feed], Sequence[Array]], feed: Feed) -> str:
    count = max(_SIZES)
    alone = [run({name: array[i : i + 1] for name, array in feed.items()}) for i in range(count)]
    for size in _SIZES:
        try:
            together = run({name: array[:size] for name, array in feed.items()})
        except InputError:
            return f"{size} rows together are refused by the program"
        for number, output in enumerate(together):
            if not output.ndim or len(output) != size:
                return f"output {number} has shape {list(output.shape)} for {size} rows"
            rows = [outputs[number] for outputs in alone[:size]]
            if any(row.shape != (1, *output.shape[1:]) for row in rows):
                return f"output {number} has shape {list(rows[0].shape)} for one row"
            if not _are_close(output, np.concatenate(rows)):
                return f"output {number} of a row changes with the rows that run beside it"
    return ""


def vary_rows(feed: Feed, count: int, *, whole: bool) -> dict[str, Array]:
    """Return `count` rows that all differ: the given rows repeated, each changed a little.

    Args:
        feed: One row or more.
        count: Number of rows to return.
        whole: Also change integers, by one.
    """
    generator = np.random.default_rng(0)
    varied = dict[str, Array]()
    for name, array in feed.items():
        rows = np.take(array, np.arange(count) % len(array), axis=0)
        offsets = generator.random(rows.shape)
        if rows.dtype.kind == "f":  # positive values stay positive: a logarithm may follow
            rows = (rows * (1 + 0.2 * offsets) + 0.1 * offsets).astype(rows.dtype)
        elif whole and rows.dtype.kind in "iu":
            rows = rows + (np.arange(count) % 2).astype(rows.dtype).reshape(-1, *[1] * (rows.ndim - 1))
        varied[name] = rows
    return varied


def _are_close(one: Array, other: Array) -> bool:
    if one.dtype.kind != "f":
        return bool((one == other).all())
    finite = np.abs(other[np.isfinite(other)].astype(np.float64))
    allowed = _TOLERANCES.get(one.dtype.itemsize, _TOLERANCE)
    return np.allclose(one, other, rtol=allowed, atol=allowed * float(finite.max(initial=0.0)), equal_nan=True)
