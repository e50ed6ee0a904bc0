"""baidu_std frames and DictService messages in plain Python, written from the format's description alone.

Slow and obvious on purpose: the compiled codec is tested against this, not against itself.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass, field

SEEK = b"rec.mcube.DictService"


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def number(field_no: int, value: int) -> bytes:
    return varint(field_no << 3) + varint(value)


def text(field_no: int, value: bytes) -> bytes:
    return varint(field_no << 3 | 2) + varint(len(value)) + value


def fields(data: bytes) -> list[tuple[int, int | bytes]]:
    out, at = [], 0
    while at < len(data):
        tag, at = read_varint(data, at)
        if tag & 7 == 0:
            value, at = read_varint(data, at)
            out.append((tag >> 3, value))
        else:
            assert tag & 7 == 2, tag
            size, at = read_varint(data, at)
            out.append((tag >> 3, data[at : at + size]))
            assert at + size <= len(data)
            at += size
    return out


def frame(meta: bytes, payload: bytes = b"") -> bytes:
    return b"PRPC" + struct.pack(">II", len(meta) + len(payload), len(meta)) + meta + payload


def keys(*values: int) -> bytes:
    return b"".join(number(1, value) for value in values)


def request(
    payload: bytes, *, correlation: int = 1, service: bytes = SEEK, method: bytes = b"seek", extra: bytes = b""
) -> bytes:
    return frame(text(1, text(1, service) + text(2, method)) + number(3, 0) + number(4, correlation) + extra, payload)


@dataclass
class Response:
    correlation: int = 0
    code: int | None = None
    error: bytes = b""
    compress: int | None = None
    values: list[tuple[int, bytes]] = field(default_factory=list)
    version: bytes | None = None
    payload: bytes = b""


def parse_response(data: bytes) -> Response:
    assert data[:4] == b"PRPC"
    body, meta_size = struct.unpack(">II", data[4:12])
    assert len(data) == 12 + body
    out = Response(payload=data[12 + meta_size :])
    for no, value in fields(data[12 : 12 + meta_size]):
        if no == 2:
            inner = dict(fields(value))
            out.code, out.error = inner[1], inner.get(2, b"")
        elif no == 3:
            out.compress = value
        elif no == 4:
            out.correlation = value
        elif no == 5:
            out.payload = out.payload[: len(out.payload) - value]  # an attachment stands behind the payload
    for no, value in fields(out.payload):
        if no == 1:
            inner = dict(fields(value))
            out.values.append((inner[1], inner[2]))
        elif no == 2:
            out.version = value
    return out


def write_response(correlation: int, values: list[bytes | None], version: bytes | None) -> bytes:
    payload = b"".join(
        text(1, number(1, 0xFFFFFFFF if value is None else 0) + text(2, value or b"")) for value in values
    )
    if version is not None:
        payload += text(2, version)
    return frame(text(2, number(1, 0)) + number(3, 0) + number(4, correlation), payload)


class Peer:
    """A raw connection."""

    def __init__(self, port: int, timeout: float = 10) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read(self, size: int) -> bytes:
        out = bytearray()
        while len(out) < size:
            got = self.socket.recv(size - len(out))
            if not got:
                raise EOFError(f"closed after {len(out)} of {size} bytes")
            out += got
        return bytes(out)

    def read_frame(self) -> bytes:
        head = self.read(12)
        return head + self.read(struct.unpack(">I", head[4:8])[0])

    def call(self, data: bytes) -> Response:
        self.send(data)
        return parse_response(self.read_frame())

    def closed(self) -> bool:
        """Tell whether the server closes without another byte."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Peer:  # noqa: PYI034 - typing.Self is not in 3.10
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
