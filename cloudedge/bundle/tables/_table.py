"""A sparse table: a base file and a short chain of deltas, read as one set of sorted rows.

A base is a safetensors file of ``keys`` (uint64, ascending, unique) and ``values`` (rows × dim; float32, float16,
or int8 with a float32 ``scale`` per row). A delta (see `_delta_file`) names the checksums of the rows before and
after, so that a delta on the wrong base is refused before it is applied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cloudedge.bundle.tables._delta_file import DeltaFile
from cloudedge.bundle.tables._rows import ROWS_PER_WINDOW, VALUE_DTYPES, Checksum, Rows, RowType, merged
from cloudedge.bundle.tables._safetensors import ArraySpec, SafetensorsFile, header_bytes
from cloudedge.errors import InputError, IntegrityError

__all__ = ["Table", "base_header", "row_type"]

_KEYS = np.dtype("<u8")


def base_header(kind: RowType, rows: int) -> bytes:
    """Return the header of a base file."""
    return header_bytes(kind.columns(rows), {})


def row_type(arrays: Mapping[str, ArraySpec]) -> RowType:
    """Return the row type of a base file from its header.

    Raises:
        InputError: the file is not a table; the message gives the reason.
    """
    keys, values = arrays.get("keys"), arrays.get("values")
    if keys is None or values is None:
        raise InputError("it has no 'keys' and 'values'")
    if keys.dtype != _KEYS or len(keys.shape) != 1:
        raise InputError(f"'keys' is {keys.dtype.name}{list(keys.shape)}, not uint64[rows]")
    # Packed bundles hold no uint8 values; tables of opaque bytes from other tools do.
    if len(values.shape) != 2 or values.dtype not in (*VALUE_DTYPES, np.uint8):  # noqa: PLR2004 - rows x dim
        raise InputError(
            f"'values' is {values.dtype.name}{list(values.shape)}, not float32/float16/int8/uint8[rows, dim]"
        )
    kind = RowType(values.dtype, values.shape[1])
    expected = {name: (s.dtype, s.shape) for name, s in kind.columns(keys.shape[0]).items()}
    found = {name: (s.dtype, s.shape) for name, s in arrays.items()}
    if found != expected:
        raise InputError(f"its arrays are {sorted(found)} of different lengths, or not {sorted(expected)}")
    return kind


class _BaseFile:
    """The base file of a table, checked for shape but not for order."""

    def __init__(self, path: Path) -> None:
        self.file = SafetensorsFile(path)
        try:
            self.kind = row_type(self.file.arrays)
        except InputError as error:
            raise InputError(f"{path} is not a table: {error.message}", path=str(path)) from None
        self.rows = self.file.arrays["keys"].shape[0]

    def stream(self) -> Iterator[Rows]:
        """Read the rows window by window."""
        for start in range(0, self.rows, ROWS_PER_WINDOW):
            stop = min(start + ROWS_PER_WINDOW, self.rows)
            keys, *columns = (self.file.read(name, start, stop) for name in self.kind.columns(0))
            yield Rows.of(keys, *columns)


class Table:
    """A sparse table of a bundle.

    `keys`, `values` and `scale` are views on the mapped file for a table that is one base file, and one merged
    copy in memory for a table with deltas. `stream` never holds more than a few windows.
    """

    def __init__(self, files: Sequence[Path], base_checksum: str = "") -> None:
        """Open a table.

        Args:
            files: The base and then its deltas.
            base_checksum: The checksum of the base's rows; needed when there are deltas.
        """
        self._base = _BaseFile(files[0])
        self.kind = self._base.kind
        self._deltas = [DeltaFile(path, self.kind) for path in files[1:]]
        self.recorded_checksum = base_checksum
        """The recorded checksum of the rows; empty if none was recorded."""
        self._rows = self._base.rows
        for delta in self._deltas:
            if delta.base != self.recorded_checksum:
                raise IntegrityError(
                    f"{delta.path} is a delta for rows {delta.base}, not for {self.recorded_checksum or 'unknown'}",
                    hint="The delta belongs to another base. Pack the table again without a parent.",
                )
            self.recorded_checksum, self._rows = delta.result, delta.result_rows

    @property
    def files(self) -> tuple[Path, ...]:
        """The table's files, base first."""
        return (self._base.file.path, *(delta.path for delta in self._deltas))

    @cached_property
    def checksum(self) -> Checksum:
        """The checksum of all rows, computed from the rows."""
        return sum((rows.checksum() for rows in self.stream()), Checksum())

    def __len__(self) -> int:
        return self._rows

    def stream(self) -> Iterator[Rows]:
        """Read all rows in order, window by window.

        Raises:
            IntegrityError: a delta does not fit its base.
        """
        if not self._deltas:
            yield from self._base.stream()
            return
        try:
            yield from merged(self._base.stream(), [(d.rows(), d.removed()) for d in self._deltas])
        except ValueError as error:
            raise IntegrityError(f"{self._deltas[-1].path}: {error}") from error

    @cached_property
    def _arrays(self) -> Mapping[str, NDArray[Any]]:
        names = self.kind.columns(0)
        if not self._deltas:
            return {name: self._base.file.array(name) for name in names}
        windows = list(self.stream())
        keys = np.concatenate([w.keys for w in windows]) if windows else np.empty(0, np.uint64)
        arrays: dict[str, NDArray[Any]] = {"keys": keys}
        for i, (name, spec) in enumerate(self.kind.columns(len(keys)).items()):
            if name != "keys":
                flat = [w.columns[i - 1].reshape(-1) for w in windows] or [np.empty(0, np.uint8)]
                arrays[name] = np.concatenate(flat).view(spec.dtype).reshape(spec.shape)
        return arrays

    @property
    def keys(self) -> NDArray[np.uint64]:
        """All keys, ascending."""
        return self._arrays["keys"]

    @property
    def values(self) -> NDArray[Any]:
        """All rows, in the order of their keys."""
        return self._arrays["values"]

    @property
    def scale(self) -> NDArray[np.float32] | None:
        """The rows' scales, for int8 tables."""
        return self._arrays.get("scale")

    def lookup(self, keys: ArrayLike) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return the rows of some keys, with zeros for missing ones, and a mask of the keys that were found."""
        wanted = np.asarray(keys, np.uint64)
        at = np.searchsorted(self.keys, wanted)
        at[at == len(self.keys)] = 0
        found = self.keys[at] == wanted if len(self.keys) else np.zeros(len(wanted), bool)
        values = np.zeros((len(wanted), self.kind.dim), self.kind.dtype)
        values[found] = self.values[at[found]]
        return values, found
