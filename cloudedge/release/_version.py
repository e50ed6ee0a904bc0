"""A bundle as a release sees it: plain facts that a plan is made from, and the bytes behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from cloudedge.bundle import Signature

if TYPE_CHECKING:
    from cloudedge.bundle import Bundle

__all__ = ["TableFacts", "Version"]


@dataclass(frozen=True)
class TableFacts:
    """What a plan has to know of a sparse table."""

    rows: int
    dtype: str
    dim: int
    row_bytes: int
    """Of one value, without its key."""
    shard_rows: tuple[int, ...]
    """Rows of each shard, in the target's number of shards."""
    checksum: str = ""


@dataclass(frozen=True)
class Version:
    """One bundle, and what a target has to know before it takes it in."""

    pin: str
    name: str
    digest: str
    label: str = ""
    """The version people call it by: `3`, `1.4.0`."""
    dense_bytes: int = 0
    tables: Mapping[str, TableFacts] = field(default_factory=dict)
    signature: Signature = field(default_factory=Signature)
    untrusted: str = ""
    """Why its signature does not hold; empty if it does, or none is asked for."""
    bundle: Bundle | None = field(default=None, compare=False, repr=False)
    """Where the bytes are."""

    @classmethod
    def of(cls, bundle: Bundle, *, shards: Mapping[str, int], untrusted: str = "") -> Version:
        """Look at a bundle.

        Args:
            bundle: The bundle, in a local hub.
            shards: Into how many shards the target cuts each table; one where it is not named.
            untrusted: Why its signature does not hold.
        """
        return cls(
            pin=bundle.pin,
            name=bundle.name,
            digest=bundle.digest,
            label=bundle.version,
            dense_bytes=sum(layer.size for layer in bundle.dense_layers.values()),
            tables={name: _facts(table, shards.get(name, 1)) for name, table in bundle.sparse.items()},
            signature=bundle.signature,
            untrusted=untrusted,
            bundle=bundle,
        )

    @property
    def ref(self) -> str:
        """The one exact bundle."""
        return f"{self.name}@{self.digest}"

    def __str__(self) -> str:
        return f"{self.name}:{self.label}" if self.label else f"{self.name}@{self.pin}"


def _facts(table: Any, shards: int) -> TableFacts:
    counts = np.zeros(shards, np.int64)
    for rows in table.stream():
        counts += np.bincount((rows.keys % np.uint64(shards)).astype(np.int64), minlength=shards)
    return TableFacts(
        rows=len(table),
        dtype=table.kind.dtype.name,
        dim=table.kind.dim,
        row_bytes=table.kind.row_bytes,
        shard_rows=tuple(int(count) for count in counts),
        checksum=table.recorded_checksum,
    )
