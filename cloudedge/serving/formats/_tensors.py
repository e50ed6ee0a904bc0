"""Conversion between arrays and the Tensors of both services, in JSON or protobuf.

Nothing here knows a model. Everything is checked before memory is allocated for it: a shape is compared with the
received data, and `numpy.save` bytes are parsed without ever unpickling.
"""

from __future__ import annotations

import base64
import binascii
import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloudedge.errors import InputError

__all__ = [
    "ELEM_TYPES",
    "Malformed",
    "checked_cast",
    "data_of",
    "from_base64",
    "json_field",
    "malformed",
    "npy_array",
    "plain_array",
    "shaped",
    "string_array",
    "tensor_fields",
    "typed_array",
]

Array = NDArray[Any]

STRING, BYTES, GENERAL_STRING = 12, 13, 20
BFLOAT16 = 6
MAX_DIMENSIONS = 32
_AT_ONCE = 1 << 16
"""Numbers copied without letting another thread run: about two milliseconds."""
MAX_STRING_BYTES = 16 << 20  # numpy gives every string the size of the longest: a small body must not take much

# elem_type: its dtype, and the field that carries its numbers.
ELEM_TYPES: dict[int, tuple[str, str]] = {
    0: ("int64", "int64_data"),
    1: ("float32", "float_data"),
    2: ("int32", "int_data"),
    3: ("float64", "float64_data"),
    4: ("int16", "int_data"),
    5: ("float16", "float_data"),
    6: ("uint16", "uint32_data"),  # the bits of a bfloat16
    7: ("uint8", "uint32_data"),
    8: ("int8", "int_data"),
    9: ("bool", "bool_data"),
}
ELEM_TYPE_OF = {np.dtype(name): number for number, (name, _) in ELEM_TYPES.items() if number != BFLOAT16}
WIRE_DTYPES: dict[str, np.dtype[Any]] = {
    "int64_data": np.dtype(np.int64),
    "float_data": np.dtype(np.float32),
    "int_data": np.dtype(np.int32),
    "float64_data": np.dtype(np.float64),
    "uint32_data": np.dtype(np.uint32),
    "bool_data": np.dtype(np.bool_),
}


class Malformed(InputError):
    """A tensor contradicts itself: its type, its shape and its data do not fit together."""


def malformed(name: str, what: str, hint: str = "") -> Malformed:
    """Make the error, naming the variable."""
    return Malformed(f"variable {name!r}: {what}", hint=hint, variable=name)


# -- one tensor ------------------------------------------------------------------------------------------------------


def typed_array(name: str, elem_type: int, shape: Sequence[int], data: Array, content: bytes = b"") -> Array:
    """Make the array of a numeric tensor from its numbers, or from raw little-endian `content`.

    A bfloat16 becomes a float32 of the same value.

    Raises:
        Malformed: Type, shape and data do not fit together.
    """
    kind = ELEM_TYPES.get(elem_type)
    if kind is None:
        raise malformed(name, f"elem_type {elem_type} is not one that can be fed", "Use 0 to 9, or 12 and 13 (20).")
    dtype = np.dtype(kind[0])
    if content:
        if data.size:
            raise malformed(name, "has both numbers and tensor_content")
        if len(content) % dtype.itemsize:
            raise malformed(name, f"tensor_content of {len(content)} bytes is not a whole number of {dtype}")
        array = np.frombuffer(content, dtype.newbyteorder("<")).astype(dtype, copy=False)
        if dtype == np.bool_:
            array = np.frombuffer(content, np.uint8) != 0  # any other byte in a bool is undefined behaviour
    else:
        array = checked_cast(name, data, dtype)
    if elem_type == BFLOAT16:
        array = (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return shaped(name, array, shape)


def shaped(name: str, array: Array, shape: Sequence[int]) -> Array:
    """Give an array its sent shape, if the data fits."""
    if len(shape) > MAX_DIMENSIONS or any(size < 0 for size in shape):
        raise malformed(name, f"shape {list(shape)[:MAX_DIMENSIONS]} is not one an array can have")
    if math.prod(shape) != array.size:
        raise malformed(name, f"shape {list(shape)} needs {math.prod(shape)} values, {array.size} were sent")
    return array.reshape(tuple(shape))


def string_array(name: str, parts: Sequence[str]) -> Array:
    """Make an array of strings, unless the longest one would make the array too large."""
    longest = max((len(part) for part in parts), default=0)
    if longest * len(parts) * 4 > MAX_STRING_BYTES:
        raise malformed(name, f"{len(parts)} strings of up to {longest} characters are too many for one array")
    return np.array(list(parts), dtype=np.str_)


def npy_array(name: str, raw: bytes) -> Array:
    """Parse the bytes of `numpy.save`, numbers only.

    Upstream hands such bytes to the unpickler, which runs any code in them. Here only the header is interpreted; the
    array is a view of the bytes.
    """
    stream = io.BytesIO(raw)
    try:
        version = np.lib.format.read_magic(stream)
        read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, fortran, dtype = read_header[version](stream)
    except (ValueError, KeyError, EOFError, MemoryError, RecursionError) as error:
        raise malformed(name, "byte_data is not what numpy.save writes") from error
    if dtype.hasobject or dtype.kind not in "biuf":
        raise malformed(name, f"byte_data holds {dtype}, and only numbers are read", "Pickled objects are refused.")
    count = math.prod(shape)
    if any(size < 0 for size in shape) or len(raw) - stream.tell() != count * dtype.itemsize:
        raise malformed(name, f"byte_data says shape {shape} of {dtype}, and its length says otherwise")
    if not count:
        return np.empty(shape, dtype.newbyteorder("="))
    array = np.frombuffer(raw, dtype, count=count, offset=stream.tell())
    return array.astype(dtype.newbyteorder("="), copy=False).reshape(shape, order="F" if fortran else "C")


def checked_cast(name: str, array: Array, dtype: np.dtype[Any]) -> Array:
    """Cast without changing values: only floats may be rounded."""
    if array.dtype == dtype:
        return array
    if dtype.kind == "U" or array.dtype.kind not in "biuf":
        raise malformed(name, f"{_words(array.dtype)} cannot be fed where the model takes {_words(dtype)}")
    with np.errstate(over="raise", invalid="raise"):
        try:
            cast = array.astype(dtype)
        except FloatingPointError:
            raise malformed(name, f"holds a value that {dtype} cannot") from None
    if dtype.kind != "f" and not np.array_equal(cast, array):
        raise malformed(name, f"holds a value that {dtype} cannot")
    return cast


def _words(dtype: np.dtype[Any]) -> str:
    return {"U": "text", "O": "a mixture", "c": "complex numbers"}.get(dtype.kind, str(dtype))


# -- out of messages and into them -----------------------------------------------------------------------------------


def data_of(tensor: Any, elem_type: int) -> Array:
    """Return the numbers of a protobuf Tensor of either service; empty if its type has none."""
    kind = ELEM_TYPES.get(elem_type)
    if kind is None:
        return np.empty(0)
    values, dtype = getattr(tensor, kind[1]), WIRE_DTYPES[kind[1]]
    if len(values) <= _AT_ONCE:
        return np.fromiter(values, dtype, len(values))  # three times as fast as numpy.array
    array = np.empty(len(values), dtype)
    for start in range(0, len(values), _AT_ONCE):  # other threads run between two slices
        part = values[start : start + _AT_ONCE]
        array[start : start + len(part)] = np.fromiter(part, dtype, len(part))
    return array


def json_field(name: str, field: str, value: Any) -> Array:
    """Return the numbers of one data field of a JSON Tensor."""
    wanted = WIRE_DTYPES[field]
    if not isinstance(value, list):
        raise malformed(name, f"{field} is not a list")
    kinds = set(map(type, value))
    if str in kinds and wanted.kind != "b":
        # JSON made from protobuf puts 64-bit integers and non-finite numbers in quotes.
        read = float if wanted.kind == "f" else int
        try:
            value = [read(item) if type(item) is str else item for item in value]
        except ValueError:
            raise malformed(name, f"{field} is not a list of {wanted} values") from None
        kinds = set(map(type, value))
    allowed = {bool} if wanted.kind == "b" else {int, float} if wanted.kind == "f" else {int}
    if not kinds <= allowed:
        raise malformed(name, f"{field} is not a list of {wanted} values")
    return checked_cast(name, plain_array(name, value, kinds), wanted)


def plain_array(name: str, items: list[Any], kinds: set[type]) -> Array:
    """Make a flat array of items of these types: only numbers, or only text."""
    if kinds == {str}:
        return string_array(name, items)
    if not (kinds <= {int, float} or kinds == {bool}):
        raise malformed(name, "is not made of numbers alone, or of text alone")
    try:
        array: Array = np.array(items)
    except OverflowError:
        array = np.empty(0, object)
    if array.dtype.kind == "O" or (array.dtype.kind == "f" and kinds == {int}):
        raise malformed(name, "holds a whole number of more than 64 bits")
    return array


def from_base64(name: str, field: str, value: Any) -> bytes:
    """Decode the bytes of a JSON field."""
    try:
        if isinstance(value, str):
            return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        pass
    raise malformed(name, f"{field} is not base64")


def tensor_fields(array: Array) -> tuple[int, str, Array]:
    """Return an array's elem_type, its field, and its numbers, flat, in the type of that field."""
    elem_type = ELEM_TYPE_OF.get(array.dtype)
    if elem_type is None:
        raise InputError(f"arrays of {array.dtype} cannot be sent as a tensor")
    field = ELEM_TYPES[elem_type][1]
    return elem_type, field, array.reshape(-1).astype(WIRE_DTYPES[field], copy=False)
