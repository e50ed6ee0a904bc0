"""Merge of SequenceFiles into one sorted table: of each key, the last row counts.

Takes 16 bytes of memory per row and the largest input file; keys and values are on disk meanwhile. Values are copied as
bytes, so rows that a trainer quantised or packed stay as they are.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloudedge import seqfile
from cloudedge.bundle import RowType, Table
from cloudedge.bundle.tables import ROWS_PER_WINDOW, Rows, table_bytes
from cloudedge.cube.formats import verify_md5
from cloudedge.errors import InputError, IntegrityError, StorageError
from cloudedge.io import publish

__all__ = ["Layer", "kind_of", "merge_rows", "row_files"]

_MD5 = ".md5"

Layer = tuple[Path, Callable[[Path], str]]
"""A directory or file, and a function that names a file of it in messages."""


def merge_rows(layers: Sequence[Layer], target: Path) -> Table:
    """Write a table of the rows in `layers`, later ones over earlier ones, unless it is there already.

    Raises:
        InputError: a file is no whole SequenceFile (file and byte), rows differ in length, or there are none.
        StorageError: there is no room.
    """
    if not target.exists():
        scratch = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        try:
            scratch.mkdir(parents=True)
            width = _concatenate(layers, scratch)
            _write_sorted(scratch, width)
            publish(scratch / "table", target)
        except OSError as error:
            raise StorageError(
                f"cannot write {target}: {error.strerror}", hint="Free space there.", path=str(target)
            ) from error
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return Table([target])


def _concatenate(layers: Sequence[Layer], scratch: Path) -> int:
    """Write all keys and all values, in order, each into one file; returns the bytes of a value."""
    width: int | None = None
    with (scratch / "keys").open("wb") as keys, (scratch / "values").open("wb") as values:
        for directory, called in layers:
            for path in row_files(directory):
                _compare_md5(path, called)
                rows = _read(path, called(path))
                if not len(rows.keys):
                    continue
                found = rows.values.shape[1]
                if width not in {None, found}:
                    raise InputError(
                        f"{called(path)} has rows of {found} bytes, others have {width}",
                        hint="All rows of a table have one width: check the program that wrote this file.",
                        path=called(path),
                    )
                width = found
                rows.keys.tofile(keys)
                rows.values.tofile(values)
    if width is None:
        named = ", ".join(called(directory / "*") for directory, called in layers)
        raise InputError(f"there is no row in {named}", hint="Check what the donefile's 'input' points to.")
    return width


def row_files(path: Path) -> Iterator[Path]:
    """List a layer's files in the order of their names, without hidden ones, Hadoop's own, and .md5 files.

    Raises:
        InputError: a directory cannot be read.
    """
    if not path.is_dir():
        yield path
        return
    try:
        entries = sorted(path.iterdir(), key=lambda each: each.name.encode(errors="surrogateescape"))
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}", hint="Check its permissions, then run again.", path=str(path)
        ) from error
    for entry in entries:
        is_note = entry.name.endswith(_MD5) and entry.with_name(entry.name.removesuffix(_MD5)).is_file()
        if entry.name.startswith((".", "_")) or entry.is_symlink() or is_note:
            continue
        yield from row_files(entry)


def _compare_md5(path: Path, called: Callable[[Path], str]) -> None:
    """Compare a file with the `md5sum` line beside it, as upstream keeps one beside a tar; there may be none.

    Raises:
        IntegrityError: they differ.
    """
    note = path.with_name(path.name + _MD5)
    if not note.is_file():
        return
    try:
        verify_md5(path)
    except IntegrityError as error:
        raise IntegrityError(
            f"{called(path)} is not what {note.name} beside it says: {error.message}",
            hint="Write both again, and the donefile's line after them.",
            path=called(path),
        ) from error


def _read(path: Path, called: str) -> seqfile.Table:
    try:
        return seqfile.read_table(path)
    except InputError as error:
        at = f", byte {error.facts['offset']}" if "offset" in error.facts else ""
        why = error.message.rpartition(f"{path}{at}")[2].strip(" :,")
        raise InputError(
            f"{called}{at} is not a whole SequenceFile: {why}",
            hint="Write it again, and the donefile's line after it. Convert other tables with `cloudedge cube dump`.",
            path=called,
            offset=error.facts.get("offset"),
        ) from error


def _write_sorted(scratch: Path, width: int) -> None:
    kind = kind_of(width)
    keys: NDArray[np.uint64] = np.fromfile(scratch / "keys", np.uint64)
    values: NDArray[Any] = np.memmap(scratch / "values", np.uint8, "r", 0, (len(keys), width))
    order = np.argsort(keys, kind="stable")
    order = order[np.append(keys[order[1:]] != keys[order[:-1]], True)]  # the last row of each key

    def stream() -> Iterator[Rows]:
        for start in range(0, len(order), ROWS_PER_WINDOW):
            some = order[start : start + ROWS_PER_WINDOW]
            yield Rows(keys[some], (np.ascontiguousarray(values[some]),))

    with (scratch / "table").open("wb") as out:
        for chunk in table_bytes(kind, len(order), stream):
            out.write(chunk)


def kind_of(width: int) -> RowType:
    """Return the row type of a width in bytes; servers do not care about the type of the numbers.

    Widths that cannot be floats, such as 8-bit rows of an odd dimension, are bytes.
    """
    fits = next(each for each in (np.dtype("<f4"), np.dtype("<f2"), np.dtype("u1")) if width % each.itemsize == 0)
    return RowType(fits, width // fits.itemsize)
