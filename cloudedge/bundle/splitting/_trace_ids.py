"""Trace ids from a look-up back to the inputs they were fed to, in either program format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from cloudedge.bundle.splitting._cut_plan import Concat, Ids, Move, Slot, Unknown

__all__ = ["INPUT", "Origin", "View", "trace"]

INPUT = "input"
_INTEGERS = {"int8", "uint8", "int16", "int32", "int64"}
_SHAPE_AT_RUN_TIME = "the shape it makes is known only when the model runs"


@dataclass(frozen=True)
class Origin:
    """The operator that makes a value."""

    operator: str
    """The operator's name in the program."""
    variable: str
    """The value's name, or a description for people."""
    kind: str
    """The operator without its format's prefixes and suffixes, or `INPUT`."""
    sources: Sequence[Any] = ()
    arguments: Sequence[int] | None = None
    """Axes or target shape; None if the program computes them."""


class View(Protocol):
    """A program to walk through; the type of its values depends on the format."""

    def origin(self, value: Any) -> Origin:
        """Return how a value comes about."""
        ...

    def dtype(self, value: Any) -> str:
        """Return a value's element type."""
        ...

    def rank(self, value: Any) -> int:
        """Return how many dimensions a value has."""
        ...


def trace(view: View, value: Any) -> Ids:
    """Return the origin of ids and the moves on the way; `Unknown` if an operator may have changed them."""
    origin = view.origin(value)
    if origin.kind == INPUT:
        dtype = view.dtype(value)
        if dtype in _INTEGERS:
            return Slot(origin.variable)
        return Unknown(origin.operator, origin.variable, f"ids fed as {dtype} may be rounded")
    if origin.kind == "assign" or (origin.kind == "cast" and _is_lossless(view, origin.sources[0], value)):
        return trace(view, origin.sources[0])
    is_move = origin.kind in {"concat", "reshape", "squeeze", "unsqueeze", "flatten", "transpose"}
    if not is_move or origin.arguments is None or (origin.kind == "squeeze" and not origin.arguments):
        return Unknown(origin.operator, origin.variable, _SHAPE_AT_RUN_TIME if is_move else "it may change the ids")
    rank = view.rank(origin.sources[0])
    if origin.kind == "concat":
        (axis,) = _from_front(origin.arguments, rank)
        return Concat(axis, tuple(trace(view, source) for source in origin.sources))
    arguments = tuple(origin.arguments)
    if origin.kind == "unsqueeze":
        # Axes are inserted one after another, and each counts those before it.
        arguments = tuple(a + rank + done + 1 if a < 0 else a for done, a in enumerate(arguments))
    elif origin.kind != "reshape":
        arguments = _from_front(arguments, rank)
    return Move(origin.kind, arguments, trace(view, origin.sources[0]))


def _is_lossless(view: View, before: Any, after: Any) -> bool:
    dtypes = view.dtype(before), view.dtype(after)
    return set(dtypes) <= _INTEGERS and np.can_cast(*dtypes)


def _from_front(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Count axes from the front, so that a dimension may be appended."""
    return tuple(axis + rank if axis < 0 else axis for axis in axes)
