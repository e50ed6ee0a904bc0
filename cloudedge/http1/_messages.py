"""HTTP requests and answers, as handlers see them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["FileAnswer", "FilePart", "HangUp", "HttpAnswer", "HttpCall"]


@dataclass(slots=True)
class HttpCall:
    """An HTTP request, whole. Not frozen: a frozen one takes three times as long to make, once per request."""

    method: str
    path: str
    """The request's target, with its query, as the client wrote it."""
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes
    peer: str = ""
    """The client's address."""


@dataclass(frozen=True)
class FilePart:
    """Some bytes of a file, read as fast as the client takes them."""

    path: Path
    start: int
    length: int
    cut: int | None = None
    """The offset at which to break off, as a bad network does; None sends all."""
    on_sent: Callable[[int], None] | None = None
    """Called with the size of each piece."""


@dataclass(slots=True)
class HttpAnswer:
    """An HTTP answer, whole. Not frozen, for the reason that `HttpCall` is not."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers whose values repeat from answer to answer: the server keeps the bytes that it writes for them."""
    own_headers: Mapping[str, str] = field(default_factory=dict)
    """Headers whose values no other answer has, such as a trace id: written for this answer only."""


@dataclass(slots=True)
class FileAnswer(HttpAnswer):
    """An HTTP answer whose body is part of a file."""

    part: FilePart = field(kw_only=True)


@dataclass(slots=True)
class HangUp(HttpAnswer):
    """No answer: the connection breaks, as on a bad network. `status` is for the server's own record."""
