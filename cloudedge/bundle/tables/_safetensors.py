"""Named arrays in safetensors files: mapped, read piece by piece, and written as a stream.

The safetensors package offers neither streaming nor views; tests check these files against it. Every number in a
header is checked against the file's size before it is used.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloudedge.errors import InputError

__all__ = ["ArrayFile", "ArraySpec", "SafetensorsFile", "header_bytes", "read_header"]

_HEADER_LIMIT = 1024 * 1024
_DTYPES: dict[str, np.dtype[Any]] = {
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


@dataclass(frozen=True)
class ArraySpec:
    """An array's dtype, shape and offset in the file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int = 0
    """Byte offset from the start of the file."""

    @property
    def size_bytes(self) -> int:
        """Bytes the array takes."""
        return int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize

    @property
    def row_bytes(self) -> int:
        """Bytes one row takes."""
        return int(np.prod(self.shape[1:], dtype=object)) * self.dtype.itemsize


def header_bytes(arrays: Mapping[str, ArraySpec], metadata: Mapping[str, str]) -> bytes:
    """Return the header of a file whose arrays follow in the given order, padded to align them."""
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    at = 0
    for name, spec in arrays.items():
        header[name] = {
            "dtype": _NAMES[spec.dtype],
            "shape": list(spec.shape),
            "data_offsets": [at, at + spec.size_bytes],
        }
        at += spec.size_bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


class ArrayFile:
    """Arrays at known offsets of an open file, as views on the mapped file or read piece by piece."""

    def __init__(self, path: Path, arrays: dict[str, ArraySpec] | None = None) -> None:
        self.path = path
        self._map: mmap.mmap | None = None
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise InputError(f"cannot open {path}: {error.strerror}", path=str(path)) from error
        self.arrays = arrays or {}

    def close(self) -> None:
        """Close the file; existing views stay valid."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()

    def array(self, name: str) -> NDArray[Any]:
        """Return an array as a read-only view on the mapped file: no copy, pages are loaded on use."""
        spec = self.arrays[name]
        if spec.size_bytes == 0:
            return np.empty(spec.shape, spec.dtype)
        if self._map is None:
            self._map = mmap.mmap(self._fd, 0, access=mmap.ACCESS_READ)
        flat = np.frombuffer(self._map, spec.dtype, count=int(np.prod(spec.shape)), offset=spec.offset)
        return flat.reshape(spec.shape)

    def read(self, name: str, start: int, stop: int) -> NDArray[Any]:
        """Read rows `start` to `stop` into new memory, so that streaming a file keeps none of it."""
        spec = self.arrays[name]
        out = np.empty((stop - start, *spec.shape[1:]), spec.dtype)
        view = out.reshape(-1).view(np.uint8).data
        done = 0
        while done < len(view):
            got = os.preadv(self._fd, [view[done:]], spec.offset + start * spec.row_bytes + done)
            if got == 0:
                raise InputError(f"{self.path} shrank while it was read", path=str(self.path))
            done += got
        return out


class SafetensorsFile(ArrayFile):
    """A safetensors file with a checked header."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        size = os.fstat(self._fd).st_size
        try:
            self.arrays, self.metadata = read_header(lambda at, length: os.pread(self._fd, length, at), size)
        except InputError as error:
            raise InputError(
                f"{path} is not a usable safetensors file: {error.message}",
                hint="Write it again, or fetch it again if it was copied here.",
                path=str(path),
            ) from None


def read_header(read: Callable[[int, int], bytes], size: int) -> tuple[dict[str, ArraySpec], dict[str, str]]:
    """Read the arrays and the metadata of a safetensors header.

    Args:
        read: Returns the given number of bytes from an offset on.
        size: The file's size, which bounds every number in the header.

    Raises:
        InputError: this is not a safetensors header; the message gives the reason.
    """
    length = int.from_bytes(read(0, 8), "little")
    if size < 8 or length > min(size - 8, _HEADER_LIMIT):  # noqa: PLR2004 - the length field itself
        raise InputError(f"a header of {length} bytes does not fit a file of {size}")
    try:
        header = json.loads(read(8, length))
    except (ValueError, RecursionError) as error:
        raise InputError(f"its header is not JSON ({error})") from error
    if not isinstance(header, dict):
        raise InputError("its header is not a JSON object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise InputError("its metadata is not an object")
    arrays = {name: _spec(name, value, 8 + length, size) for name, value in header.items()}
    at = 8 + length
    for name, spec in sorted(arrays.items(), key=lambda item: item[1].offset):
        if spec.offset != at:
            raise InputError(f"array {name!r} begins at byte {spec.offset}, not at {at}")
        at += spec.size_bytes
    if at != size:
        raise InputError(f"its arrays end at byte {at}, the file at {size}")
    return arrays, {str(k): str(v) for k, v in metadata.items()}


def _spec(name: str, value: Any, base: int, size: int) -> ArraySpec:
    try:
        dtype, shape, (begin, end) = _DTYPES[value["dtype"]], tuple(value["shape"]), value["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"array {name!r} has the unreadable description {value!r}") from error
    numbers = (*shape, begin, end)
    if not all(type(n) is int and 0 <= n <= size for n in numbers):
        raise InputError(f"array {name!r} has an impossible shape or offset: {numbers}")
    spec = ArraySpec(dtype, shape, base + begin)
    if spec.size_bytes != end - begin:
        raise InputError(f"array {name!r} of shape {shape} needs {spec.size_bytes} bytes and has {end - begin}")
    return spec
