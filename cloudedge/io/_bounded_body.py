"""Bounds of what comes from the network: of a body's length, of an answer's bytes, and of what JSON becomes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import requests

__all__ = ["json_parts", "parse_length", "read_body"]

_CHUNK = 64 * 1024
_DIGITS = 18
"""Of a length: more do not fit into 63 bits, and Python refuses to read more than 4,300."""
_MARKS = (b",", b"[", b"{", b":", b'"')


def read_body(answer: requests.Response, limit: int) -> bytes:
    """Return the body of an answer that was asked for with ``stream=True``, at most so many bytes of it.

    Raises:
        requests.RequestException: the connection broke before its end. Reading `answer.raw` raises urllib3's own
            errors, which callers that expect those of requests do not catch.
    """
    body = bytearray()
    for piece in answer.iter_content(min(limit, _CHUNK)):
        body += piece
        if len(body) >= limit:
            break
    return bytes(body[:limit])


def parse_length(text: str) -> int | None:
    """Return the value of a ``Content-Length`` header; None if it is no length that a message can have."""
    digits = text.strip()
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) <= _DIGITS else None


def json_parts(body: bytes) -> int:
    """Count the bytes of JSON that begin or separate values: a cheap upper bound of the objects that parsing makes.

    Those inside strings count too, since a string may hold JSON itself. Times 40 to 60 bytes, it is the memory that the
    parsed objects take.
    """
    return sum(map(body.count, _MARKS))
