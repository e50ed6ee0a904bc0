"""Row changes between two versions of a table: rows that are new, replaced or removed.

Where the newer table's files continue the older one's, the deltas in between are the changes. Otherwise both tables
are read once, in canonical order, and compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cloudedge import _core
from cloudedge.bundle import SafetensorsFile, Table
from cloudedge.bundle.tables import ROWS_PER_WINDOW, DeltaFile, Rows, aligned
from cloudedge.cube.delivery._table_shards import joined

__all__ = ["RowChange", "changes", "continues", "find_rows"]

Keys = NDArray[np.uint64]
Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class RowChange:
    """Some of the changes, in the order of keys."""

    keys: Keys
    """Of new and changed rows."""
    values: Bytes
    removed: Keys
    gone_keys: Keys
    """Of rows that were replaced or removed."""
    gone_values: Bytes


def continues(after: Table, before: Table) -> bool:
    """Tell whether the newer table is the older one and further deltas."""
    return after.kind == before.kind and after.files[: len(before.files)] == before.files


def changes(before: Table, after: Table) -> Iterator[RowChange]:
    """Compare two versions of a table; rows must be of one kind."""
    if continues(after, before):
        yield _from_deltas(before, [DeltaFile(path, after.kind) for path in after.files[len(before.files) :]])
    else:
        yield from _from_rows(before, after)


def _from_rows(before: Table, after: Table) -> Iterator[RowChange]:
    for old, new in aligned([_windows(before), _windows(after)]):
        old_rows, new_rows = (_like(a, b) for a, b in ((old, new), (new, old)))
        added, changed, removed = _core.diff(
            old_rows.keys, list(old_rows.columns), new_rows.keys, list(new_rows.columns)
        )
        if not (len(added) or len(changed) or len(removed)):
            continue
        fresh = new_rows.take(np.sort(np.concatenate([added, changed])))
        replaced = np.searchsorted(old_rows.keys, new_rows.keys[changed]).astype(np.uint64)
        gone = old_rows.take(np.sort(np.concatenate([replaced, removed])))
        yield RowChange(fresh.keys, joined(fresh), old_rows.keys[removed], gone.keys, joined(gone))


def _windows(table: Table) -> Iterator[Rows]:
    """Read rows in order; a table that is one file is read in place, without a copy."""
    if len(table.files) > 1:
        yield from table.stream()
        return
    file = SafetensorsFile(table.files[0])
    keys, *columns = (file.array(name) for name in table.kind.columns(0))
    for start in range(0, len(keys), ROWS_PER_WINDOW):
        some = slice(start, start + ROWS_PER_WINDOW)
        yield Rows.of(keys[some], *(column[some] for column in columns))


def _like(rows: Rows, other: Rows) -> Rows:
    """Give an empty side the columns of the other."""
    if rows.columns:
        return rows
    return Rows(np.empty(0, np.uint64), tuple(np.empty((0, column.shape[1]), np.uint8) for column in other.columns))


def _from_deltas(before: Table, deltas: list[DeltaFile]) -> RowChange:
    """Merge deltas into one: of a key's changes, the last counts."""
    width = before.kind.row_bytes
    keys, values, is_put = _rows_of_delta(*_read(deltas[0], width))
    for delta in deltas[1:]:
        more, rows, is_there = _rows_of_delta(*_read(delta, width))
        stays = ~_places(more, keys)[0]
        keys, values, is_put = _in_order(
            np.concatenate([keys[stays], more]),
            np.concatenate([values[stays], rows]),
            np.concatenate([is_put[stays], is_there]),
        )
    old, was_there = find_rows(before, keys)
    if is_put.all() and was_there.all():
        return RowChange(keys, values, np.empty(0, np.uint64), keys, old)
    gone = ~is_put & was_there
    return RowChange(keys[is_put], values[is_put], keys[gone], keys[was_there], old[was_there])


def _rows_of_delta(put: Keys, values: Bytes, removed: Keys) -> tuple[Keys, Bytes, NDArray[np.bool_]]:
    """Return the keys of a delta in order, with their rows, and a mask of the keys that it puts."""
    if not len(removed):
        return put, values, np.ones(len(put), bool)
    return _in_order(
        np.concatenate([put, removed]),
        np.concatenate([values, np.zeros((len(removed), values.shape[1]), np.uint8)]),
        np.repeat([True, False], [len(put), len(removed)]),
    )


def _in_order(keys: Keys, values: Bytes, is_put: NDArray[np.bool_]) -> tuple[Keys, Bytes, NDArray[np.bool_]]:
    order = np.argsort(keys, kind="stable")
    return keys[order], values[order], is_put[order]


def find_rows(table: Table, keys: Keys) -> tuple[Bytes, NDArray[np.bool_]]:
    """Return the rows of some keys as servers hold them, and a mask of those found; reads only parts of the table."""
    width = table.kind.row_bytes
    values, found = np.zeros((len(keys), width), np.uint8), np.zeros(len(keys), bool)
    open_places = np.arange(len(keys))
    for path in reversed(table.files[1:]):
        put, rows, gone = _read(DeltaFile(path, table.kind), width)
        here, at = _places(put, keys[open_places])
        values[open_places[here]], found[open_places[here]] = rows[at[here]], True
        removed, _ = _places(gone, keys[open_places])
        open_places = open_places[~(here | removed)]
    base = SafetensorsFile(table.files[0])
    here, at = _places(base.array("keys"), keys[open_places])
    if not here.any():
        return values, found
    columns = [base.array(name) for name in table.kind.columns(0) if name != "keys"]
    some = joined(Rows.of(keys[open_places[here]], *(column[at[here]] for column in columns)))
    if len(some) == len(keys):  # all of them, and in order
        return some, here
    values[open_places[here]], found[open_places[here]] = some, True
    return values, found


def _places(among: Keys, keys: Keys) -> tuple[NDArray[np.bool_], NDArray[np.intp]]:
    """Return a mask of the keys that are among some ascending ones, and their positions."""
    at = np.searchsorted(among, keys)
    at[at == len(among)] = 0
    return (among[at] == keys if len(among) else np.zeros(len(keys), bool)), at


def _read(delta: DeltaFile, width: int) -> tuple[Keys, Bytes, Keys]:
    rows, removed = list(delta.rows()), list(delta.removed())
    return (
        np.concatenate([np.empty(0, np.uint64), *(window.keys for window in rows)]),
        np.concatenate([np.empty((0, width), np.uint8), *(joined(window) for window in rows)]),
        np.concatenate([np.empty(0, np.uint64), *(window.keys for window in removed)]),
    )
