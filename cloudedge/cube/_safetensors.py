"""Where the rows of a table are in a safetensors file: `keys` (uint64 [n]) and `values` ([n, dim], float).

Only the header is read here, and every number in it is compared with the file's real size before it is used; the
rows themselves are streamed by compiled code.
"""

from __future__ import annotations

import json
import math
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloudedge.errors import InputError

__all__ = ["TableFile"]

_MAX_HEADER = 100_000_000  # the format's own limit
_ELEMENT_BYTES = {"F16": 2, "F32": 4}


@dataclass(frozen=True)
class TableFile:
    """A table's place in its file."""

    path: Path
    rows: int
    dim: int
    dtype: str
    keys_offset: int
    values_offset: int

    @property
    def width(self) -> int:
        """Bytes of one row without its key."""
        return self.dim * _ELEMENT_BYTES[self.dtype]

    @property
    def row_bytes(self) -> int:
        """Bytes of all rows with their keys."""
        return self.rows * (8 + self.width)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> TableFile:
        """Read a file's header.

        Raises:
            InputError: it is not a safetensors file, or not one that holds a table.
        """
        path = Path(path)
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                head = file.read(8)
                length = struct.unpack("<Q", head)[0] if len(head) == 8 else -1  # noqa: PLR2004 - a u64
                if not 0 <= length <= min(size - 8, _MAX_HEADER):
                    raise _bad(path, 0, f"its first 8 bytes give no header length that fits in its {size} bytes")
                header = json.loads(file.read(length).decode())
        except OSError as error:
            raise InputError(f"cannot read the table {path}: {error.strerror}", path=str(path)) from error
        except (ValueError, RecursionError) as error:
            raise _bad(path, 8, f"its header is not JSON: {error}") from error
        if not isinstance(header, dict):
            raise _bad(path, 8, "its header is not a JSON object")
        start = 8 + length
        keys_dtype, keys_shape, keys_offset = _tensor(path, header, "keys", start, size)
        dtype, shape, values_offset = _tensor(path, header, "values", start, size)
        if keys_dtype != "U64" or len(keys_shape) != 1:
            raise _bad(path, 8, f"'keys' is {keys_dtype}{keys_shape}, not U64[rows]")
        if dtype not in _ELEMENT_BYTES or len(shape) != 2 or shape[0] != keys_shape[0]:  # noqa: PLR2004 - rows x dim
            raise _bad(path, 8, f"'values' is {dtype}{shape}, not F32 or F16[{keys_shape[0]}, dim]")
        return cls(path, shape[0], shape[1], dtype, keys_offset, values_offset)


_BYTES = {"U64": 8} | _ELEMENT_BYTES


def _tensor(path: Path, header: dict[str, Any], name: str, start: int, size: int) -> tuple[str, list[int], int]:
    entry = header.get(name)
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]  # type: ignore[index]
        numbers = [*shape, begin, end]
        whole = isinstance(dtype, str) and all(type(n) is int and 0 <= n < 2**63 for n in numbers)
    except (TypeError, KeyError, ValueError):
        whole = False
    if not whole:
        raise _bad(path, 8, f"its header does not describe '{name}' with dtype, shape and data_offsets")
    if dtype in _BYTES and end - begin != math.prod(shape) * _BYTES[dtype]:
        raise _bad(path, 8, f"'{name}' is {dtype}{shape} but takes {end - begin} bytes")
    if not begin <= end <= size - start:
        raise _bad(path, size, f"the file ends before '{name}', which should end at byte {start + end}")
    return dtype, shape, start + begin


def _bad(path: Path, offset: int, why: str) -> InputError:
    return InputError(
        f"{path} is not a table: {why}",
        hint="A table is a safetensors file with 'keys' (uint64, ascending) and 'values' (rows x dim, float).",
        path=str(path),
        offset=offset,
    )
