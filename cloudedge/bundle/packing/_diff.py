"""Differences between two bundles, file by file and row by row, and the bytes needed to ship them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cloudedge.bundle.packing._bundle import Bundle
from cloudedge.bundle.tables import DeltaWriter, Table, difference

__all__ = ["BundleDiff", "TableDiff", "diff"]


@dataclass(frozen=True)
class TableDiff:
    """The differences in one table."""

    rows_before: int
    rows_after: int
    added: int
    changed: int
    removed: int
    delta_bytes: int
    """Bytes of the delta's blocks; bytes of all rows if no delta is possible."""
    full_bytes: int

    @property
    def is_same(self) -> bool:
        """True if no row differs."""
        return not (self.added or self.changed or self.removed)


@dataclass(frozen=True)
class BundleDiff:
    """The differences from one bundle to another."""

    added: Mapping[str, int]
    """New dense files with their sizes."""
    removed: Mapping[str, int]
    changed: Mapping[str, int]
    """Changed dense files with their new sizes."""
    tables: Mapping[str, TableDiff]

    @property
    def bytes_to_ship(self) -> int:
        """Bytes to send to a place that holds the first bundle."""
        files = sum(self.added.values()) + sum(self.changed.values())
        return files + sum(table.delta_bytes for table in self.tables.values())


def diff(before: Bundle, after: Bundle) -> BundleDiff:
    """Compare two bundles.

    Raises:
        IntegrityError: a table's delta does not fit its base.
    """
    old, new = before.dense_layers, after.dense_layers
    return BundleDiff(
        added={path: layer.size for path, layer in new.items() if path not in old},
        removed={path: layer.size for path, layer in old.items() if path not in new},
        changed={p: layer.size for p, layer in new.items() if p in old and old[p].digest != layer.digest},
        tables={
            name: _diff_tables(before.sparse.get(name), after.sparse.get(name))
            for name in sorted({*before.sparse, *after.sparse})
        },
    )


def _diff_tables(before: Table | None, after: Table | None) -> TableDiff:
    if after is None:
        gone = len(before) if before else 0
        return TableDiff(gone, 0, 0, 0, gone, delta_bytes=0, full_bytes=0)
    full = len(after) * (8 + after.kind.row_bytes)
    if before is None or before.kind != after.kind:
        gone = len(before) if before else 0
        return TableDiff(gone, len(after), len(after), 0, gone, delta_bytes=full, full_bytes=full)
    if before.recorded_checksum and before.recorded_checksum == after.recorded_checksum:
        return TableDiff(len(before), len(after), 0, 0, 0, delta_bytes=0, full_bytes=full)
    added = changed = removed = 0
    with tempfile.TemporaryDirectory() as folder, DeltaWriter(Path(folder)) as delta:
        for window in difference(before.stream(), after.stream()):
            added += window.added
            changed += window.changed
            removed += len(window.removed)
            delta.add(window)
        ships = delta.size
    return TableDiff(len(before), len(after), added, changed, removed, delta_bytes=ships, full_bytes=full)
