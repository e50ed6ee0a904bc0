"""The positions of a table's rows in a safetensors file, for compiled code that streams them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cloudedge.bundle import SafetensorsFile
from cloudedge.errors import InputError

__all__ = ["TableFile"]

_DTYPES = {np.dtype("<f2"): "F16", np.dtype("<f4"): "F32", np.dtype("u1"): "U8"}


@dataclass(frozen=True)
class TableFile:
    """The position of a table in its file."""

    path: Path
    rows: int
    dim: int
    dtype: str
    width: int
    """Bytes of one row without its key."""
    keys_offset: int
    values_offset: int

    @property
    def row_bytes(self) -> int:
        """Bytes of all rows with their keys."""
        return self.rows * (8 + self.width)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> TableFile:
        """Read a file's header.

        Raises:
            InputError: the file is no safetensors file, or holds no table.
        """
        path = Path(path)
        arrays = SafetensorsFile(path).arrays
        keys, values = arrays.get("keys"), arrays.get("values")
        if keys is None or values is None:
            raise _bad(path, f"it holds {sorted(arrays)}")
        if keys.dtype != np.uint64 or len(keys.shape) != 1:
            raise _bad(path, f"'keys' is {keys.dtype.name}{list(keys.shape)}")
        if values.dtype not in _DTYPES or values.shape[:1] != keys.shape or len(values.shape) != 2:  # noqa: PLR2004
            raise _bad(path, f"'values' is {values.dtype.name}{list(values.shape)} beside {keys.shape[0]} keys")
        dtype = _DTYPES[values.dtype]
        return cls(path, *values.shape, dtype, values.row_bytes, keys.offset, values.offset)


def _bad(path: Path, why: str) -> InputError:
    return InputError(
        f"{path} is not a table: {why}",
        hint="A table has 'keys' (uint64 [rows], ascending) and 'values' (float32, float16 or bytes [rows, dim]).",
        path=str(path),
    )
