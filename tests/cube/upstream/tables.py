"""Tables and builds for the tests of this folder."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from cloudedge import seqfile
from cloudedge.cube import BuildReport, build

Rows = dict[int, tuple[float, ...]]


def value(*floats: float) -> bytes:
    return struct.pack(f"<{len(floats)}f", *floats)


def table(rows: int, scale: float = 1.0) -> Rows:
    return {key: (key * scale, -key * scale) for key in range(rows)}


def write_rows(path: Path, rows: Rows) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with seqfile.Writer(path) as out:
        keys = np.array(list(rows), np.uint64)
        out.append_rows(keys, np.array(list(rows.values()), "<f4").reshape(len(rows), -1))
    return path


def build_rows(root: Path, version: int, rows: Rows, *, shards: int = 1, **more: object) -> BuildReport:
    source = write_rows(root / f"seq{version}" / "part-0", rows)
    return build([source], output=root / "out", table="ctr", shards=shards, version=version, **more)
