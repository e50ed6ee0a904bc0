"""A bundle as a release sees it: the facts that a plan is made from, and the bytes behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, overload

import numpy as np

from cloudedge.bundle import Bundle, Outline, Signature

if TYPE_CHECKING:
    from cloudedge.bundle import Table

__all__ = ["TableFacts", "Version"]


@dataclass(frozen=True)
class TableFacts:
    """The facts of a sparse table that a plan needs."""

    rows: int
    dtype: str
    dim: int
    row_bytes: int
    """The bytes of one value, without its key."""
    shard_rows: Sequence[int] = ()
    """The rows of each shard; of a bundle whose bytes are here, counted when first read."""
    layers: Mapping[str, int] = field(default_factory=dict)
    """By digest: the bytes of its base and its deltas."""


@dataclass(frozen=True)
class Version:
    """One bundle, with the facts that a target needs before it takes it in."""

    pin: str
    name: str
    digest: str
    label: str = ""
    """Its version for operators: `3`, `1.4.0`."""
    dense_bytes: int = 0
    tables: Mapping[str, TableFacts] = field(default_factory=dict)
    signature: Signature = field(default_factory=Signature)
    untrusted: str = ""
    """Why its signature does not hold; empty if it does, or none is required."""
    stale: str = ""
    """Why its signature holds and it still is not what the hub should offer: a newer version was taken before, or the
    signature has expired; empty if neither is so."""
    files: Mapping[str, int] = field(default_factory=dict)
    """By digest: the bytes of its dense files."""
    missing_bytes: int = 0
    """The bytes that have to be fetched before any place can load it."""
    bundle: Bundle | None = field(default=None, compare=False, repr=False)
    """The bundle with its bytes; None: they are not here."""

    @classmethod
    def of(
        cls,
        bundle: Outline,
        *,
        shards: Mapping[str, int],
        untrusted: str = "",
        stale: str = "",
        missing_bytes: int = 0,
    ) -> Version:
        """Read the facts of a bundle. One in another hub has them all but the rows of each shard.

        Args:
            bundle: The bundle, or its outline in another hub.
            shards: By table, the number of shards on the target; one where a table is not named.
            untrusted: Why its signature does not hold.
            stale: Why it is older than what the hub should offer.
            missing_bytes: Its bytes that are not here.
        """
        found = cls(
            pin=bundle.pin,
            name=bundle.name,
            digest=bundle.digest,
            label=bundle.version,
            dense_bytes=sum(layer.size for layer in bundle.dense_layers.values()),
            tables={name: _facts(bundle, name) for name in bundle.table_layers},
            signature=bundle.signature,
            untrusted=untrusted,
            stale=stale,
            files={layer.digest: layer.size for layer in bundle.dense_layers.values()},
            missing_bytes=missing_bytes,
            bundle=bundle if isinstance(bundle, Bundle) else None,
        )
        return found.cut({name: shards.get(name, 1) for name in found.tables})

    @property
    def shards(self) -> Mapping[str, int]:
        """By table: the number of its shards."""
        return {name: len(table.shard_rows) for name, table in self.tables.items()}

    @property
    def merged_bytes(self) -> int:
        """The bytes of tables that a reader merges in memory: a base with deltas. A single file is mapped."""
        return sum(t.rows * (8 + t.row_bytes) for t in self.tables.values() if len(t.layers) > 1)

    def cut(self, shards: Mapping[str, int]) -> Version:
        """Return the same version with its tables cut into other numbers of shards."""
        tables = dict(self.tables)
        for name in tables.keys() & shards.keys():
            count, rows = shards[name], tables[name].rows
            even = tuple((rows + shard) // count for shard in range(count))
            cut = _ShardRows(self.bundle.sparse[name], count) if self.bundle is not None else even
            tables[name] = replace(tables[name], shard_rows=cut)
        return replace(self, tables=tables)

    @property
    def ref(self) -> str:
        """The one exact bundle."""
        return f"{self.name}@{self.digest}"

    def __str__(self) -> str:
        return f"{self.name}:{self.label}" if self.label else f"{self.name}@{self.pin}"


class _ShardRows(Sequence[int]):
    """The rows of each shard of a table, counted late: counting reads every key, and a rollback needs no counts."""

    def __init__(self, table: Table, shards: int) -> None:
        self._table = table
        self._shards = shards

    @cached_property
    def _counts(self) -> tuple[int, ...]:
        counts = np.zeros(self._shards, np.int64)
        for rows in self._table.stream():
            counts += np.bincount((rows.keys % np.uint64(self._shards)).astype(np.int64), minlength=self._shards)
        return tuple(counts.tolist())

    @overload
    def __getitem__(self, at: int) -> int: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[int]: ...

    def __getitem__(self, at: int | slice) -> int | Sequence[int]:
        return self._counts[at]

    def __len__(self) -> int:
        return self._shards


def _facts(bundle: Outline, table: str) -> TableFacts:
    kind = bundle.row_type(table)
    layers: dict[str, int] = {layer.digest: layer.size for layer in bundle.table_layers[table]}
    return TableFacts(bundle.row_count(table), kind.dtype.name, kind.dim, kind.row_bytes, layers=layers)
