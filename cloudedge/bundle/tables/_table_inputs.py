"""Table inputs: read trained embeddings from common formats as canonical rows (ascending unique keys, no NaN).

Accepted: safetensors (``keys``, ``values``, and ``scale`` for int8), npz with the same names, npy (a matrix whose
row numbers are the keys), a cube SequenceFile, or arrays in memory. Sorted input streams; unsorted input is
sorted by its keys (16 bytes of memory per row) and read in that order.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from cloudedge import _core
from cloudedge.bundle.tables._rows import ROWS_PER_WINDOW, VALUE_DTYPES, Checksum, Rows, RowType
from cloudedge.bundle.tables._safetensors import ArrayFile, ArraySpec, SafetensorsFile
from cloudedge.errors import InputError

__all__ = ["CanonicalRows", "OnDuplicate", "TableSource", "canonical", "read_source"]

OnDuplicate = Literal["refuse", "last"]
TableSource = str | Path | Mapping[str, NDArray[Any]]
"""The source of a table: a file, or arrays in memory."""

_ZIP_LOCAL_HEADER = 30
_ACCEPTED_KINDS = "accepted: .safetensors, .npz (keys, values), .npy (rows by number) or .seq"


class _Arrays(Protocol):
    arrays: dict[str, ArraySpec]

    def read(self, name: str, start: int, stop: int) -> NDArray[Any]: ...

    def array(self, name: str) -> NDArray[Any]: ...


class _ArraysInMemory:
    """Arrays in memory."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._held = {name: np.asarray(array) for name, array in arrays.items()}
        self.arrays = {name: ArraySpec(a.dtype, a.shape) for name, a in self._held.items()}

    def read(self, name: str, start: int, stop: int) -> NDArray[Any]:
        return self._held[name][start:stop]

    def array(self, name: str) -> NDArray[Any]:
        return self._held[name]


@dataclass(frozen=True)
class CanonicalRows:
    """A table's rows in canonical order, streamable any number of times."""

    kind: RowType
    rows: int
    checksum: Checksum
    notes: tuple[str, ...]
    """Repairs made on the way, for people."""
    file: Path | None
    """The input file, if it holds exactly these rows as a table."""
    stream: Callable[[], Iterator[Rows]]


def read_source(source: TableSource) -> tuple[_Arrays, str]:
    """Open a table's source; returns its arrays and its name for messages.

    Raises:
        InputError: the source is unreadable, or of no accepted kind.
    """
    if isinstance(source, Mapping):
        return _ArraysInMemory(source), "the table"
    path = Path(source)
    if not path.is_file():
        raise InputError(f"the file {path} does not exist", path=str(path))
    suffix = path.suffix.lower()
    if suffix == ".safetensors":
        return SafetensorsFile(path), str(path)
    if suffix == ".npz":
        return _open_npz(path), str(path)
    if suffix == ".npy":
        matrix = _load_npy(path)
        return _ArraysInMemory({"keys": np.arange(len(matrix), dtype=np.uint64), "values": matrix}), str(path)
    if suffix == ".seq":
        return _open_sequence_file(path), str(path)
    raise InputError(f"{path}: cloudedge does not read tables of this kind ({_ACCEPTED_KINDS})", path=str(path))


def _open_sequence_file(path: Path) -> _Arrays:
    from cloudedge import seqfile  # noqa: PLC0415 - needed for this kind of input only

    table = seqfile.read_table(path)
    width = table.values.shape[1] if len(table.keys) else 0
    if width % 4:
        raise InputError(
            f"{path}: its values have {width} bytes, which is not a whole number of float32", path=str(path)
        )
    return _ArraysInMemory({"keys": table.keys, "values": table.values.view(np.float32)})


def _load_npy(path: Path) -> NDArray[Any]:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path} is not a numpy file: {error}", path=str(path)) from error


def _open_npz(path: Path) -> _Arrays:
    try:
        with zipfile.ZipFile(path) as archive:
            members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
            if any(info.compress_type != zipfile.ZIP_STORED for info in members):
                with np.load(path, allow_pickle=False) as loaded:
                    return _ArraysInMemory(dict(loaded))
            return ArrayFile(path, {i.filename.removesuffix(".npy"): _npy_in_zip(archive, path, i) for i in members})
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} is not an npz file: {error}", path=str(path)) from error


def _npy_in_zip(archive: zipfile.ZipFile, path: Path, info: zipfile.ZipInfo) -> ArraySpec:
    """Find the offset of an uncompressed member's numbers, so that they can be read in place."""
    with archive.open(info) as member:
        version = np.lib.format.read_magic(member)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(member)
        header = member.tell()
    if fortran and len(shape) > 1:
        raise ValueError(f"{info.filename} is stored by columns; save it with `numpy.ascontiguousarray`")
    with path.open("rb") as file:
        file.seek(info.header_offset)
        local = file.read(_ZIP_LOCAL_HEADER)
    name, extra = int.from_bytes(local[26:28], "little"), int.from_bytes(local[28:30], "little")
    spec = ArraySpec(dtype, shape, info.header_offset + _ZIP_LOCAL_HEADER + name + extra + header)
    if header + spec.size_bytes != info.file_size:
        raise ValueError(f"{info.filename} holds {info.file_size - header} bytes, not {spec.size_bytes}")
    return spec


def canonical(source: TableSource, *, on_duplicate: OnDuplicate) -> CanonicalRows:
    """Check a source and return its rows in canonical order.

    Raises:
        InputError: not a table, a NaN, or a repeated key while `on_duplicate` is "refuse"; names the rows.
    """
    arrays, what = read_source(source)
    kind, rows = _check_shape(arrays, what)
    names = list(kind.columns(0))

    def in_order() -> Iterator[Rows]:
        for start in range(0, rows, ROWS_PER_WINDOW):
            keys, *columns = (arrays.read(n, start, min(start + ROWS_PER_WINDOW, rows)) for n in names)
            yield Rows.of(np.ascontiguousarray(keys).astype(np.uint64, copy=False), *columns)

    checksum, disorder = _check_rows(arrays, in_order, names, what)
    if disorder < 0:
        is_table = isinstance(arrays, SafetensorsFile) and set(arrays.arrays) == set(names)
        file = arrays.path if isinstance(arrays, SafetensorsFile) and is_table else None
        return CanonicalRows(kind, rows, checksum, (), file, in_order)

    order, notes = _canonical_order(arrays.array("keys").astype(np.uint64, copy=False), disorder, on_duplicate, what)

    def sorted_rows() -> Iterator[Rows]:
        views = [arrays.array(name) for name in names]
        for start in range(0, len(order), ROWS_PER_WINDOW):
            some = order[start : start + ROWS_PER_WINDOW]
            keys, *columns = (view[some] for view in views)
            yield Rows.of(keys.astype(np.uint64, copy=False), *columns)

    if len(order) != rows:
        checksum = sum((window.checksum() for window in sorted_rows()), Checksum())
    return CanonicalRows(kind, len(order), checksum, tuple(notes), None, sorted_rows)


def _check_shape(arrays: _Arrays, what: str) -> tuple[RowType, int]:
    keys, values = arrays.arrays.get("keys"), arrays.arrays.get("values")
    if keys is None or values is None:
        raise InputError(f"{what} holds {sorted(arrays.arrays)}; a table needs 'keys' and 'values'")
    if keys.dtype not in (np.uint64, np.int64) or len(keys.shape) != 1:
        raise InputError(f"{what}: 'keys' is {keys.dtype.name}{list(keys.shape)}, not uint64[rows]")
    if len(values.shape) != 2 or values.dtype not in VALUE_DTYPES:  # noqa: PLR2004 - rows x dim
        raise InputError(
            f"{what}: 'values' is {values.dtype.name}{list(values.shape)}, not float32/float16/int8[rows, dim]"
        )
    kind = RowType(values.dtype, values.shape[1])
    scale = arrays.arrays.get("scale")
    if kind.has_scale and (scale is None or scale.dtype != np.float32 or scale.shape != keys.shape):
        raise InputError(f"{what}: int8 rows need a 'scale' of float32[rows]")
    if values.shape[0] != keys.shape[0]:
        raise InputError(f"{what}: {keys.shape[0]} keys and {values.shape[0]} rows of values")
    return kind, keys.shape[0]


def _check_rows(
    arrays: _Arrays, windows: Callable[[], Iterator[Rows]], names: list[str], what: str
) -> tuple[Checksum, int]:
    """Sum up the rows, refuse NaN, and return the first row that is out of order (-1: none)."""
    checksum, disorder, start, before = Checksum(), -1, 0, None
    floats = [(i - 1, n, arrays.arrays[n].dtype) for i, n in enumerate(names) if arrays.arrays[n].dtype.kind == "f"]
    for window in windows():
        checksum += window.checksum()
        if disorder < 0:
            found = _core.first_disorder(window.keys, before or 0, before is not None)
            disorder = start + found if found >= 0 else -1
        for column, name, dtype in floats:
            values = window.columns[column].view(dtype)
            # One NaN makes the sum NaN, without a second array; infinities of both signs do, too.
            with np.errstate(invalid="ignore", over="ignore"):
                suspect = np.isnan(values.sum(dtype=np.float64))
            if suspect and np.isnan(values).any():
                row = int(np.isnan(values).any(axis=1).argmax())
                raise InputError(
                    f"{what}: '{name}' of row {start + row} (key {window.keys[row]}) is not a number",
                    hint="Look at the training step that wrote this row: a model that answers NaN cannot be released.",
                    row=start + row,
                    key=int(window.keys[row]),
                )
        start += len(window)
        before = int(window.keys[-1])
    return checksum, disorder


def _canonical_order(
    keys: NDArray[np.uint64], disorder: int, on_duplicate: OnDuplicate, what: str
) -> tuple[NDArray[np.int64], list[str]]:
    """Return the row numbers in canonical order, one per key."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    notes = []
    if (keys[1:] < keys[:-1]).any():
        notes.append(f"{what}: not sorted from row {disorder} on (key {keys[disorder]}); sorted it")
    last_of_key = np.append(ordered[1:] != ordered[:-1], True)
    repeated = len(order) - int(last_of_key.sum())
    if repeated:
        at = int((~last_of_key).argmax())
        first, second = int(order[at]), int(order[at + 1])
        if on_duplicate == "refuse":
            raise InputError(
                f"{what}: key {ordered[at]} is in row {first} and again in row {second} "
                f"({repeated} repeated rows in all)",
                hint="Repair the source, or keep the last row of each key with `--on-duplicate last`.",
                key=int(ordered[at]),
                rows=(first, second),
            )
        notes.append(
            f"{what}: {repeated} repeated rows dropped, the last of each key kept "
            f"(first: key {ordered[at]}, rows {first} and {second})"
        )
    return order[last_of_key], notes
