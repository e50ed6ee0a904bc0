"""HTTP/1.1 for the lab's three ports: httptools parses, the loop is uvloop's where it is installed.

A handler returns an answer, or a coroutine of one. An answer's body is bytes or part of a file, sent as fast as the
client reads. What clients may do is bounded: length of head and body, connections, and the time they say nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import httptools

__all__ = ["Answer", "Connection", "FilePart", "Handler", "Request"]

_log = logging.getLogger("cloudedge.edge_bie.lab")
_HEAD = 32 * 1024
_BODY = 8 << 20
_PIPELINED = 8
_CONNECTIONS = 8192
_CHUNK = 256 * 1024
_IDLE_S = 120.0
_WRITE_S = 60.0
"""For a client that does not read what it asked for."""


@dataclass
class Request:
    """One request."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    peer: str
    path: str = field(init=False)
    query: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.target)
        self.path = unquote(parts.path)
        self.query = dict(parse_qsl(parts.query, keep_blank_values=True)) if parts.query else {}


@dataclass
class FilePart:
    """Some bytes of a file."""

    path: Path
    start: int
    length: int
    cut: int | None = None
    """Where to break off, as a bad network does; None sends all."""
    sent: Callable[[int], None] | None = None


@dataclass
class Answer:
    """One answer."""

    status: int
    body: bytes | FilePart = b""
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = "application/json; charset=utf-8"
    drop: bool = False
    """Hang up instead of answering."""


Handler = Callable[[Request], Answer | Awaitable[Answer]]


class Connection(asyncio.Protocol):
    """One connection."""

    def __init__(self, handler: Handler, others: set[Connection]) -> None:
        self._handler = handler
        self._others = others
        self._transport: Any = None
        self._parser: Any = httptools.HttpRequestParser(self)
        self._peer = ""
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        self._head_bytes = 0
        self._waiting: deque[tuple[Request, bool]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._since = 0.0
        """When it last began to wait for the client."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = transport
        self._peer = (transport.get_extra_info("peername") or ("",))[0]
        if len(self._others) >= _CONNECTIONS:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE)
            return
        self._others.add(self)
        self._since = asyncio.get_running_loop().time()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the protocol's signature
        """End."""
        self._others.discard(self)
        self._waiting.clear()
        self._can_write.set()
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        """Take bytes."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(HTTPStatus.NOT_IMPLEMENTED)
        except httptools.HttpParserError:
            self._refuse(HTTPStatus.BAD_REQUEST)

    def pause_writing(self) -> None:
        """The client does not read."""
        self._can_write.clear()

    def resume_writing(self) -> None:
        """It reads again."""
        self._can_write.set()

    def abort(self) -> None:
        """Hang up now."""
        self._transport.abort()

    def check_time(self, now: float) -> None:
        """Hang up on a client that has said nothing for long."""
        if self._task is None and now - self._since > _IDLE_S:
            self.abort()

    # -- httptools ---------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A request begins."""
        self._url, self._headers, self._body, self._head_bytes = b"", {}, bytearray(), 0

    def on_url(self, url: bytes) -> None:
        """Its target."""
        self._url += url
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")
        self._count(len(name) + len(value))

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > _HEAD:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def on_headers_complete(self) -> None:
        """The head is there."""
        length = self._headers.get("content-length", "0")
        if length.isdecimal() and int(length) > _BODY:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        elif self._headers.get("expect", "").lower() == "100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        """Some of the body."""
        self._body += data
        if len(self._body) > _BODY:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)

    def on_message_complete(self) -> None:
        """A whole request."""
        if self._transport.is_closing():
            return
        method = self._parser.get_method().decode("latin-1")
        request = Request(method, self._url.decode("latin-1"), self._headers, bytes(self._body), self._peer)
        self._waiting.append((request, self._parser.should_keep_alive()))
        if self._task is None:
            self._next()
        elif len(self._waiting) > _PIPELINED:
            self._transport.pause_reading()

    # -- answering ---------------------------------------------------------------------------------------------------

    def _next(self) -> None:
        """Answer what waits, without a task where no waiting is needed."""
        while self._waiting and not self._transport.is_closing():
            request, keep_alive = self._waiting.popleft()
            try:
                answer = self._handler(request)
            except Exception:  # noqa: BLE001 - whatever it was, the client gets an answer
                _log.exception("answering %s %s", request.method, request.path)
                answer = Answer(500, b'{"code":"UnknownError","message":"internal","requestId":""}')
            if isinstance(answer, Answer) and isinstance(answer.body, bytes):
                self._send(request, answer, keep_alive=keep_alive)
            else:
                self._task = asyncio.get_running_loop().create_task(self._later(request, answer, keep_alive))
                return
        self._since = asyncio.get_running_loop().time()

    async def _later(self, request: Request, pending: Answer | Awaitable[Answer], keep_alive: bool) -> None:  # noqa: FBT001
        try:
            answer = pending if isinstance(pending, Answer) else await pending
            if isinstance(answer.body, FilePart):
                await self._send_file(request, answer, answer.body, keep_alive=keep_alive)
            else:
                self._send(request, answer, keep_alive=keep_alive)
        except asyncio.CancelledError:
            raise
        except asyncio.TimeoutError:
            self.abort()
        except Exception:  # noqa: BLE001 - whatever it was, the client hears of it
            _log.exception("answering %s %s", request.method, request.path)
            self.abort()
        self._task = None
        self._transport.resume_reading()
        self._next()

    def _head(self, answer: Answer, length: int, *, keep_alive: bool) -> bytes:
        lines = [
            f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}",
            f"Content-Type: {answer.content_type}",
            f"Content-Length: {length}",
            *(f"{name}: {value}" for name, value in answer.headers.items()),
        ]
        if not keep_alive:
            lines.append("Connection: close")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")

    def _send(self, request: Request, answer: Answer, *, keep_alive: bool) -> None:
        if answer.drop:
            self.abort()
        if self._transport.is_closing():
            return
        body = answer.body if isinstance(answer.body, bytes) else b""
        head = self._head(answer, len(body), keep_alive=keep_alive)
        self._transport.write(head if request.method == "HEAD" else head + body)
        if not keep_alive:
            self._transport.close()

    async def _send_file(self, request: Request, answer: Answer, part: FilePart, *, keep_alive: bool) -> None:
        self._transport.write(self._head(answer, part.length, keep_alive=keep_alive))
        if request.method != "HEAD":
            left = part.length if part.cut is None else min(part.length, part.cut)
            with part.path.open("rb") as file:
                file.seek(part.start)
                while left and not self._transport.is_closing():
                    if not self._can_write.is_set():
                        await asyncio.wait_for(self._can_write.wait(), _WRITE_S)
                    chunk = file.read(min(_CHUNK, left))
                    if not chunk:
                        break
                    self._transport.write(chunk)
                    left -= len(chunk)
                    if part.sent is not None:
                        part.sent(len(chunk))
            if part.cut is not None and part.cut < part.length:
                keep_alive = False
        if not keep_alive:
            self._transport.close()

    def _refuse(self, status: HTTPStatus) -> None:
        """Answer what cannot be taken and hang up: what follows cannot be trusted."""
        if not self._transport.is_closing():
            self._transport.write(self._head(Answer(status), 0, keep_alive=False))
            self._transport.close()
