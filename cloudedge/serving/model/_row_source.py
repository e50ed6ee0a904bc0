"""Sources of embedding rows for looked-up ids: the `RowSource` interface, and the tables of a bundle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cloudedge.bundle import Table
from cloudedge.errors import NotFound

__all__ = ["BundleRows", "FoundRows", "RowSource"]


@dataclass(frozen=True)
class FoundRows:
    """The rows of some ids, in their order."""

    values: NDArray[np.float32]
    """One row per id; zeros where the table has none."""
    missing: int = 0
    """Number of ids that the table does not have; their rows are zeros."""
    defaulted: NDArray[np.bool_] | None = None
    """Marks the ids that got a declared default because their shard was unreachable; None: no id did."""


class RowSource(Protocol):
    """Reads rows of one version of the tables. Safe to use from several threads."""

    def rows(self, table: str, ids: NDArray[np.uint64], pin: str, deadline: float | None = None) -> FoundRows:
        """Read the rows of some ids; duplicates are allowed.

        Args:
            table: Name of the table.
            ids: The ids to look up.
            pin: The required version.
            deadline: On the monotonic clock; no caller waits after it.

        Raises:
            NotFound: The table or the version does not exist.
            Unavailable: The rows were not available, and no default is declared.
        """
        ...

    def close(self) -> None:
        """Free its resources."""
        ...


class _Index:
    """Finds rows of a mapped table without copying it."""

    def __init__(self, table: Table) -> None:
        self._keys, self._values, self._scale = table.keys, table.values, table.scale
        self._dim = table.kind.dim
        count = len(self._keys)
        # Consecutive ids, the usual shape of a vocabulary, need no search.
        self._first = int(self._keys[0]) if count and int(self._keys[-1]) - int(self._keys[0]) == count - 1 else None

    def rows(self, ids: NDArray[np.uint64]) -> FoundRows:
        count = len(self._keys)
        if not count:
            return FoundRows(np.zeros((len(ids), self._dim), np.float32), missing=len(ids))
        if self._first is not None:
            at = ids - np.uint64(self._first)  # an id below the first wraps around to far above the last
            found = at < count
        else:
            at = np.searchsorted(self._keys, ids).astype(np.uint64)
            found = at < count
            at[~found] = 0
            found &= self._keys[at] == ids
        missing = len(ids) - int(np.count_nonzero(found))
        if missing:
            at = np.where(found, at, 0)
        values: NDArray[Any] = self._values[at].astype(np.float32, copy=False)
        if self._scale is not None:
            values = values * self._scale[at, None]
        if missing:
            values[~found] = 0
        return FoundRows(values, missing=missing)


class BundleRows:
    """Reads rows from the tables of one bundle, in this process."""

    def __init__(self, tables: Mapping[str, Table]) -> None:
        self._indexes = {name: _Index(table) for name, table in tables.items()}

    def rows(
        self, table: str, ids: NDArray[np.uint64], pin: str, deadline: float | None = None  # noqa: ARG002 - takes no time
    ) -> FoundRows:  # fmt: skip
        """Read the rows of some ids; see `RowSource`."""
        index = self._indexes.get(table)
        if index is None:
            raise NotFound(f"version {pin} has no table {table!r}", table=table, pin=pin)
        return index.rows(ids)

    def close(self) -> None:
        """Unmap the tables."""
        self._indexes = {}
