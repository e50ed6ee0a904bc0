"""Sparse tables: rows sorted by key, in base files and deltas."""

from __future__ import annotations

from cloudedge.bundle.tables._delta_file import DeltaFile, DeltaWriter
from cloudedge.bundle.tables._rows import ROWS_PER_WINDOW, Checksum, Delta, Rows, RowType, aligned, difference
from cloudedge.bundle.tables._safetensors import SafetensorsFile, read_header
from cloudedge.bundle.tables._table import Table, base_header, row_type
from cloudedge.bundle.tables._table_inputs import CanonicalRows, OnDuplicate, TableSource, canonical
from cloudedge.bundle.tables._table_layers import PackedTable, ParentTable, pack_table, table_bytes

__all__ = [
    "ROWS_PER_WINDOW",
    "CanonicalRows",
    "Checksum",
    "Delta",
    "DeltaFile",
    "DeltaWriter",
    "OnDuplicate",
    "PackedTable",
    "ParentTable",
    "RowType",
    "Rows",
    "SafetensorsFile",
    "Table",
    "TableSource",
    "aligned",
    "base_header",
    "canonical",
    "difference",
    "pack_table",
    "read_header",
    "row_type",
    "table_bytes",
]
