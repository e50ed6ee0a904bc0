"""Tables in whatever form a trainer left them become SequenceFiles.

Takes a Paddle parameter (LoDTensor), a numpy array (.npy, or .npz with `keys` and `values`), a bundle's safetensors
table, or text. Rows of a parameter or a plain array have their row number as key. Values become float32, the only
type that upstream's serving ops read, or 8-bit rows.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloudedge.cube._lodtensor import Parameter, looks_like_parameter
from cloudedge.cube._quant import quantise
from cloudedge.cube._safetensors import TableFile
from cloudedge.cube._text import read_text
from cloudedge.errors import InputError
from cloudedge.seqfile import Writer

__all__ = ["FORMATS", "DumpReport", "detect_format", "dump"]

FORMATS = ("parameter", "numpy", "safetensors", "text")

_ROWS = 1 << 16  # converted at a time
_DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2")}


@dataclass(frozen=True)
class DumpReport:
    """What was written."""

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
    """Recognise a file by its first bytes; what is nothing else is text."""
    path = Path(path)
    try:
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
    quantised: bool = False,
    sync: bytes | None = None,
) -> DumpReport:
    """Write a table as a SequenceFile.

    Args:
        source: The table.
        output: The new file.
        form: One of `FORMATS`; recognised when not given.
        quantised: Write 8-bit rows with a range of their own instead of floats.
        sync: The file's sync marker; random when not given.

    Raises:
        InputError: `source` is not a table in that form.
        Conflict: `output` exists.
        StorageError: it cannot be written.
    """
    form = form or detect_format(source)
    if form not in FORMATS:
        raise InputError(f"{form!r} is no input format", hint=f"One of: {', '.join(FORMATS)}.", format=form)
    if form == "text" and quantised:
        raise InputError("text rows may differ in length and are not quantised", hint="Quantise an array instead.")
    count = 0
    table = None if form == "text" else _open(Path(source), form)
    with Writer(output, sync=sync) as out:
        if table is None:
            for key, value in read_text(source):
                out.append(key, value)
                count += 1
        else:
            for keys, values in table.windows():
                rows = _float32(values, source)
                out.append_rows(keys, quantise(rows) if quantised else rows)
                count += len(keys)
    return DumpReport(Path(output), form, count, Path(output).stat().st_size)


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
    return _open_numpy(source)


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
