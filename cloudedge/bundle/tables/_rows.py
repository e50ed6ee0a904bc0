"""Streams of sorted rows: align, merge and compare them one window at a time, in memory independent of their size.

A stream is an iterator of `Rows` whose keys ascend within and across windows. `_core` works on the rows of one
window; this module cuts windows so that all streams cover the same keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloudedge import _core
from cloudedge.bundle.tables._safetensors import ArraySpec

__all__ = ["ROWS_PER_WINDOW", "VALUE_DTYPES", "Checksum", "Delta", "RowType", "Rows", "aligned", "difference", "merged"]

Keys = NDArray[np.uint64]

ROWS_PER_WINDOW = 1 << 16
"""Rows streamed at a time: a few megabytes, small enough for many streams and large enough for efficient calls."""

VALUE_DTYPES = (np.dtype("<f4"), np.dtype("<f2"), np.dtype("i1"))
_KEYS = np.dtype("<u8")
_SCALE = np.dtype("<f4")


@dataclass(frozen=True)
class RowType:
    """The element type and dimension of a table's rows."""

    dtype: np.dtype[Any]
    dim: int

    @property
    def has_scale(self) -> bool:
        """True if each row has its own scale, as int8 rows do."""
        return self.dtype == np.int8

    @property
    def row_bytes(self) -> int:
        """Bytes of one row without its key."""
        return self.dim * self.dtype.itemsize + (_SCALE.itemsize if self.has_scale else 0)

    def __str__(self) -> str:
        return f"{self.dim} x {self.dtype.name}" + (" + scale" if self.has_scale else "")

    def columns(self, rows: int) -> dict[str, ArraySpec]:
        """Return the arrays that hold `rows` rows, keys first."""
        arrays = {"keys": ArraySpec(_KEYS, (rows,)), "values": ArraySpec(self.dtype, (rows, self.dim))}
        return arrays | ({"scale": ArraySpec(_SCALE, (rows,))} if self.has_scale else {})


@dataclass(frozen=True)
class Checksum:
    """A sum over rows, equal for equal sets of rows in any order and different after damage or a mix-up."""

    low: int = 0
    high: int = 0

    def __add__(self, other: Checksum) -> Checksum:
        return Checksum((self.low + other.low) % 2**64, (self.high + other.high) % 2**64)

    def __str__(self) -> str:
        return f"{self.high:016x}{self.low:016x}"


@dataclass(frozen=True)
class Rows:
    """Some rows of a table: keys, and the bytes of each column (values, and a scale where there is one)."""

    keys: Keys
    columns: tuple[NDArray[np.uint8], ...]

    @classmethod
    def of(cls, keys: Keys, *columns: NDArray[Any]) -> Rows:
        """View arrays as rows of bytes."""
        n = len(keys)
        return cls(keys, tuple(np.ascontiguousarray(c).reshape(n, -1).view(np.uint8) for c in columns))

    def __len__(self) -> int:
        return len(self.keys)

    def cut(self, at: int) -> tuple[Rows, Rows]:
        """Split before row `at`."""
        return (
            Rows(self.keys[:at], tuple(c[:at] for c in self.columns)),
            Rows(self.keys[at:], tuple(c[at:] for c in self.columns)),
        )

    def take(self, indices: Keys) -> Rows:
        """Pick rows by number."""
        return Rows(self.keys[indices], tuple(c[indices] for c in self.columns))

    def checksum(self) -> Checksum:
        """Return the checksum of the rows."""
        return Checksum(*_core.checksum(self.keys, list(self.columns)))

    def with_delta(self, delta: Rows, removed: Keys) -> Rows:
        """Return these rows with `delta` merged in and `removed` taken out.

        Raises:
            ValueError: a removed key is missing.
        """
        size = _core.merged_size(self.keys, delta.keys, removed)
        # A delta that only replaces rows leaves the keys unchanged, so there are none to write.
        keys = None if size == len(self) and not len(removed) else np.empty(size, np.uint64)
        columns = tuple(np.empty((size, c.shape[1]), np.uint8) for c in self.columns)
        _core.merge(self.keys, list(self.columns), delta.keys, list(delta.columns), removed, keys, list(columns))
        return Rows(self.keys if keys is None else keys, columns)


@dataclass(frozen=True)
class Delta:
    """The difference between two windows of rows."""

    rows: Rows
    """New and changed rows, in order."""
    removed: Keys
    added: int
    changed: int


def aligned(streams: Sequence[Iterator[Rows]]) -> Iterator[tuple[Rows, ...]]:
    """Cut several streams into windows that cover the same keys.

    Each window ends at the smallest last key of the unfinished streams' current chunks, so that at most one chunk of
    each stream is held, whatever the keys are.
    """
    held: list[Rows | None] = [next(stream, None) for stream in streams]
    empty = [_empty_like(rows) for rows in held]
    while any(rows is not None for rows in held):
        last = min(int(rows.keys[-1]) for rows in held if rows is not None)
        window: list[Rows] = []
        for i, rows in enumerate(held):
            if rows is None:
                window.append(empty[i])
                continue
            now, rest = rows.cut(int(np.searchsorted(rows.keys, np.uint64(last), side="right")))
            window.append(now)
            held[i] = rest if len(rest) else next(streams[i], None)
        yield tuple(window)


def _empty_like(rows: Rows | None) -> Rows:
    widths = [c.shape[1] for c in rows.columns] if rows is not None else []
    return Rows(np.empty(0, np.uint64), tuple(np.empty((0, w), np.uint8) for w in widths))


def _with_columns_of(rows: Rows, like: Rows) -> Rows:
    """Give a stream without any rows the columns of its neighbour."""
    return rows if rows.columns else _empty_like(like)


def merged(base: Iterator[Rows], deltas: Sequence[tuple[Iterator[Rows], Iterator[Rows]]]) -> Iterator[Rows]:
    """Apply deltas (rows, removed keys) to a base in order, window by window.

    Raises:
        ValueError: a delta removes a missing key.
    """
    for now, *rest in aligned([base, *(stream for pair in deltas for stream in pair)]):
        rows = now
        for delta, removed in zip(rest[::2], rest[1::2], strict=True):
            if len(delta) or len(removed):
                rows = _with_columns_of(rows, delta).with_delta(_with_columns_of(delta, rows), removed.keys)
        if len(rows):
            yield rows


def difference(before: Iterator[Rows], after: Iterator[Rows]) -> Iterator[Delta]:
    """Compare two streams window by window."""
    for a, b in aligned([before, after]):
        old, new = _with_columns_of(a, b), _with_columns_of(b, a)
        added, changed, removed = _core.diff(old.keys, list(old.columns), new.keys, list(new.columns))
        if len(added) or len(changed) or len(removed):
            fresh = np.sort(np.concatenate([added, changed]))
            yield Delta(new.take(fresh), old.keys[removed], len(added), len(changed))
