"""Conversion of tables, in any form that a trainer writes, to SequenceFiles or safetensors tables.

Accepts a Paddle parameter (LoDTensor), a numpy array (.npy, or .npz with `keys` and `values`), a bundle's safetensors
table, text, a SequenceFile, or a built part. Rows of a parameter or a plain array have their row number as key. Values
become float32, the only type that upstream's serving ops read, or 8-bit rows. Values of a SequenceFile or a part carry
no type and stay as they are. Text is never recognised as `columns`: the caller says so.
"""

from __future__ import annotations

import os
import secrets
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloudedge.cube.builder._merge_seqfiles import merge_rows
from cloudedge.cube.builder._part_store import PartStore
from cloudedge.cube.formats import Parameter, TableFile, looks_like_parameter, quantise, read_text
from cloudedge.errors import Conflict, InputError
from cloudedge.seqfile import Writer, is_sequence_file

__all__ = ["FORMATS", "TARGETS", "DumpReport", "detect_format", "dump"]

FORMATS = ("parameter", "numpy", "safetensors", "text", "columns", "sequence", "part")
TARGETS = ("sequence", "safetensors")

_ROWS = 1 << 16  # converted at a time
_DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "U8": np.dtype("u1")}


@dataclass(frozen=True)
class DumpReport:
    """The file that was written, and its rows."""

    output: Path
    format: str
    rows: int
    size_bytes: int


@dataclass(frozen=True)
class _Rows:
    """Keys (row numbers when None) and their rows."""

    keys: NDArray[np.uint64] | None
    values: NDArray[Any]

    def windows(self) -> Iterator[tuple[NDArray[np.uint64], NDArray[Any]]]:
        for start in range(0, len(self.values), _ROWS):
            stop = min(start + _ROWS, len(self.values))
            keys = np.arange(start, stop, dtype=np.uint64) if self.keys is None else self.keys[start:stop]
            yield keys, self.values[start:stop]


def detect_format(path: str | os.PathLike[str]) -> str:
    """Recognise the format of a file by its first bytes; any other file is text."""
    path = Path(path)
    if path.is_dir():
        return "part" if (path / "index.n").is_file() else "sequence"
    try:
        if is_sequence_file(path):
            return "sequence"
        with path.open("rb") as file:
            head = file.read(16)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", path=str(path)) from error
    if head[:6] == b"\x93NUMPY" or head[:4] == b"PK\x03\x04":
        return "numpy"
    if looks_like_parameter(head):
        return "parameter"
    if head[8:9] == b"{":
        return "safetensors"
    return "text"


def dump(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    form: str | None = None,
    to: str | None = None,
    quantised: bool = False,
    sync: bytes | None = None,
) -> DumpReport:
    """Write a table as a SequenceFile, or as a safetensors table.

    Args:
        source: The table; for a safetensors one also a directory of SequenceFiles, later ones winning.
        output: The new file.
        form: One of `FORMATS`; recognised when not given.
        to: One of `TARGETS`; by the suffix of `output` when not given.
        quantised: Write 8-bit rows with a range of their own instead of floats.
        sync: A SequenceFile's sync marker; random when not given.

    Raises:
        InputError: `source` is not a table in that format.
        Conflict: `output` exists.
        StorageError: `output` cannot be written.
    """
    form = form or detect_format(source)
    if form not in FORMATS:
        raise InputError(f"{form!r} is no input format", hint=f"Use one of: {', '.join(FORMATS)}.", format=form)
    to = to or ("safetensors" if Path(output).suffix == ".safetensors" else "sequence")
    if to not in TARGETS:
        raise InputError(f"{to!r} is no output format", hint=f"Use one of: {', '.join(TARGETS)}.", format=to)
    if form in ("text", "columns", "sequence", "part") and quantised:
        raise InputError(
            f"rows of {form} form have no known type and are not quantised", hint="Quantise an array instead."
        )
    if to == "safetensors":
        return _dump_table(Path(source), Path(output), form, quantised=quantised)
    if form == "sequence":
        raise InputError(f"{source} is a SequenceFile already", hint="Name the new file *.safetensors for a table.")
    count = 0
    table = None if form in ("text", "columns") else _open(Path(source), form)
    with Writer(output, sync=sync) as out:
        if table is None:
            for key, value in read_text(source, columns=form == "columns"):
                out.append(key, value)
                count += 1
        else:
            for keys, values in table.windows():
                rows = values if values.dtype == np.uint8 else _float32(values, source)
                out.append_rows(keys, quantise(rows) if quantised else rows)
                count += len(keys)
    return DumpReport(Path(output), form, count, Path(output).stat().st_size)


def _dump_table(source: Path, output: Path, form: str, *, quantised: bool) -> DumpReport:
    """Write a safetensors table; any source but a SequenceFile becomes one first, which sorts it."""
    if output.exists():
        raise Conflict(f"{output} exists", hint="Choose another name, or remove it.", path=str(output))
    between = output.with_name(f".{output.name}.{secrets.token_hex(4)}.seq")
    try:
        if form != "sequence":
            dump(source, between, form=form, to="sequence", quantised=quantised)
        table = merge_rows([(source, str) if form == "sequence" else (between, lambda _: str(source))], output)
    finally:
        between.unlink(missing_ok=True)
    return DumpReport(output, form, len(table), output.stat().st_size)


def _float32(values: NDArray[Any], source: str | os.PathLike[str]) -> NDArray[np.float32]:
    try:
        with np.errstate(over="raise"):
            return np.ascontiguousarray(values, np.float32)
    except FloatingPointError as error:
        raise InputError(f"{source} holds a number that float32 cannot", path=str(source)) from error


def _open(source: Path, form: str) -> _Rows:
    if form == "parameter":
        return _Rows(None, Parameter.open(source).values)
    if form == "safetensors":
        table = TableFile.open(source)
        keys = np.memmap(source, np.uint64, "r", table.keys_offset, (table.rows,)) if table.rows else np.empty(0, "u8")
        shape = (table.rows, table.dim)
        dtype = _DTYPES[table.dtype]
        empty = 0 in shape
        values = np.empty(shape, dtype) if empty else np.memmap(source, dtype, "r", table.values_offset, shape)
        return _Rows(keys, values)
    return _open_part(source) if form == "part" else _open_numpy(source)


def _open_part(source: Path) -> _Rows:
    """Read a part's rows in the order of their keys."""
    store = PartStore.open(source, mapped=True)
    if len(store) and store.width is None:
        raise InputError(
            f"the rows of {source} differ in length", hint="A table has rows of one length.", path=str(source)
        )
    indexes = sorted(source.glob("index.[0-9]*"))
    keys = np.unique(np.concatenate([np.empty(0, "<u8"), *(np.fromfile(each, "<u8")[::2] for each in indexes)]))
    values, _ = store.lookup(keys, dtype=np.uint8)
    return _Rows(keys.astype(np.uint64), values)


def _open_numpy(source: Path) -> _Rows:
    try:
        loaded = np.load(source, mmap_mode="r", allow_pickle=False)
        pair = (None, loaded) if isinstance(loaded, np.ndarray) else (loaded["keys"], loaded["values"])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise _bad_array(source, str(error)) from error
    keys, values = pair
    if values.ndim != 2 or values.dtype.kind != "f":  # noqa: PLR2004 - rows x dim
        raise _bad_array(source, f"the rows are {values.dtype}{list(values.shape)}, not floats of two dimensions")
    if keys is not None and (keys.shape != values.shape[:1] or keys.dtype.kind not in "iu"):
        raise _bad_array(source, f"'keys' is {keys.dtype}{list(keys.shape)}, not {len(values)} integers")
    return _Rows(None if keys is None else keys.astype(np.uint64), values)


def _bad_array(source: Path, why: str) -> InputError:
    return InputError(
        f"{source} is not an array that can become a table: {why}",
        hint="Save rows with np.save, or np.savez(keys=..., values=...).",
        path=str(source),
    )
