"""The GeneralModelService over baidu_std, the protocol of Paddle Serving's brpc client.

A frame is "PRPC", the size of the body after this header, the size of its meta (both big-endian), an RpcMeta and a
payload. The frames of one connection are answered in the order they finish; the correlation id identifies each.
An answer's meta also carries the pin and the share of declared defaults, in fields that brpc ignores.
"""

from __future__ import annotations

import asyncio
import struct
import sys
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

from google.protobuf.message import DecodeError

from cloudedge.errors import InputError, Overloaded, Unavailable
from cloudedge.http1 import HeldBytes
from cloudedge.io import join_address
from cloudedge.serving.engine import Answer, Engine
from cloudedge.serving.formats import GENERAL_SERVICE, GZIP, ZLIB, BodyLimits, RpcMeta, deflate, inflate
from cloudedge.serving.protocols._access_log import Outcome, RequestObserver, RequestRecord
from cloudedge.serving.protocols._faults import fault_of, too_long
from cloudedge.serving.protocols._general import (
    METHODS,
    PARSE,
    answer_general,
    fill_response,
    parse_request,
    request_cost,
)
from cloudedge.serving.protocols._intake import Intake

__all__ = ["MAGIC", "BaiduStdProtocol", "Frame", "FrameReader", "pack_frame", "serve_baidu_std"]

MAGIC = b"PRPC"
HEADER = struct.Struct(">4sII")
MAX_BODY = 64 << 20
MAX_META = 64 << 10
MAX_IN_FLIGHT = 256
CALL_S = 20.0  # the default time-out of upstream's client

NO_SERVICE, NO_METHOD, BAD_REQUEST = 1001, 1002, 1003  # brpc's codes
WRONG_INPUT = -5100  # upstream's own
FAULTS = frozenset({-5000, 1008})  # the server's own, not the caller's
WRAPPERS = {2: GZIP, 3: ZLIB}  # by compress_type; 1 and 4 (snappy, lz4) are refused


class Frame(NamedTuple):
    """One parsed frame."""

    meta: Any
    payload: bytes

    @property
    def wrapper(self) -> int | None:
        """The compression of the payload; None if it is not compressed."""
        return WRAPPERS.get(self.meta.compress_type)

    @property
    def size(self) -> int:
        """The bytes it is counted with."""
        return len(self.payload) + int(self.meta.ByteSize()) + HEADER.size

    def plain(self, limits: BodyLimits) -> bytes:
        """Return the payload, decompressed if it is compressed.

        Raises:
            InputError: It cannot be decompressed, or holds more than the limits allow.
        """
        wrapper = self.wrapper
        return inflate(self.payload, limits, wrapper) if wrapper else self.payload


class FrameReader:
    """Cuts a stream of bytes into frames, in any chunks.

    Args:
        max_body: Most bytes of a frame's meta and payload together.
    """

    def __init__(self, max_body: int = MAX_BODY) -> None:
        self._max_body = max_body
        self._buffer = bytearray()

    @property
    def half_received(self) -> int:
        """Bytes of an incomplete frame."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[Frame]:
        """Take received bytes and return the frames that are now complete.

        Raises:
            InputError: The bytes are no frames, or one is too large; nothing after it can be read. Carries its
                `correlation_id` if that is known. Raised only after the frames ahead of it were returned.
        """
        buffer = self._buffer
        buffer += data
        frames: list[Frame] = []
        start = 0
        while True:
            try:
                size = self._complete_size(start)
                if size is None:
                    break
                frames.append(
                    _parse_frame(bytes(memoryview(buffer)[start + HEADER.size : start + size]), self._meta_size(start))
                )
            except InputError:
                if not frames:
                    raise
                break
            start += size
        del buffer[:start]
        return frames

    def _meta_size(self, start: int) -> int:
        return int(HEADER.unpack_from(self._buffer, start)[2])

    def _complete_size(self, start: int) -> int | None:
        """Return the size of the frame that begins at `start`, or None if it is incomplete."""
        buffer = self._buffer
        if not MAGIC.startswith(bytes(buffer[start : start + 4])):
            raise InputError("not a baidu_std frame: it does not begin with PRPC")
        if len(buffer) - start < HEADER.size:
            return None
        _, body, meta = HEADER.unpack_from(buffer, start)
        if body > self._max_body or meta > min(body, MAX_META):
            if meta <= min(body, MAX_META, len(buffer) - start - HEADER.size):
                received_meta = buffer[start + HEADER.size : start + HEADER.size + meta]
            elif meta <= min(body, MAX_META):
                return None  # the meta with the correlation id comes next
            else:
                received_meta = bytearray()
            raise InputError(
                f"a frame of {body} bytes with {meta} of meta is too large", limit=self._max_body,
                correlation_id=_correlation_id(bytes(received_meta)),
            )  # fmt: skip
        size = HEADER.size + int(body)
        return size if len(buffer) - start >= size else None


def _parse_frame(body: bytes, meta_size: int) -> Frame:
    try:
        meta = RpcMeta.FromString(body[:meta_size])
    except DecodeError as error:
        raise InputError("a frame's meta is not an RpcMeta") from error
    size = len(body) - meta_size
    if not 0 <= meta.attachment_size <= size:
        raise InputError(f"a frame says its attachment has {meta.attachment_size} of its {size} bytes")
    return Frame(meta, body[meta_size : len(body) - meta.attachment_size])


def _correlation_id(meta: bytes) -> int | None:
    try:
        return int(RpcMeta.FromString(meta).correlation_id) if meta else None
    except DecodeError:
        return None


def _error_frame(correlation_id: int, code: int, text: str) -> Frame:
    meta = RpcMeta(correlation_id=correlation_id)
    meta.response.error_code, meta.response.error_text = code, text
    return Frame(meta, b"")


def pack_frame(meta: Any, payload: bytes = b"") -> bytes:
    """Encode a frame."""
    head = meta.SerializeToString()
    return b"".join((HEADER.pack(MAGIC, len(head) + len(payload), len(head)), head, payload))


async def answer_frame(
    engine: Engine, frame: Frame, *, intake: Intake = PARSE, max_answer: int = MAX_BODY, call_s: float = CALL_S
) -> Frame:
    """Answer one frame with one frame; raises nothing but cancellation."""
    code, text, payload, charge = 0, "", b"", 0
    answer: Answer | None = None
    compress_type = frame.meta.compress_type
    try:
        code, text = _refusal(frame)
        if not code:
            wanted, charge = await intake.parse(frame.payload, request_cost, parse_request, frame.wrapper)
            with engine.hold() as version:
                answer = await answer_general(version, wanted, deadline=time.monotonic() + call_s)
            payload = fill_response(version.signature, answer).SerializeToString()
            payload = deflate(payload, WRAPPERS[compress_type]) if compress_type else payload
            if len(payload) > max_answer:
                code, text = WRONG_INPUT, too_long(len(payload), max_answer)
    except DecodeError:
        code, text = BAD_REQUEST, "the payload is not a Request message"
    except Exception as error:  # noqa: BLE001 - every failure has an answer
        fault = fault_of(error)
        code, text = fault.rpc, fault.message
    finally:
        intake.give(charge)
    payload = b"" if code else payload
    meta = RpcMeta(correlation_id=frame.meta.correlation_id, compress_type=0 if code else compress_type)
    meta.response.error_code = code
    if text:
        meta.response.error_text = text
    if answer is not None and not code:
        meta.pin = answer.pin
        if answer.defaulted:
            meta.defaulted = answer.defaulted
    return Frame(meta, payload)


def _refusal(frame: Frame) -> tuple[int, str]:
    request, kind = frame.meta.request, frame.meta.compress_type
    if request.service_name not in (GENERAL_SERVICE, "GeneralModelService"):
        return NO_SERVICE, f"there is no service {request.service_name[:100]!r} here"
    if request.method_name not in METHODS:
        return NO_METHOD, f"{GENERAL_SERVICE} has no method {request.method_name[:100]!r}"
    if kind and kind not in WRAPPERS:
        return BAD_REQUEST, f"compress_type {kind} is not taken; 0 (none), 2 (gzip) and 3 (zlib) are"
    return 0, ""


def _record_of(frame: Frame) -> RequestRecord:
    service, method = frame.meta.request.service_name, frame.meta.request.method_name
    attributes = {"rpc.system": "brpc", "rpc.service": service[:200], "rpc.method": method[:200]}
    return RequestRecord("baidu_std", f"/{service}/{method}", len(frame.payload), attributes=attributes)


def _outcome(answer: Frame | None) -> Outcome:
    if answer is None:
        return Outcome("cancelled")
    code = answer.meta.response.error_code
    return Outcome(code, answer.meta.pin, len(answer.payload), code in FAULTS)


class BaiduStdProtocol(asyncio.Protocol):
    """One connection. It stops reading while too many calls are under way or the peer does not read its answers."""

    def __init__(
        self,
        engine: Engine,
        *,
        max_body: int = MAX_BODY,
        max_answer: int = MAX_BODY,
        call_s: float = CALL_S,
        held: HeldBytes | None = None,
        intake: Intake = PARSE,
        observer: RequestObserver | None = None,
        end_connection: Callable[[], None] | None = None,
    ) -> None:
        self._end_connection = end_connection
        """Ends the connection after the last answer; None closes it."""
        self._engine = engine
        self._reader = FrameReader(max_body)
        self._intake = intake
        self._max_answer = max_answer
        self._call_s = call_s
        self._observer = observer or RequestObserver()
        self._waiting: deque[Frame] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._held = held or HeldBytes(sys.maxsize)
        self._blocked = False
        self._refusal: Frame | None = None
        """The last answer of this connection: the start of the next frame is unknown."""
        self._transport: asyncio.Transport | None = None

    @property
    def half_received(self) -> int:
        """Bytes of an incomplete frame."""
        return self._reader.half_received

    @property
    def is_answering(self) -> bool:
        """Calls are under way."""
        return bool(self._tasks or self._waiting)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection."""
        self._transport = cast("asyncio.Transport", transport)  # a stream, as this is no datagram protocol

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the interface's
        """Drop the calls of the lost connection."""
        self._transport = None
        self._held.give(sum(frame.size for frame in self._waiting))
        self._waiting.clear()
        for task in self._tasks:
            task.cancel()

    def data_received(self, data: bytes) -> None:
        """Begin every complete call."""
        if self._refusal is not None:
            return
        try:
            while frames := self._reader.feed(data):
                for frame in frames:
                    self._take(frame)
                data = b""
        except InputError as error:
            # The calls before it are answered first; the refusal is the last answer.
            self._refusal = _error_frame(error.facts.get("correlation_id") or 0, BAD_REQUEST, error.message)
            self._reader = FrameReader()
        self._begin()

    def _take(self, frame: Frame) -> None:
        if self._held.take(frame.size):
            self._waiting.append(frame)
            return
        self._held.give(frame.size)
        fault = fault_of(Overloaded("too many bytes of requests are under way"))
        if self._transport is not None:
            self._transport.write(pack_frame(*_error_frame(frame.meta.correlation_id, fault.rpc, fault.message)))

    def pause_writing(self) -> None:
        """Begin no more calls: the peer does not read its answers."""
        self._blocked = True
        self._begin()

    def resume_writing(self) -> None:
        """Begin calls again."""
        self._blocked = False
        self._begin()

    def _begin(self) -> None:
        while self._waiting and not self._blocked and len(self._tasks) < MAX_IN_FLIGHT:
            frame = self._waiting.popleft()
            task = asyncio.get_running_loop().create_task(self._answer(frame))
            self._tasks.add(task)
            task.add_done_callback(partial(self._ended, frame.size))
        if self._transport is None:
            return
        if self._refusal is not None:
            if not self.is_answering:
                transport, self._transport = self._transport, None
                transport.write(pack_frame(*self._refusal))
                (self._end_connection or transport.close)()
        elif self._waiting or self._blocked or len(self._tasks) >= MAX_IN_FLIGHT:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    async def _answer(self, frame: Frame) -> None:
        answering = answer_frame(
            self._engine, frame, intake=self._intake, max_answer=self._max_answer, call_s=self._call_s
        )
        if not self._observer.is_off:
            answering = self._observer.observe(_record_of(frame), answering, _outcome)
        answer = await answering
        if self._transport is not None:
            self._transport.write(pack_frame(*answer))

    def _ended(self, size: int, task: asyncio.Task[None]) -> None:
        self._held.give(size)
        self._tasks.discard(task)
        self._begin()


async def serve_baidu_std(
    engine: Engine, *, host: str = "127.0.0.1", port: int = 0, max_body: int = MAX_BODY, call_s: float = CALL_S
) -> asyncio.Server:
    """Serve the GeneralModelService over baidu_std until the returned server is closed.

    Raises:
        Unavailable: The port is taken.
    """
    loop = asyncio.get_running_loop()
    try:
        return await loop.create_server(lambda: BaiduStdProtocol(engine, max_body=max_body, call_s=call_s), host, port)
    except OSError as error:
        raise Unavailable(f"cannot listen for baidu_std on {join_address(host, port)}: {error.strerror}") from error
