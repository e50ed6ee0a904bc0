"""The body of an answer, read up to a limit: what comes from the network is bounded before it is held in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import requests

__all__ = ["read_body"]

_CHUNK = 64 * 1024


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
