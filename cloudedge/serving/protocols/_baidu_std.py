"""The GeneralModelService over baidu_std, the protocol of Paddle Serving's brpc client.

A frame is "PRPC", the size of what follows the header, the size of its meta (both big-endian), an RpcMeta and a
payload. Frames on one connection are answered in whatever order they are done; the correlation id tells them apart.
An answer's meta also carries the pin and the share of declared defaults, in fields that brpc passes over.
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
from cloudedge.serving.formats import GENERAL_SERVICE, GZIP, ZLIB, RpcMeta, deflate, inflate
from cloudedge.serving.protocols._access_log import Asked, Outcome, Watch
from cloudedge.serving.protocols._faults import fault_of, too_long
from cloudedge.serving.protocols._general import LIKELY_RATIO, METHODS, answer_general, fill_response, parse_request
from cloudedge.serving.protocols._offload import aside

__all__ = ["MAGIC", "BaiduStdProtocol", "Frame", "FrameReader", "pack_frame", "serve_baidu_std"]

MAGIC = b"PRPC"
HEADER = struct.Struct(">4sII")
MAX_BODY = 64 << 20
MAX_META = 64 << 10
MAX_IN_FLIGHT = 256
CALL_S = 20.0  # what upstream's client waits for an answer unless told otherwise

NO_SERVICE, NO_METHOD, BAD_REQUEST = 1001, 1002, 1003  # brpc's codes
WRONG_INPUT = -5100  # upstream's own
FAULTS = frozenset({-5000, 1008})  # the server's own, not the caller's
WRAPPERS = {2: GZIP, 3: ZLIB}  # by compress_type; 1 and 4 (snappy, lz4) are refused


class Frame(NamedTuple):
    """One frame, taken apart."""

    meta: Any
    payload: bytes

    def plain(self, limit: int) -> bytes:
        """Return the payload, decompressed if it came so.

        Raises:
            InputError: it cannot be decompressed, or holds more than `limit` bytes.
        """
        wrapper = WRAPPERS.get(self.meta.compress_type)
        return inflate(self.payload, limit, wrapper) if wrapper else self.payload


class FrameReader:
    """Cuts a stream of bytes into frames, however the network delivers them.

    Args:
        max_body: Bytes that meta and payload of a frame may have together.
    """

    def __init__(self, max_body: int = MAX_BODY) -> None:
        self._max_body = max_body
        self._buffer = bytearray()

    @property
    def half_received(self) -> int:
        """Bytes of a frame that is not whole yet."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[Frame]:
        """Take what arrived and return the frames that are now complete.

        Raises:
            InputError: these are no frames, or one is larger than allowed; nothing after it can be read. Says its
                `correlation_id` if that is known. Not before the frames ahead of it were returned.
        """
        buffer = self._buffer
        buffer += data
        frames: list[Frame] = []
        start = 0
        while True:
            try:
                size = self._whole(start)
                if size is None:
                    break
                frames.append(_take(bytes(memoryview(buffer)[start + HEADER.size : start + size]), self._meta(start)))
            except InputError:
                if not frames:
                    raise
                break
            start += size
        del buffer[:start]
        return frames

    def _meta(self, start: int) -> int:
        return int(HEADER.unpack_from(self._buffer, start)[2])

    def _whole(self, start: int) -> int | None:
        """Return the size of the frame that begins there, or None if it is not whole yet."""
        buffer = self._buffer
        if not MAGIC.startswith(bytes(buffer[start : start + 4])):
            raise InputError("not a baidu_std frame: it does not begin with PRPC")
        if len(buffer) - start < HEADER.size:
            return None
        _, body, meta = HEADER.unpack_from(buffer, start)
        if body > self._max_body or meta > min(body, MAX_META):
            if meta <= min(body, MAX_META, len(buffer) - start - HEADER.size):
                told = buffer[start + HEADER.size : start + HEADER.size + meta]
            elif meta <= min(body, MAX_META):
                return None  # whose call it is comes next
            else:
                told = bytearray()
            raise InputError(
                f"a frame of {body} bytes with {meta} of meta is more than is taken", limit=self._max_body,
                correlation_id=_correlation_id(bytes(told)),
            )  # fmt: skip
        size = HEADER.size + int(body)
        return size if len(buffer) - start >= size else None


def _take(body: bytes, meta_size: int) -> Frame:
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


def _refused(correlation_id: int, code: int, text: str) -> Frame:
    meta = RpcMeta(correlation_id=correlation_id)
    meta.response.error_code, meta.response.error_text = code, text
    return Frame(meta, b"")


def pack_frame(meta: Any, payload: bytes = b"") -> bytes:
    """Make the bytes of a frame."""
    head = meta.SerializeToString()
    return b"".join((HEADER.pack(MAGIC, len(head) + len(payload), len(head)), head, payload))


async def answer_frame(
    engine: Engine, frame: Frame, *, max_inflated: int = MAX_BODY, max_answer: int = MAX_BODY, call_s: float = CALL_S
) -> Frame:
    """Answer one frame with one frame; never raises but for cancellation."""
    code, text, payload = 0, "", b""
    answer: Answer | None = None
    compress_type = frame.meta.compress_type
    try:
        code, text = _refusal(frame)
        if not code:
            size = len(frame.payload) * (LIKELY_RATIO if compress_type else 1)
            wanted = await aside(size, lambda: parse_request(frame.plain(max_inflated)))
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


def _asked(frame: Frame) -> Asked:
    service, method = frame.meta.request.service_name, frame.meta.request.method_name
    attributes = {"rpc.system": "brpc", "rpc.service": service[:200], "rpc.method": method[:200]}
    return Asked("baidu_std", f"/{service}/{method}", len(frame.payload), attributes=attributes)


def _outcome(answer: Frame | None) -> Outcome:
    if answer is None:
        return Outcome("cancelled")
    code = answer.meta.response.error_code
    return Outcome(code, answer.meta.pin, len(answer.payload), code in FAULTS)


class BaiduStdProtocol(asyncio.Protocol):
    """One connection. Stops reading while too many calls are under way or the peer does not read its answers."""

    def __init__(
        self,
        engine: Engine,
        *,
        max_body: int = MAX_BODY,
        max_answer: int = MAX_BODY,
        call_s: float = CALL_S,
        held: HeldBytes | None = None,
        watch: Watch | None = None,
        part: Callable[[], None] | None = None,
    ) -> None:
        self._part = part
        """Ends the connection once everything was said; closes it if left out."""
        self._engine = engine
        self._reader = FrameReader(max_body)
        self._max_body = max_body
        self._max_answer = max_answer
        self._call_s = call_s
        self._watch = watch or Watch()
        self._waiting: deque[Frame] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._held = held or HeldBytes(sys.maxsize)
        self._blocked = False
        self._refusal: Frame | None = None
        """What is said last: where the next frame begins could not be told."""
        self._transport: asyncio.Transport | None = None

    @property
    def half_received(self) -> int:
        """Bytes of a frame that is not whole yet."""
        return self._reader.half_received

    @property
    def is_answering(self) -> bool:
        """Whether calls are under way."""
        return bool(self._tasks or self._waiting)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection."""
        self._transport = cast("asyncio.Transport", transport)  # a stream, as this is no datagram protocol

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the interface's
        """Drop what nobody waits for any more."""
        self._transport = None
        self._held.give(sum(len(frame.payload) for frame in self._waiting))
        self._waiting.clear()
        for task in self._tasks:
            task.cancel()

    def data_received(self, data: bytes) -> None:
        """Begin every call that is complete."""
        if self._refusal is not None:
            return
        try:
            while frames := self._reader.feed(data):
                for frame in frames:
                    self._take(frame)
                data = b""
        except InputError as error:
            # Those before it are answered first; then it is said why, and nothing more.
            self._refusal = _refused(error.facts.get("correlation_id") or 0, BAD_REQUEST, error.message)
            self._reader = FrameReader()
        self._begin()

    def _take(self, frame: Frame) -> None:
        if self._held.take(len(frame.payload)):
            self._waiting.append(frame)
            return
        self._held.give(len(frame.payload))
        fault = fault_of(Overloaded("too many bytes of requests are under way"))
        if self._transport is not None:
            self._transport.write(pack_frame(*_refused(frame.meta.correlation_id, fault.rpc, fault.message)))

    def pause_writing(self) -> None:
        """Begin nothing more: the peer is behind with its answers."""
        self._blocked = True
        self._begin()

    def resume_writing(self) -> None:
        """Go on."""
        self._blocked = False
        self._begin()

    def _begin(self) -> None:
        while self._waiting and not self._blocked and len(self._tasks) < MAX_IN_FLIGHT:
            frame = self._waiting.popleft()
            task = asyncio.get_running_loop().create_task(self._answer(frame))
            self._tasks.add(task)
            task.add_done_callback(partial(self._ended, len(frame.payload)))
        if self._transport is None:
            return
        if self._refusal is not None:
            if not self.is_answering:
                transport, self._transport = self._transport, None
                transport.write(pack_frame(*self._refusal))
                (self._part or transport.close)()
        elif self._waiting or self._blocked or len(self._tasks) >= MAX_IN_FLIGHT:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    async def _answer(self, frame: Frame) -> None:
        answering = answer_frame(
            self._engine, frame, max_inflated=self._max_body, max_answer=self._max_answer, call_s=self._call_s
        )
        if not self._watch.is_off:
            answering = self._watch.around(_asked(frame), answering, _outcome)
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
        Unavailable: the port is taken.
    """
    loop = asyncio.get_running_loop()
    try:
        return await loop.create_server(lambda: BaiduStdProtocol(engine, max_body=max_body, call_s=call_s), host, port)
    except OSError as error:
        raise Unavailable(f"cannot listen for baidu_std on {join_address(host, port)}: {error.strerror}") from error
