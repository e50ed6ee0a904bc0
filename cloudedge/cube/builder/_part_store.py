"""Lookup in built parts, loaded in this process.

A store is one version of one shard, immutable. Applying a delta gives another store that shares the first one's
memory. `cloudedge.cube.server` serves stores to others.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from cloudedge import _core
from cloudedge.cube.formats import read_checksum_file
from cloudedge.errors import InputError, IntegrityError
from cloudedge.native import file_errors

__all__ = ["MAX_VALUE_BYTES", "PartStore"]

MAX_VALUE_BYTES = 1024
"""The longest value that servers deliver; keys with longer ones are not found."""

_HINT = "Fetch or build it again."


class PartStore:
    """One version of one shard.

    Example:
        >>> store = PartStore.open("/data/cube/100_100/ctr_part0")    # doctest: +SKIP
        >>> values, found = store.lookup([2, 4, 6])                    # doctest: +SKIP

    Attributes:
        native: The compiled version, for compiled code that serves it.
    """

    def __init__(self, native: _core.Version) -> None:
        """Wrap a loaded version; use `open`."""
        self.native = native

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        *,
        name: str | None = None,
        mapped: bool = False,
        checksum: str | None = None,
        shard: tuple[int, int] | None = None,
    ) -> PartStore:
        """Load a part: the directory with index.n and data.n, as built or as unpacked.

        Args:
            directory: The part's directory.
            name: The version's name; the directory's name when not given.
            mapped: Leave keys and values in the files, which must not change meanwhile, instead of in memory.
            checksum: The checksum that the rows must have; that of the builder's checksum file, if left out.
            shard: ``(number, of)``: refuse keys that belong to another shard.

        Raises:
            InputError: there is no such part, or it holds another shard's keys.
            IntegrityError: a file is damaged (`path` and `offset` locate it), or the rows have another checksum.
        """
        path = Path(directory)
        if not (path / "index.n").is_file():
            parts = sorted(p.parent.name for p in path.glob("*/index.n"))[:3] if path.is_dir() else []
            hint = f"Open one of its parts: {', '.join(parts)}." if parts else "A part's directory holds index.n."
            raise InputError(f"{path} is not a part: it has no index.n", hint=hint, path=str(path))
        total = read_checksum_file(path) if checksum is None else _sum(checksum)
        with file_errors("load the part", damaged=IntegrityError, hint=_HINT):
            native = _core.load_version(path, path.name if name is None else name, mapped, total, shard or (0, 0))
        return cls(native)

    @property
    def name(self) -> str:
        """The version's name."""
        return self.native.name

    @property
    def checksum(self) -> str:
        """The checksum of the rows; the same for the same rows, wherever they are kept and in whatever order."""
        low, high = self.native.checksum
        return f"{high:016x}{low:016x}"

    @property
    def memory_bytes(self) -> int:
        """Memory that this store alone takes, without memory that it shares with another."""
        return self.native.memory_bytes

    @property
    def width(self) -> int | None:
        """The length of every value in bytes; None when they differ or there are none."""
        shortest, longest = self.native.lengths
        return longest if shortest == longest else None

    @property
    def duplicates(self) -> int:
        """Entries that a later one of the same key replaced."""
        return self.native.duplicates

    @property
    def long_values(self) -> int:
        """Keys that are not found because their value is longer than `MAX_VALUE_BYTES`."""
        return self.native.long_values

    def __len__(self) -> int:
        return self.native.rows

    def lookup(self, keys: ArrayLike, *, dtype: DTypeLike = np.float32) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Look up keys; returns their rows, zeros where there is none, and which were found.

        Raises:
            InputError: values differ in length, or are not whole elements of `dtype`; see `get`.
        """
        kind, width = np.dtype(dtype), self.width
        if width is None and len(self):
            shortest, longest = self.native.lengths
            raise InputError(f"values have {shortest} to {longest} bytes: no array of rows", hint="Use get().")
        if (width or 0) % kind.itemsize:
            raise InputError(f"values of {width} bytes are not whole elements of {kind}", hint="Give another dtype.")
        rows, found = self.native.lookup_rows(_keys(keys), width or 0)
        return rows.view(kind), found

    def get(self, keys: ArrayLike) -> list[bytes | None]:
        """Look up keys; returns their values of whatever length, None where there is none."""
        return self.native.lookup_bytes(_keys(keys))

    def apply(
        self,
        keys: ArrayLike,
        values: NDArray[Any],
        *,
        removed: ArrayLike = (),
        name: str,
        base_checksum: str | None = None,
    ) -> PartStore:
        """Return a store with rows put in (or replaced) and others taken out; this one stays as it is.

        Args:
            keys: Keys of the new and changed rows.
            values: Their rows.
            removed: Keys to take out; each must be there.
            name: The new version's name.
            base_checksum: The checksum that this store's rows must have.

        Raises:
            InputError: the delta belongs to other rows, or its values are too long.
        """
        wanted = _keys(keys)
        rows = np.ascontiguousarray(values).reshape(len(wanted), -1) if len(wanted) else np.empty((0, 0), np.uint8)
        try:
            native = _core.apply_delta(
                self.native, wanted, rows.view(np.uint8), _keys(removed), name, _sum(base_checksum)
            )
        except ValueError as error:
            raise InputError(f"cannot apply the delta to version '{self.name}': {error}", version=self.name) from error
        return PartStore(native)

    def apply_directory(
        self, directory: str | os.PathLike[str], *, name: str | None = None, checksum: str | None = None
    ) -> PartStore:
        """Return a store with the rows of a delta's directory on top.

        A cumulative delta (its lists continue this store's) adds its new files only; anything else adds all its rows.

        Args:
            directory: The delta's part.
            name: The new version's name; the directory's name when not given.
            checksum: The checksum that the resulting rows must have.

        Raises:
            IntegrityError: a file is damaged, or the rows have another checksum.
            InputError: the directory is no part.
        """
        path = Path(directory)
        with file_errors("load the delta", damaged=IntegrityError, hint=_HINT):
            return PartStore(_core.load_patch(self.native, path, path.name if name is None else name, _sum(checksum)))


def _keys(keys: ArrayLike | Sequence[int]) -> NDArray[np.uint64]:
    given = np.asarray(keys)
    if given.size == 0:
        return np.empty(0, np.uint64)
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise InputError(f"keys are a list of integers below 2^64, not {given.dtype}{list(given.shape)}")
    return np.ascontiguousarray(given.astype(np.uint64, copy=False))  # negative ids: their two's complement


def _sum(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    try:
        number = int(text, 16)
    except ValueError:
        number = -1
    if len(text) != 32 or number < 0:  # noqa: PLR2004 - 128 bits in hexadecimal
        raise InputError(f"{text!r} is not a checksum: 32 hexadecimal digits", checksum=text)
    return number & (2**64 - 1), number >> 64
