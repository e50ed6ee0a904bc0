"""The memory that a request takes once it is parsed, estimated from its bytes before anything is built.

A few thousand bytes can name millions of empty messages, tensors or lists. `json_cost` counts the bytes that begin or
separate values; `message_cost` walks the wire format of protobuf. Both take time by what they find, not by what it
would become, and give up at the limit. The weights also cover processor time: a request at the default limit is parsed
in tens of milliseconds. Raw content (`tensor_content`, `byte_data`) costs nothing here: it stays as long as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from cloudedge.errors import InputError
from cloudedge.io import json_parts

__all__ = ["GENERAL_ANSWER", "GENERAL_COST", "PIPELINE_COST", "BodyLimits", "TooLarge", "json_cost", "message_cost"]


class TooLarge(InputError):
    """A request exceeds a limit of what a body may become."""


@dataclass(frozen=True)
class BodyLimits:
    """The limits of what one body may become. Immutable."""

    max_inflated_bytes: int = 16 << 20
    """The most bytes of a compressed body, decompressed."""
    max_inflate_ratio: int = 100
    """The most bytes that one compressed byte becomes; applies to bodies of more than 1 MiB, decompressed."""
    max_parsed_bytes: int = 32 << 20
    """The most memory of a request's messages, tensors, texts and numbers once it is parsed, as estimated."""


JSON_PART = 32
"""A number in a list takes 32 bytes, an empty list 64 and two parts, a text 72 and three parts."""
TENSOR = 8192
"""A message with its fields and arrays, and the time to check them."""
FIELD = 512
"""A text, a scalar, an unknown field; mostly the time to walk over it."""
VARINT, FIXED32, FIXED64 = 24, 8, 16
"""A number of a repeated field, in the message and in the array made of it."""

Kind: TypeAlias = "int | Mapping[int, Kind] | None"
"""What a field holds: the fields of a message, the weight of a number in a list, or None: text and content."""
_DATA: Mapping[int, Kind] = {
    1: VARINT, 2: FIXED32, 3: VARINT, 4: FIXED64, 5: VARINT, 6: VARINT, 7: FIXED32, 8: FIXED64, 9: None,
}  # fmt: skip
_GENERAL_TENSOR: Mapping[int, Kind] = {**_DATA, 11: VARINT, 12: VARINT}
_PIPELINE_TENSOR: Mapping[int, Kind] = {**_DATA, 21: VARINT, 22: VARINT}
TEXT = -1
"""The field of a Pipeline request whose texts hold arrays in JSON."""
GENERAL_COST: Mapping[int, Kind] = {1: _GENERAL_TENSOR}
GENERAL_ANSWER: Mapping[int, Kind] = {1: {1: _GENERAL_TENSOR}, 2: VARINT}
PIPELINE_COST: Mapping[int, Kind] = {2: TEXT, 3: _PIPELINE_TENSOR}

_SHORT, _FEW = 1 << 16, 64
"""Bytes of JSON, and objects in it, that are parsed within a millisecond or two whatever they are."""
_SIMILAR = 8
"""Fields with one tag in a row, after which the rest of the run is counted at once."""
_RUN = 8192
"""The time to look for such a run."""
_FIRST_BLOCK, _BLOCK = 1 << 9, 1 << 16


def json_cost(body: bytes, limit: int) -> int:
    """Estimate the memory of JSON once it is parsed.

    Raises:
        TooLarge: It is more than the limit.
    """
    is_short = len(body) <= _SHORT and body.count(b"{") <= _FEW  # as if every byte began a value: counting takes longer
    cost = JSON_PART * (len(body) if is_short else json_parts(body))
    if cost > limit:
        raise _too_large(limit)
    return cost


def message_cost(body: bytes, limit: int, *, fields: Mapping[int, Kind]) -> int:
    """Estimate the memory of a protobuf message once it is parsed. Bytes that are no message cost what was read.

    Raises:
        TooLarge: It is more than the limit.
    """
    walk = _Walk(body, limit)
    walk.message(0, len(body), fields)
    return limit - walk.left


def _too_large(limit: int) -> TooLarge:
    return TooLarge(
        f"the request would take more than {limit} bytes of memory once parsed, the limit of `--max-parsed-mb`",
        hint="Send fewer tensors or numbers, or send numbers as raw content.",
        limit=limit,
    )


class _Walk:
    """A walk over one body, which ends when its budget is spent."""

    def __init__(self, body: bytes, limit: int) -> None:
        self.body = body
        self.limit = self.left = limit
        self.array: NDArray[np.uint8] = np.frombuffer(body, np.uint8)

    def spend(self, cost: int) -> None:
        self.left -= cost
        if self.left < 0:
            raise _too_large(self.limit)

    def message(self, at: int, end: int, fields: Mapping[int, Kind]) -> bool:
        """Walk over the fields of a message; return False if its bytes are none."""
        last = similar = 0
        while at < end:
            tag, at = self.varint(at, end)
            kind, wire = fields.get(tag >> 3), tag & 7
            if wire == 2:  # noqa: PLR2004 - a length and as many bytes
                length, at = self.varint(at, end)
                if at < 0 or length > end - at:
                    return False
                self.delimited(at, at + length, kind)
                at += length
            elif wire in (0, 1, 5):
                size = {1: 8, 5: 4}.get(wire)
                at = self.varint(at, end)[1] if size is None else at + size
                self.spend(FIELD)
                similar = similar + 1 if tag == last else 0
                if similar == _SIMILAR and isinstance(kind, int) and kind > 0 and tag < 0x80:  # noqa: PLR2004 - one byte
                    at = self.run(at, end, tag, size, kind)
            else:
                return False  # groups, which neither service has: the parser refuses or skips them
            if not 0 <= at <= end:
                return False
            last = tag
        return True

    def varint(self, at: int, end: int) -> tuple[int, int]:
        """Return a number and the offset behind it; -1 as the offset if it does not end."""
        body, value, shift = self.body, 0, 0
        while 0 <= at < end and shift < 70:  # noqa: PLR2004 - ten bytes
            byte = body[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:  # noqa: PLR2004 - the last one
                return value, at
            shift += 7
        return 0, -1

    def delimited(self, at: int, end: int, kind: Kind) -> None:
        if isinstance(kind, Mapping):
            self.spend(TENSOR)
            self.message(at, end, kind)
        elif kind is None or kind == TEXT:
            self.spend(FIELD)
            if kind == TEXT:
                self.spend(JSON_PART * json_parts(self.body[at:end]))
        elif kind == VARINT:
            # Only the last byte of a number is below 128.
            for start in range(at, end, _BLOCK):
                self.spend(kind * int(np.count_nonzero(self.array[start : min(start + _BLOCK, end)] < 0x80)))  # noqa: PLR2004
        else:
            self.spend(kind * ((end - at) // (kind // 2)))

    def run(self, at: int, end: int, tag: int, size: int | None, kind: int) -> int:
        """Count a run of fields with the same tag, block by block; return the offset behind it."""
        self.spend(_RUN)
        length = _FIRST_BLOCK
        while 0 <= at < end:
            block = self.array[at : min(at + length, end)]
            length = min(2 * length, _BLOCK)
            if size is not None:
                whole = len(block) // (size + 1)
                tags = block[: whole * (size + 1)].reshape(whole, size + 1)[:, 0] == tag
                count = whole if tags.all() else int(tags.argmin())
                behind = count * (size + 1)
            else:
                # Bytes below 128 are, in turn, a tag and the last byte of its number.
                ends = np.flatnonzero(block < 0x80)  # noqa: PLR2004
                whole = len(ends) // 2
                begins, lasts = ends[: 2 * whole : 2], ends[1 : 2 * whole : 2]
                expected = np.concatenate(([0], lasts[:-1] + 1)) if whole else begins
                fits = (begins == expected) & (block[begins] == tag)
                count = whole if fits.all() else int(fits.argmin())
                behind = int(lasts[count - 1]) + 1 if count else 0
            self.spend(kind * count)
            at += behind
            if count < whole or not count:
                break
        return at
