"""Reader of Paddle's LoDTensor files: one parameter, as `paddle.static.save_vars` and the training side write it.

    u32 version (0) | u64 LoD levels | per level: u64 bytes, bytes | u32 version (0) | i32 size | TensorDesc | data

Only two-dimensional tensors of floats are read: that is what a table needs. Keys are row numbers.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from cloudedge.errors import InputError

__all__ = ["Parameter", "looks_like_parameter"]

_DTYPES: dict[int, np.dtype[Any]] = {
    4: np.dtype("<f2"),
    5: np.dtype("<f4"),
    6: np.dtype("<f8"),
}  # framework.proto: FP16, FP32, FP64
_MAX_LEVELS = 64
_MAX_DESC = 4096
_VARINT, _LENGTH = 0, 2


def looks_like_parameter(head: bytes) -> bool:
    """Tell whether a file's first 16 bytes may be those of a LoDTensor: version 0, and few levels."""
    return len(head) >= 12 and head[:4] == bytes(4) and int.from_bytes(head[4:12], "little") <= _MAX_LEVELS  # noqa: PLR2004


@dataclass(frozen=True)
class Parameter:
    """The position of a two-dimensional parameter in its file."""

    path: Path
    dtype: np.dtype[Any]
    shape: tuple[int, int]
    offset: int

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Parameter:
        """Read the head of a file.

        Raises:
            InputError: the file is no LoDTensor file, or not a two-dimensional one of floats.
        """
        path = Path(path)
        try:
            with path.open("rb") as file:
                return _read(path, file, os.fstat(file.fileno()).st_size)
        except OSError as error:
            raise InputError(f"cannot read the parameter {path}: {error.strerror}", path=str(path)) from error

    @property
    def values(self) -> NDArray[Any]:
        """The rows, mapped from the file."""
        if 0 in self.shape:
            return np.empty(self.shape, self.dtype)
        return np.memmap(self.path, self.dtype, "r", self.offset, self.shape)


class _Head:
    """The fields in front of the data, taken one by one and checked against the file's size."""

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self.path, self._file, self._left = path, file, size
        self.at = 0

    def take(self, count: int, what: str) -> bytes:
        if count > self._left:
            raise _bad(self.path, self.at, f"the file ends inside {what}")
        self._left -= count
        self.at += count
        return self._file.read(count)

    def number(self, form: str, what: str, limit: int) -> int:
        at = self.at
        number = int(struct.unpack(form, self.take(struct.calcsize(form), what))[0])
        if not 0 <= number <= limit:
            raise _bad(self.path, at, f"{what} is {number}, not within 0 and {limit}")
        return number


def _read(path: Path, file: BinaryIO, size: int) -> Parameter:
    head = _Head(path, file, size)
    head.number("<I", "the LoDTensor version", 0)
    for _ in range(head.number("<Q", "the number of LoD levels", _MAX_LEVELS)):
        head.take(head.number("<Q", "the size of a LoD level", size), "a LoD level")
    head.number("<I", "the tensor version", 0)
    length = head.number("<i", "the size of the description", _MAX_DESC)
    at = head.at
    try:
        code, dims = _tensor_desc(head.take(length, "the description"))
    except ValueError as error:
        raise _bad(path, at, f"the description does not parse: {error}") from error
    if code not in _DTYPES:
        raise _bad(path, at, f"data type {code}; a table holds FP16 (4), FP32 (5) or FP64 (6)")
    if len(dims) != 2 or min(dims) < 0:  # noqa: PLR2004 - rows x dim
        raise _bad(path, at, f"dimensions {dims}; a table has two")
    dtype = _DTYPES[code]
    needed, has = dims[0] * dims[1] * dtype.itemsize, size - head.at
    if has != needed:
        raise _bad(path, head.at, f"{dims[0]} x {dims[1]} {dtype.name} take {needed} bytes, the file has {has}")
    return Parameter(path, dtype, (dims[0], dims[1]), head.at)


def _tensor_desc(data: bytes) -> tuple[int, list[int]]:
    """Read field 1 (data_type) and field 2 (dims, packed or not) of a TensorDesc."""
    at, code, dims = 0, -1, []
    while at < len(data):
        tag, at = _varint(data, at)
        field, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            if field == 1:
                code = value
            elif field == 2:  # noqa: PLR2004 - dims
                dims.append(_signed(value))
        elif kind == _LENGTH:
            length, at = _varint(data, at)
            end = at + length
            if end > len(data):
                raise ValueError(f"field {field} is longer than the message")
            while field == 2 and at < end:  # noqa: PLR2004 - dims
                value, at = _varint(data, at)
                dims.append(_signed(value))
            at = end
        else:
            raise ValueError(f"field {field} has wire type {kind}")
    return code, dims


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at == len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:  # noqa: PLR2004 - no continuation bit
            return value, at
    raise ValueError("a number does not end")


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _bad(path: Path, offset: int, why: str) -> InputError:
    return InputError(
        f"{path}, byte {offset}: not a parameter that can become a table: {why}",
        hint="Save the embedding with Paddle as one variable per file: two dimensions, float.",
        path=str(path),
        offset=offset,
    )
