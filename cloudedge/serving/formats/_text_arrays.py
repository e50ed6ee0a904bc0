"""Arrays as text: JSON, and the printed form of numpy and Python. Parsed, never evaluated."""

from __future__ import annotations

import json
import math
import re
from itertools import chain
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from cloudedge.serving.formats._tensors import ELEM_TYPES, MAX_DIMENSIONS, checked_cast, malformed, plain_array

__all__ = ["json_numbers", "json_text", "nested_array", "parse_array"]

Array = NDArray[Any]

REPR_TAIL = re.compile(r"(?:,\s*shape=\((?P<shape>[\d,\s]*)\))?(?:,\s*dtype=['\"]?[<>=|]?(?P<dtype>\w+)['\"]?)?\s*")
NUMBER_CHARACTERS = re.compile(r"[-+.A-Za-z0-9\s,\[\]]*")
NUMBERS_ONLY = re.compile(r"[-+.0-9eE,\s\[\]]*")
UNREADABLE = "is neither JSON nor what numpy prints"
MAX_PRINTED = 1 << 18
PRINTED_TOO_LONG = f"has more than {MAX_PRINTED} printed numbers"
SEND_JSON = "Send so many numbers as JSON or as tensors."
IRREGULAR = "is not a regular nested list: rows differ in length or depth"


def parse_array(name: str, text: str) -> Array:
    """Parse a number or a nested list in JSON, or as numpy or Python print it.

    Raises:
        Malformed: The text is neither, its rows differ in length, or it was shortened when printed.
    """
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return _parse_printed(name, text.strip())
    # Only without text, which numpy pads to the longest, and without true, false or null, which it takes for numbers.
    if not ('"' in text or "u" in text or "l" in text):
        try:
            array = np.array(value)
        except (ValueError, OverflowError):
            raise malformed(name, IRREGULAR) from None
        if array.dtype.kind in "if":
            return array
    return nested_array(name, value)


def nested_array(name: str, value: Any) -> Array:
    """Make an array of a number, a string or nested lists parsed from JSON.

    It goes level by level: numpy alone would turn everything into text where one item is text, and null into NaN.
    """
    shape: list[int] = []
    level, kinds = [value], {type(value)}
    while kinds == {list}:
        sizes = set(map(len, level))
        if len(sizes) > 1 or len(shape) == MAX_DIMENSIONS:
            raise malformed(name, IRREGULAR)
        shape.append(sizes.pop())
        level = list(chain.from_iterable(level))
        kinds = set(map(type, level))
    if list in kinds:
        raise malformed(name, IRREGULAR)
    return plain_array(name, level, kinds).reshape(shape)


def _parse_printed(name: str, text: str) -> Array:
    body, tail = _unwrapped(text)
    suffix = REPR_TAIL.fullmatch(tail)
    if "..." in body:
        raise malformed(
            name, "was shortened when it was printed", "Call `numpy.set_printoptions(threshold=sys.maxsize)`."
        )
    if max(map(body.count, ",.[")) > MAX_PRINTED:
        raise malformed(name, PRINTED_TOO_LONG, SEND_JSON)
    if not body or suffix is None or not NUMBER_CHARACTERS.fullmatch(body):
        raise malformed(name, UNREADABLE)
    try:
        dtype = _printed_dtype(suffix["dtype"])
        # With a digit behind every point it is JSON, unless a number is not finite or the array is empty.
        array = np.array(orjson.loads(BARE_POINT.sub(".0", body))) if NUMBERS_ONLY.fullmatch(body) else np.empty(0)
        if array.size and array.dtype.kind in "if":
            return checked_cast(name, array, dtype or array.dtype)
    except ValueError:
        pass
    words = body.translate(BRACKETS_AWAY).split(None, MAX_PRINTED)
    if len(words) > MAX_PRINTED:
        raise malformed(name, PRINTED_TOO_LONG, SEND_JSON)
    shape = _printed_shape(body)
    if not words and suffix["shape"]:  # numpy prints an empty array as [] with its shape behind it
        shape = tuple(int(size) for size in suffix["shape"].split(",") if size.strip())
    if shape is None or math.prod(shape) != len(words):
        raise malformed(name, IRREGULAR)
    try:
        return _numbers(words, _printed_dtype(suffix["dtype"])).reshape(shape)
    except (ValueError, TypeError, OverflowError):
        raise malformed(name, UNREADABLE) from None


def _unwrapped(text: str) -> tuple[str, str]:
    """Split "array(BODY, dtype=...)"; a regular expression would search for the end at every character."""
    if not (text.startswith("array(") and text.endswith(")")):
        return text, ""
    inner = text[len("array(") : -1]
    end = inner.rfind("]") + 1 or len(inner.partition(",")[0])
    return inner[:end].strip(), inner[end:]


BARE_POINT = re.compile(r"\.(?!\d)")
BRACKETS_AWAY = str.maketrans("[],", "   ")


def _printed_shape(body: str) -> tuple[int, ...] | None:
    """Count rows and columns by folding the innermost brackets, level by level."""
    frame = re.sub(r"[^\[\],]", "", body)
    if frame == "[]" and not body.translate(BRACKETS_AWAY).strip():
        return (0,)
    sizes: list[int] = []
    while frame:
        end = frame.find("]")
        start = frame.rfind("[", 0, end)
        inner = frame[start : end + 1]
        if end < 0 or start < 0 or inner.strip("[],") or len(sizes) == MAX_DIMENSIONS:
            return None
        sizes.append(len(inner) - 1)
        frame = frame.replace(inner, "")
    return tuple(reversed(sizes))


def _numbers(words: list[str], dtype: np.dtype[Any] | None) -> Array:
    if words and all(word in {"True", "False"} for word in words):
        return np.array([word == "True" for word in words])
    whole = dtype.kind in "iu" if dtype else all(word.lstrip("+-").isdecimal() for word in words) and bool(words)
    return np.array([int(word) if whole else float(word) for word in words], dtype or ("int64" if whole else "float64"))


def _printed_dtype(name: str | None) -> np.dtype[Any] | None:
    try:
        dtype = None if name is None else np.dtype(name)
    except TypeError:
        raise ValueError(name) from None
    if dtype is not None and dtype.name not in PRINTED_DTYPES:
        raise ValueError(name)
    return dtype


PRINTED_DTYPES = frozenset(name for name, _ in ELEM_TYPES.values()) | {"uint16", "uint32", "uint64"}


def json_text(array: Array) -> bytes:
    """Write an array as JSON: nested lists, floats in the fewest digits that read back the same.

    Non-finite numbers are written NaN and Infinity, as Python reads and writes them; JSON itself has no form for them.
    """
    try:
        text = orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY)
    except orjson.JSONEncodeError:  # a scalar, text, or memory in another order
        return json.dumps(array.tolist(), separators=(",", ":")).encode()
    return json.dumps(array.tolist(), separators=(",", ":")).encode() if b"null" in text else text


def json_numbers(data: Array) -> bytes:
    """Write a data field like JSON made from protobuf, which puts non-finite numbers in quotes."""
    text = json_text(data)
    if data.dtype.kind != "f":
        return text
    return re.sub(rb"(-?Infinity|NaN)", rb'"\1"', text) if b"N" in text or b"I" in text else text
