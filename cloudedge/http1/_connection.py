"""One HTTP/1.1 connection: bytes in, whole requests to a handler, answers out in order.

Parsing is httptools' (the parser of Node.js). A request costs no task: handlers are driven by hand (`_drive`).

The use by clients is bounded: length of head, body and answer, bytes held for requests until they are answered,
connections, pipelined requests, and the time for a request, for reading an answer, and for silence. httptools passes
on a header once it is whole; bytes that bring no part of a body are therefore counted as they arrive.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import httptools

from cloudedge.http1._messages import FileAnswer, HttpAnswer, HttpCall
from cloudedge.io import parse_length

if TYPE_CHECKING:
    from cloudedge.http1._connections import Connections

__all__ = ["Connection", "Foreign", "Handler", "OtherProtocol"]

_log = logging.getLogger("cloudedge.http1")

Handler = Callable[[HttpCall], "HttpAnswer | Coroutine[Any, Any, HttpAnswer]"]

_PIPELINED = 16
"""Requests read ahead of their answers; then the connection is not read until some are answered."""
_PARTING = 256
"""The number of clients that may go on sending after they were refused."""
_DROPPED_BODIES = 4
"""The largest bodies that are read and dropped after a refusal, so that the client gets to see it."""
_CHUNK = 256 * 1024
"""Of a file, read at a time."""
_PIECES = 1024
"""Pieces of a body kept one by one; more are joined: a piece of two bytes takes the memory of sixty."""


class Foreign(Protocol):
    """A connection that speaks another protocol on the same port."""

    @property
    def half_received(self) -> int:
        """Bytes of a request that is not whole yet."""
        ...

    @property
    def is_answering(self) -> bool:
        """True while calls are under way."""
        ...

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the connection."""
        ...

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection."""
        ...

    def data_received(self, data: bytes) -> None:
        """Receive bytes."""
        ...

    def pause_writing(self) -> None:
        """Pause: the client does not read."""
        ...

    def resume_writing(self) -> None:
        """Resume writing."""
        ...


class OtherProtocol(NamedTuple):
    """Another protocol on the same port, recognised by the first bytes of a connection."""

    magic: bytes
    make: Callable[[Callable[[], None]], Foreign]
    """Gets the callback that ends the connection once everything is sent."""


class Connection(asyncio.Protocol):
    """One connection."""

    def __init__(self, server: Connections) -> None:
        self._server = server
        self._transport: Any = None
        self._parser: Any = httptools.HttpRequestParser(self)
        self._foreign: Foreign | None = None
        self._peer = ""
        self._first = True
        self._start = b""
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._pieces: list[bytes] = []
        """The newest pieces of the body, behind `_body`."""
        self._head_bytes = self._body_bytes = 0
        self._bare_bytes = 0
        """Bytes received since a request, its head or a piece of its body began: a head, a trailer, a chunk's line."""
        self._has_progressed = False
        """True if the bytes that were fed last began a request or brought a piece of a body."""
        self._has_head = False
        self._in_message = False
        self._waiting: deque[tuple[HttpCall, bool]] = deque()
        self._answering = 0
        """Bytes of the request that is being answered."""
        self._coroutine: Coroutine[Any, Any, HttpAnswer | None] | None = None
        """The coroutine that makes the answer, or sends its file."""
        self._keep_alive = True
        self._is_head = False
        """True if the request that is being answered asks for the head of the answer only."""
        self._closed = False
        self._refusal: HttpAnswer | None = None
        self._write_paused = False
        self._can_write: asyncio.Future[None] | None = None
        """The future that the sending of a file waits for, while the client does not read."""
        self._body_left = _DROPPED_BODIES * server.limits.max_body_bytes
        """Bytes that a refused client may still send."""
        self.since = server.now
        """The time at which it last began to wait."""

    # -- asyncio -----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the connection."""
        self._transport = transport
        self._peer = (transport.get_extra_info("peername") or ("",))[0]
        server = self._server
        if len(server.open) >= server.limits.max_connections or server.draining:
            server.refused += 1
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections")
            return
        server.open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """End; an answer still on its way goes nowhere."""
        self._closed = True
        self._drop()
        self._server.open.discard(self)
        self._server.parting.discard(self)
        self._wake_file()
        if self._foreign is not None:
            self._foreign.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Receive bytes."""
        if self._closed or self._refusal is not None:
            self._body_left -= len(data)
            if self._body_left < 0:
                self.abort()
            return
        if self._first:
            data = self._begin(self._start + data)
            if not data:
                return
        if self._foreign is not None:
            self._feed(self._foreign, data)
            return
        self._has_progressed = False
        self._read(data)
        if self._has_progressed:
            self._bare_bytes = 0
        else:
            self._bare_bytes += len(data)
            if self._bare_bytes > self._server.limits.max_head_bytes:
                self._refuse_head()

    def _read(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(HTTPStatus.NOT_IMPLEMENTED, "no upgrades here")
        except httptools.HttpParserError as error:
            if not self._closed:
                self._refuse(HTTPStatus.BAD_REQUEST, f"not HTTP/1.1: {error}")

    def _begin(self, data: bytes) -> bytes:
        """Recognise the protocol by the first bytes; returns those that can be read now."""
        other = self._server.other
        if other is not None and len(data) < len(other.magic) and other.magic.startswith(data):
            self._start = data
            return b""
        self._first = False
        if other is not None and data.startswith(other.magic):
            self._foreign = other.make(self.part)
            self._foreign.connection_made(self._transport)
        return data

    def _feed(self, foreign: Foreign, data: bytes) -> None:
        """Give bytes to another protocol, whose half-received requests count as those of HTTP do."""
        server, before = self._server, foreign.half_received
        foreign.data_received(data)
        half = foreign.half_received
        if not before or half != before + len(data):  # one begins, or has ended
            self.since = server.now
        has_room = server.held.take(half - self._body_bytes)
        self._body_bytes = half
        if half and not has_room:
            server.refused += 1
            self.abort()

    def pause_writing(self) -> None:
        """Pause: the client does not read."""
        self._write_paused = True
        self.since = self._server.now
        if self._foreign is not None:
            self._foreign.pause_writing()

    def resume_writing(self) -> None:
        """Resume: the client reads again."""
        self._write_paused = False
        if self._foreign is not None:
            self._foreign.resume_writing()
        elif self._can_write is not None:
            self._wake_file()
        elif self._coroutine is None:
            self._next()

    def _wake_file(self) -> None:
        if self._can_write is not None and not self._can_write.done():
            self._can_write.set_result(None)

    # -- httptools ---------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._url, self._headers, self._body, self._pieces = b"", {}, [], []
        self._head_bytes = self._body_bytes = 0
        self._has_head = False
        self._in_message = self._has_progressed = True
        self.since = self._server.now

    def on_url(self, url: bytes) -> None:
        """Take the target of a request."""
        self._url += url
        self._head_bytes += len(url)
        if self._head_bytes > self._server.limits.max_head_bytes:
            self._refuse_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one header; a trailer is counted and dropped, lest it replace a header that was acted on."""
        if not self._has_head:
            self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > self._server.limits.max_head_bytes:
            self._refuse_head()

    def _refuse_head(self) -> None:
        limit = self._server.limits.max_head_bytes
        why = f"the head is too long: a request's line, headers and trailers have at most {limit} bytes"
        self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, why)

    def on_headers_complete(self) -> None:
        """End the head: refuse a body that is too long before it is sent."""
        self._has_head = True
        length = self._headers.get("content-length", "")
        if length and (parse_length(length) or 0) > self._server.limits.max_body_bytes:
            self._refuse_body()
        elif self._headers.get("expect", "").lower() == "100-continue" and not self._closed:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        """Take a piece of the body."""
        if self._closed or self._refusal is not None:
            return
        self._has_progressed = True
        self._body_bytes += len(data)
        has_room = self._server.held.take(len(data))
        if self._body_bytes > self._server.limits.max_body_bytes:
            self._refuse_body()
        elif not has_room:
            self._server.refused += 1
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "too many bytes of requests are under way")
        else:
            self._pieces.append(data)
            if len(self._pieces) == _PIECES:
                self._body.append(b"".join(self._pieces))
                self._pieces = []

    def _refuse_body(self) -> None:
        limit = self._server.limits.max_body_bytes
        self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body has at most {limit} bytes")

    def on_message_complete(self) -> None:
        """End a request: it is whole."""
        if self._closed or self._refusal is not None:
            return
        self._in_message = False
        pieces = self._body + self._pieces if self._body else self._pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._body, self._pieces, self._body_bytes = [], [], 0  # counted until it is answered
        method = self._parser.get_method().decode("latin-1")
        call = HttpCall(method, self._url.decode("latin-1"), self._headers, body, self._peer)
        self._waiting.append((call, self._parser.should_keep_alive()))
        if self._coroutine is None and not self._write_paused:
            self._next()
        elif len(self._waiting) > _PIPELINED:
            self._transport.pause_reading()

    def _release_body(self) -> None:
        self._server.held.give(self._body_bytes)
        self._body, self._pieces, self._body_bytes = [], [], 0

    def _drop(self) -> None:
        """Forget received requests that are not being answered."""
        self._release_body()
        self._server.held.give(sum(len(call.body) for call, _ in self._waiting))
        self._waiting.clear()

    # -- answering ---------------------------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """True while a request is being received or answered."""
        if self._is_half_received or self._coroutine is not None or self._waiting:
            return True
        return self.is_sending or (self._foreign is not None and self._foreign.is_answering)

    @property
    def is_sending(self) -> bool:
        """True while the client has not yet taken every answer."""
        return bool(self._transport.get_write_buffer_size())

    @property
    def _is_half_received(self) -> bool:
        return self._in_message or (self._foreign is not None and self._foreign.half_received > 0)

    def _next(self) -> None:
        """Begin with the next request that waits, until one has to wait itself."""
        while self._waiting and self._coroutine is None and not self._write_paused and not self._closed:
            call, self._keep_alive = self._waiting.popleft()
            self._answering = len(call.body)
            self._is_head = call.method == "HEAD"
            if len(self._waiting) == _PIPELINED:
                self._transport.resume_reading()
            try:
                answer = self._server.handler(call)
            except Exception:  # noqa: BLE001 - after any failure the client gets an answer
                _log.exception("answering %s %s", call.method, call.path)
                answer = self._server.crashed
            if isinstance(answer, HttpAnswer):
                self._send(answer)
            else:
                self._coroutine = answer
                self._drive()
        if self._refusal is not None and not self._waiting and self._coroutine is None:
            self._keep_alive = self._is_head = False
            self._send(self._refusal)

    def _drive(self, _: object = None) -> None:
        """Run the handler until it waits for something, and come back when that is there.

        This replaces a task: handlers wait for futures, and no code cancels them or asks for their task.
        """
        coroutine = self._coroutine
        if coroutine is None:
            return
        try:
            awaited = coroutine.send(None)
        except StopIteration as done:
            self._coroutine = None
            if done.value is not None:
                self._send(done.value)
        except Exception:  # noqa: BLE001 - after any failure the client gets an answer
            _log.exception("answering a request")
            self._coroutine = None
            self._send(self._server.crashed)
        else:
            if awaited is None:
                self._server.loop.call_soon(self._drive)
            else:
                awaited._asyncio_future_blocking = False  # noqa: SLF001 - how a future learns that it is awaited
                awaited.add_done_callback(self._wake)
            return
        if self._waiting or self._refusal is not None:
            self._next()

    def _wake(self, _: object) -> None:
        self._drive()

    def _send(self, answer: HttpAnswer) -> None:
        self._server.held.give(self._answering)
        self._answering = 0
        if self._closed:
            return
        if answer.__class__ is not HttpAnswer:
            self._send_other(answer)
            return
        body, limit = answer.body, self._server.limits.max_answer_bytes
        if len(body) > limit:
            self._send(self._server.too_long(len(body), limit))
            return
        keep_alive = self._keep_alive and not self._server.draining
        head = self._server.head(answer, keep_alive=keep_alive)
        self.since = self._server.now
        self._transport.write(b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), b"" if self._is_head else body))
        if not keep_alive:
            self._end()

    def _end(self) -> None:
        """Close after the last answer."""
        if self._refusal is not None or self._server.draining:
            self.part()
        else:
            self._closed = True
            self._transport.close()

    def _send_other(self, answer: HttpAnswer) -> None:
        """Send an answer that is not in memory, or hang up."""
        if isinstance(answer, FileAnswer):
            self._coroutine = self._send_file(answer)
            self._drive()
        else:
            self.abort()

    async def _send_file(self, answer: FileAnswer) -> HttpAnswer | None:
        """Send part of a file as fast as the client reads; returns the answer to send instead if there is no file."""
        part = answer.part
        keep_alive = self._keep_alive and not self._server.draining
        left = part.length if part.cut is None else min(part.length, part.cut)
        is_whole = left == part.length
        try:
            file = part.path.open("rb")
        except OSError:
            _log.exception("answering with a file")
            return self._server.crashed
        with file:
            file.seek(part.start)
            self._transport.write(
                b"%bContent-Length: %d\r\n\r\n" % (self._server.head(answer, keep_alive=keep_alive), part.length)
            )
            while left and not self._is_head and not self._closed:
                if self._write_paused:
                    self._can_write = self._server.loop.create_future()
                    await self._can_write
                    self._can_write = None
                    continue
                piece = file.read(min(_CHUNK, left))
                if not piece:  # the file became shorter: the client must not take the next answer for the rest
                    is_whole = False
                    break
                self._transport.write(piece)
                left -= len(piece)
                if part.on_sent is not None:
                    part.on_sent(len(piece))
        self.since = self._server.now
        if not self._closed and not (keep_alive and (is_whole or self._is_head)):
            self._end()
        return None

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        """Refuse a request, after all answers before it, and hang up: the following bytes cannot be trusted."""
        if self._closed or self._refusal is not None:
            return
        self._in_message = False
        self._release_body()
        self._refusal = HttpAnswer(status, b'{"error":"%b"}' % why.replace('"', "'").encode())
        if self._coroutine is None:
            self._next()

    def check_time(self, now: float) -> None:
        """Hang up if a time-out has passed."""
        limits = self._server.limits
        waited = now - self.since
        if self._closed:
            if waited > (limits.write_timeout_s if self.is_sending else limits.body_timeout_s):
                self.abort()
        elif self._is_half_received and waited > limits.body_timeout_s:
            self._server.timed_out += 1
            if self._foreign is not None:
                self.abort()
            else:
                self._refuse(HTTPStatus.REQUEST_TIMEOUT, "the request took too long to arrive")
        elif self._write_paused and waited > limits.write_timeout_s:
            self._server.timed_out += 1
            self.abort()
        elif waited > limits.idle_timeout_s and not self.is_busy:
            self.abort()

    def part(self) -> None:
        """Send the written bytes and close for writing; bytes that still arrive are read and dropped.

        Closing at once would reset a connection with bytes on their way, and take from the client what was sent before:
        the answer with the reason.
        """
        server = self._server
        if self._closed:
            return
        self._closed = True
        self._drop()
        server.open.discard(self)
        if len(server.parting) >= _PARTING or not self._transport.can_write_eof():
            self._transport.close()
            return
        server.parting.add(self)
        self.since = server.now
        self._transport.resume_reading()
        self._transport.write_eof()

    def abort(self) -> None:
        """Hang up now."""
        self._closed = True
        self._transport.abort()
