"""Quick description of a file or a directory from heads, lists and a few rows; `check` reads every byte."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from cloudedge import _core
from cloudedge.cube.builder._dump import detect_format
from cloudedge.cube.formats import BuildName, Parameter, PartLists, TableFile, version_hint
from cloudedge.errors import InputError, IntegrityError
from cloudedge.native import file_errors
from cloudedge.seqfile import Reader, is_sequence_file

__all__ = ["inspect"]


def inspect(path: str | os.PathLike[str], *, rows: int = 3) -> dict[str, Any]:
    """Describe a SequenceFile, a table, a parameter, a part or a version as plain data.

    Args:
        path: The file or directory.
        rows: The number of first rows of a SequenceFile to show.

    Raises:
        InputError: the path holds none of these.
        IntegrityError: a part's lists are damaged.
    """
    path = Path(path)
    if path.is_dir():
        return _directory(path)
    if not path.is_file():
        raise InputError(f"there is nothing at {path}", path=str(path))
    if is_sequence_file(path):
        return _sequence_file(path, rows)
    form = detect_format(path)
    if form == "safetensors":
        table = TableFile.open(path)
        return {"kind": "table", "path": str(path), "rows": table.rows, "dim": table.dim, "dtype": table.dtype}
    if form == "parameter":
        parameter = Parameter.open(path)
        count, dim = parameter.shape
        return {"kind": "parameter", "path": str(path), "rows": count, "dim": dim, "dtype": parameter.dtype.name}
    raise InputError(
        f"{path} is no SequenceFile, table or parameter",
        hint="Text and numpy files need no inspecting.",
        path=str(path),
    )


def _sequence_file(path: Path, rows: int) -> dict[str, Any]:
    reader = Reader(path)
    first = reader.native.batch(rows) if rows > 0 else []
    return {
        "kind": "SequenceFile",
        "path": str(path),
        "bytes": reader.size_bytes,
        "first": [{"key": key, "bytes": len(value), "value": _shown(value)} for key, value in first],
    }


def _shown(value: bytes) -> list[float] | str:
    """Show a value as floats if possible, as hexadecimal digits otherwise; a long one only in part."""
    head = value[:64]
    floats = np.frombuffer(head, np.float32) if head and len(head) % 4 == 0 else np.empty(0, np.float32)
    return [float(str(x)) for x in floats] if len(floats) and np.isfinite(floats).all() else head.hex()


def _directory(path: Path) -> dict[str, Any]:
    if (path / "index.n").is_file():
        return {"kind": "part", "path": str(path), **_part(path)}
    parts = sorted(entry.parent for entry in path.glob("*_part*/index.n"))
    if not parts:
        raise InputError(
            f"{path} holds neither a part nor a version",
            hint=version_hint(path),
            path=str(path),
        )
    name = BuildName.parse(path.name)
    return {
        "kind": "version",
        "path": str(path),
        "version": name.current if name else None,
        "depend": name.depend if name else None,
        "parts": [{"part": part.name, **_part(part)} for part in parts],
    }


def _part(path: Path) -> dict[str, Any]:
    with file_errors("read the part's lists", damaged=IntegrityError, hint="Fetch or build it again."):
        lists = PartLists.from_native(_core.read_part_files(path))
    return {
        "entries": lists.entries,
        "data_files": len(lists.data_lengths),
        "index_files": len(lists.index_lengths),
        "data_bytes": sum(lists.data_lengths),
    }
