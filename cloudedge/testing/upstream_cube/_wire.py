"""baidu_std frames and DictService messages, as much as upstream's server understands: no pins."""

from __future__ import annotations

import struct
from typing import NamedTuple

__all__ = ["HEADER", "Seek", "error_frame", "frame_parts", "read_seek", "seek_frame", "seek_message", "write_seek"]

HEADER = 12
_MAX_BODY = 64 << 20
_NOT_FOUND = 0xFFFFFFFF


class Seek(NamedTuple):
    """A request for rows."""

    keys: list[int]
    wants_version: bool


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:  # noqa: PLR2004 - seven bits a byte
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:  # noqa: PLR2004 - ten bytes hold 64 bits
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:  # noqa: PLR2004
            return value & (2**64 - 1), at
    raise ValueError("a number of more than ten bytes")


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _text(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _fields(data: bytes) -> list[tuple[int, int | bytes]]:
    out: list[tuple[int, int | bytes]] = []
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = _read_varint(data, at)
            out.append((tag >> 3, value))
            continue
        size, at = _read_varint(data, at) if kind == 2 else ({1: 8, 5: 4}[kind], at)  # noqa: PLR2004 - wire types
        if at + size > len(data):
            raise ValueError("a field leaves its message")
        out.append((tag >> 3, data[at : at + size]))
        at += size
    return out


def frame_parts(head: bytes) -> int:
    """Return the length of what follows a frame's header.

    Raises:
        ValueError: it is no frame.
    """
    body, meta = struct.unpack(">II", head[4:HEADER])
    if head[:4] != b"PRPC" or meta > body or body > _MAX_BODY:
        raise ValueError("not a frame")
    return int(body)


def read_seek(head: bytes, rest: bytes) -> tuple[int, str, bytes]:
    """Return the correlation id, ``service.method`` and payload of a request frame."""
    meta_size = int.from_bytes(head[8:HEADER], "big")
    meta = dict(_fields(rest[:meta_size]))
    request, correlation = meta[1], meta.get(4, 0)
    if not isinstance(request, bytes) or not isinstance(correlation, int):
        raise ValueError("not a request")  # noqa: TRY004 - one kind of error for one kind of nonsense
    named = dict(_fields(request))
    service, method = named[1], named[2]
    if not isinstance(service, bytes) or not isinstance(method, bytes):
        raise ValueError("not a request")  # noqa: TRY004
    return correlation, f"{service.decode()}.{method.decode()}", rest[meta_size:]


def seek_message(payload: bytes) -> Seek:
    """Read a DictRequest; unknown fields, a pin among them, are skipped."""
    keys: list[int] = []
    wants_version = False
    for field, value in _fields(payload):
        if field == 1 and isinstance(value, int):
            keys.append(value)
        elif field == 1 and isinstance(value, bytes):  # packed
            at = 0
            while at < len(value):
                key, at = _read_varint(value, at)
                keys.append(key)
        elif field == 2:  # noqa: PLR2004 - version_required
            wants_version = bool(value)
    return Seek(keys, wants_version)


def write_seek(values: list[bytes | None], version: str | None) -> bytes:
    """Write a DictResponse."""
    payload = b"".join(
        _text(1, _number(1, _NOT_FOUND if value is None else 0) + _text(2, value or b"")) for value in values
    )
    return payload if version is None else payload + _text(2, version.encode())


def seek_frame(correlation: int, payload: bytes) -> bytes:
    """Write a response frame."""
    return _frame(_text(2, _number(1, 0)) + _number(3, 0) + _number(4, correlation), payload)


def error_frame(correlation: int, code: int, text: str) -> bytes:
    """Write a response frame that refuses."""
    return _frame(_text(2, _number(1, code) + _text(2, text.encode())) + _number(3, 0) + _number(4, correlation), b"")


def _frame(meta: bytes, payload: bytes) -> bytes:
    return b"PRPC" + struct.pack(">II", len(meta) + len(payload), len(meta)) + meta + payload
