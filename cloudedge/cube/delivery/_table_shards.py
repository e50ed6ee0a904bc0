"""The shards of a table's rows: their counts, their checksums, and a few rows to read back.

An empty shard gets one row, with a key that no model asks for, since no server loads an empty part. That row is part of
the shard wherever shards are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloudedge import _core
from cloudedge.bundle import Checksum, Table
from cloudedge.bundle.tables import Rows
from cloudedge.cube.builder import reserved_key

__all__ = ["ShardRows", "Sum", "TableVersion", "add_up", "by_shard", "joined", "reserved_row", "sum_shards"]

_PROBES = 8
_MASK = 2**64 - 1


@dataclass(frozen=True)
class TableVersion:
    """One version of one table, as it is delivered."""

    table: str
    version: str
    """The version's name on servers; a bundle's pin."""
    rows: Table = field(repr=False)

    @property
    def checksum(self) -> str:
        """The checksum of all its rows."""
        return self.rows.recorded_checksum or str(self.rows.checksum)


@dataclass(frozen=True)
class ShardRows:
    """The rows of one shard of a version."""

    rows: int
    checksum: str
    probes: tuple[tuple[int, bytes], ...] = field(default=(), repr=False)
    """Keys with their values, to read back."""

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        probes = [[key, value.hex()] for key, value in self.probes]
        return {"rows": self.rows, "checksum": self.checksum, "probes": probes}

    @classmethod
    def from_json(cls, found: Any) -> ShardRows:
        """Read the fields that `as_json` returned."""
        probes = tuple((int(key), bytes.fromhex(value)) for key, value in found["probes"])
        return cls(int(found["rows"]), str(found["checksum"]), probes)


class Sum:
    """The running count and checksum of a shard's rows."""

    def __init__(self, before: ShardRows | None = None) -> None:
        number = int(before.checksum, 16) if before else 0
        self.rows = before.rows if before else 0
        self._low, self._high = number & _MASK, number >> 64

    def add(self, keys: NDArray[np.uint64], values: NDArray[np.uint8], *, sign: int = 1) -> None:
        """Add rows, or subtract them with the sign -1."""
        low, high = _core.checksum(keys, [values])
        self._low, self._high = (self._low + sign * low) & _MASK, (self._high + sign * high) & _MASK
        self.rows += sign * len(keys)

    @property
    def checksum(self) -> str:
        """The checksum of the rows."""
        return str(Checksum(self._low, self._high))


def joined(rows: Rows) -> NDArray[np.uint8]:
    """Return rows as servers hold them: one run of bytes each, an int8 row's scale behind its values."""
    return rows.columns[0] if len(rows.columns) == 1 else np.hstack(rows.columns)


def by_shard(keys: NDArray[np.uint64], shards: int) -> Iterator[tuple[int, NDArray[np.intp]]]:
    """Yield each shard that has keys among these, with their places in order."""
    if shards == 1:
        if len(keys):
            yield 0, np.arange(len(keys))
        return
    owner = (keys % np.uint64(shards)).astype(np.uint16)
    order = np.argsort(owner, kind="stable")  # of 16-bit numbers: a radix sort
    ends = np.cumsum(np.bincount(owner, minlength=shards))
    begin = 0
    for shard, end in enumerate(ends.tolist()):
        if end > begin:
            yield shard, order[begin:end]
        begin = end


def reserved_row(shard: int, shards: int, width: int) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    """Return the row of an otherwise empty shard."""
    return np.array([reserved_key(shard, shards)], np.uint64), np.zeros((1, width), np.uint8)


def add_up(checksums: Mapping[int, str], shards: int, width: int) -> str:
    """Return the checksum of a whole table from those of its shards: reserved rows do not count."""
    low = high = 0
    for shard, text in checksums.items():
        reserved = Sum()
        reserved.add(*reserved_row(shard, shards, width))
        if text != reserved.checksum:
            number = int(text, 16)
            low, high = low + (number & _MASK), high + (number >> 64)
    return str(Checksum(low & _MASK, high & _MASK))


def sum_shards(table: Table, shards: int) -> tuple[ShardRows, ...]:
    """Read a table once and return the rows of each of its shards."""
    sums = [Sum() for _ in range(shards)]
    probes: list[list[tuple[int, bytes]]] = [[] for _ in range(shards)]
    for window in table.stream():
        values = joined(window)
        for shard, places in by_shard(window.keys, shards):
            keys, some = window.keys[places], values[places]
            sums[shard].add(keys, some)
            if len(probes[shard]) < _PROBES:
                probes[shard].append((int(keys[-1]), some[-1].tobytes()))
    for shard, total in enumerate(sums):
        if total.rows == 0:
            keys, row = reserved_row(shard, shards, table.kind.row_bytes)
            total.add(keys, row)
            probes[shard].append((int(keys[0]), row.tobytes()))
    return tuple(ShardRows(t.rows, t.checksum, tuple(p)) for t, p in zip(sums, probes, strict=True))
