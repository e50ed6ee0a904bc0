"""Whether a program answers each row by itself, found out by running it.

Requests share a run only where no row's answer depends on the rows beside it. Programs with a sum, a softmax or a
normalisation along the batch look like any other from outside: the outputs' first dimension says nothing. So the same
rows are run one by one and together, in two sizes, and the answers compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloudedge.errors import InputError

__all__ = ["varied", "why_alone"]

Array = NDArray[Any]
Feed = Mapping[str, Array]

_SIZES = (2, 5)
"""Of the two runs: an output whose first dimension happens to be one of them is not the other."""
_NEAR = {2: 1e-2}
"""How near a number has to be to the largest of its kind, by the size of its type: of half precision not very."""
_NEAR_ENOUGH = 1e-4


def why_alone(run: Callable[[Feed], Sequence[Array]], feed: Feed) -> str:
    """Say why requests must not share a run, or nothing if they may.

    Args:
        run: Runs the program.
        feed: Its inputs, of as many rows as there are; made different from each other here.
    """
    try:
        return _compared(run, varied(feed, max(_SIZES), whole=True))
    except InputError:  # whole numbers of which only some are taken: those that are known to be
        return _compared(run, varied(feed, max(_SIZES), whole=False))


def _compared(run: Callable[[Feed], Sequence[Array]], feed: Feed) -> str:
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
            if not _are_near(output, np.concatenate(rows)):
                return f"output {number} of a row is another one when other rows are run with it"
    return ""


def varied(feed: Feed, count: int, *, whole: bool) -> dict[str, Array]:
    """Return that many rows, each different from the others: those that are there, again and again, and moved a little.

    Args:
        feed: Some rows.
        count: How many are wanted.
        whole: Also move whole numbers, up to the next.
    """
    chance = np.random.default_rng(0)
    rows = dict[str, Array]()
    for name, array in feed.items():
        made = np.take(array, np.arange(count) % len(array), axis=0)
        by = chance.random(made.shape)
        if made.dtype.kind == "f":  # what is above 0 stays so: a logarithm may be next
            made = (made * (1 + 0.2 * by) + 0.1 * by).astype(made.dtype)
        elif whole and made.dtype.kind in "iu":
            made = made + (np.arange(count) % 2).astype(made.dtype).reshape(-1, *[1] * (made.ndim - 1))
        rows[name] = made
    return rows


def _are_near(one: Array, other: Array) -> bool:
    if one.dtype.kind != "f":
        return bool((one == other).all())
    finite = np.abs(other[np.isfinite(other)].astype(np.float64))
    allowed = _NEAR.get(one.dtype.itemsize, _NEAR_ENOUGH)
    return np.allclose(one, other, rtol=allowed, atol=allowed * float(finite.max(initial=0.0)), equal_nan=True)
