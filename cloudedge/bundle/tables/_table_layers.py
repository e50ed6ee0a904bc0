"""Store a table's rows as layers: a new base, or a delta on the parent's chain if that is smaller."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cloudedge.bundle import media_types as media
from cloudedge.bundle.tables._delta_file import DeltaWriter
from cloudedge.bundle.tables._rows import Rows, RowType, difference
from cloudedge.bundle.tables._table import Table, base_header
from cloudedge.bundle.tables._table_inputs import CanonicalRows
from cloudedge.config import Limits
from cloudedge.hub import Adoption, Descriptor, LocalHub, hash_file

__all__ = ["PackedTable", "ParentTable", "pack_table", "should_chain", "table_bytes"]


@dataclass(frozen=True)
class ParentTable:
    """The layers and rows of a table in the parent bundle."""

    layers: tuple[Descriptor, ...]
    table: Table


@dataclass(frozen=True)
class PackedTable:
    """The layers of a packed table and how it was stored."""

    layers: tuple[Descriptor, ...]
    rows: int
    shipped_bytes: int
    """Bytes that the parent does not have."""
    is_delta: bool
    linked: Path | None = None
    """The source file, if the hub links it."""


def should_chain(chain: tuple[int, ...], delta_bytes: int, base_bytes: int, limits: Limits) -> bool:
    """Decide between one more delta and a new base. Pure.

    Args:
        chain: Sizes of the parent's layers, base first.
        delta_bytes: Size of the delta.
        base_bytes: Size of a new base.
        limits: Limits of a chain's length and size.
    """
    base, *deltas = chain
    return (
        delta_bytes < base_bytes
        and len(deltas) < limits.max_deltas
        and sum(deltas) + delta_bytes <= limits.max_delta_share * base
    )


def pack_table(
    hub: LocalHub, name: str, source: CanonicalRows, parent: ParentTable | None, *, limits: Limits, how: Adoption
) -> PackedTable:
    """Store a table's rows in the hub and return their layers.

    `how` is the way a source file that is already a canonical table gets into the hub.
    """
    base_bytes = len(base_header(source.kind, source.rows)) + source.rows * (8 + source.kind.row_bytes)
    with hub.scratch() as scratch:
        if parent is not None and parent.table.kind == source.kind:
            sizes = tuple(layer.size for layer in parent.layers)
            delta = _write_delta(
                scratch / "delta", parent.table, source, lambda size: should_chain(sizes, size, base_bytes, limits)
            )
            if delta is not None:
                if delta.stat().st_size == 0:
                    return PackedTable(parent.layers, source.rows, 0, is_delta=True)
                layer, _ = _adopt(hub, delta, name, media.TABLE_DELTA, source, how="move")
                return PackedTable((*parent.layers, layer), source.rows, layer.size, is_delta=True)
        file = source.file
        if file is None:
            file = scratch / "base"
            with file.open("wb") as out:
                for chunk in table_bytes(source.kind, source.rows, source.stream):
                    out.write(chunk)
            how = "move"
        layer, is_linked = _adopt(hub, file, name, media.TABLE_BASE, source, how=how)
    return PackedTable((layer,), source.rows, layer.size, is_delta=False, linked=file if is_linked else None)


def table_bytes(kind: RowType, rows: int, stream: Callable[[], Iterator[Rows]]) -> Iterator[bytes]:
    """Write rows as a base file, in chunks. The rows are streamed once per array."""
    yield base_header(kind, rows)
    for window in stream():
        yield window.keys.tobytes()
    for column in range(1 + kind.has_scale):
        for window in stream():
            yield window.columns[column].tobytes()


def _adopt(
    hub: LocalHub, file: Path, name: str, media_type: str, source: CanonicalRows, *, how: Adoption
) -> tuple[Descriptor, bool]:
    hashed = hash_file(file)
    notes = {
        media.TABLE_NAME: name,
        media.TABLE_ROWS: str(source.rows),
        media.TABLE_CHECKSUM: str(source.checksum),
    }
    return Descriptor(media_type, hashed.digest, hashed.size, notes), hub.adopt(file, hashed, how=how)


def _write_delta(path: Path, before: Table, after: CanonicalRows, worth: Callable[[int], bool]) -> Path | None:
    """Write the delta between two tables: an empty file if they are equal, None once it is no longer worth it."""
    path.touch()
    with DeltaWriter(path.parent) as writer:
        for window in difference(before.stream(), after.stream()):
            writer.add(window)
            if not worth(writer.size):
                return None
        if writer.size:
            base = before.recorded_checksum or str(before.checksum)
            writer.write(path, base=base, result=str(after.checksum), result_rows=after.rows)
    return path
