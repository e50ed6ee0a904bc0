"""Downloads that continue: after a broken connection, after a kill, and without asking for a byte twice.

A file grows in a *part*; it gets its name once it is whole. What is there is not asked for again: the request names a
range, with If-Range where the server gave an entity tag, so that a file that changed is sent from its beginning instead
of as a mixture; and the answer's Content-Range must begin where the part ends. This layer owns the retries of a
download: it continues as long as attempts bring bytes and gives up after several in a row that brought none.

How a request is sent is the caller's: an `Opener` sends one and turns a broken connection into `Unavailable`.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol

from cloudedge.clock import Clock, SystemClock
from cloudedge.errors import (
    CloudEdgeError,
    ConfigError,
    DeadlineExceeded,
    IntegrityError,
    NotFound,
    Rejected,
    Unavailable,
)
from cloudedge.io._atomic_files import sync_file, write_atomically
from cloudedge.io._bounded_body import parse_length
from cloudedge.io._retries import Backoff, Patience

__all__ = ["Answer", "Download", "Opener", "Throttle"]

ATTEMPTS = 6
"""Attempts in a row that bring no byte."""
_BACKOFF = Backoff(0.2, 10.0)
_TIMEOUT_S = 30.0
"""To connect, and for each read: a connection that brings nothing for so long is given up."""
_PASSING = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS)


class Throttle:
    """Lets so many bytes per second through, over all who share it."""

    def __init__(self, bytes_per_s: float, clock: Clock | None = None) -> None:
        if bytes_per_s <= 0:
            raise ConfigError(f"a bandwidth limit is above 0 bytes per second, not {bytes_per_s}")
        self._rate = bytes_per_s
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._free_at = self._clock.monotonic()

    def take(self, count: int) -> None:
        """Wait until `count` more bytes may pass."""
        with self._lock:
            now = self._clock.monotonic()
            begin = max(self._free_at, now)
            self._free_at = begin + count / self._rate
        if begin > now:
            self._clock.sleep(begin - now)


class Answer(Protocol):
    """A server's answer, its body not yet read."""

    @property
    def status(self) -> int:
        """The HTTP status."""
        ...

    @property
    def headers(self) -> Any:
        """Its headers: a mapping whose `get` does not mind the case."""
        ...

    def chunks(self) -> Iterator[bytes]:
        """Yield the body as it arrives, up to a break.

        Raises:
            Unavailable: the connection broke.
        """
        ...


Opener = Callable[[Mapping[str, str], float], AbstractContextManager[Answer]]
"""Sends a request with these headers and a timeout in seconds; raises `Unavailable` if no answer comes."""


@dataclass
class Download:
    """One file on its way here.

    Attributes:
        url: Its address, without secrets, for messages.
        part: Where it grows.
        open: Sends a request.
        clock: For the deadline and the pauses between attempts.
        size: Its bytes, if they are known.
        most: The bytes it may have if they are not.
        over_most: Makes the error for a file with more than `most`; an `IntegrityError` if left out.
        sure: The caller compares a digest: a server without entity tags is trusted to continue the same content.
        origin: A file that remembers which content the part is the beginning of, for the next process.
        source: The whole address, which `origin` remembers.
        needs_length: Refuse an answer that announces no length where `size` is not known.
        deadline: By `clock.monotonic()`.
        throttle: A limit on bytes per second.
        attempts: Attempts in a row that bring no byte.
        stop: Whether to give up now.
        on_bytes: Called with the number of bytes of each piece that is written.
        etag: The entity tag of the last answer.
    """

    url: str
    part: Path
    open: Opener
    clock: Clock
    size: int | None = None
    most: int | None = None
    over_most: Callable[[int], CloudEdgeError] | None = None
    sure: bool = False
    origin: Path | None = None
    source: str = ""
    needs_length: bool = True
    deadline: float | None = None
    throttle: Throttle | None = None
    attempts: int = ATTEMPTS
    stop: Callable[[], bool] = lambda: False
    on_bytes: Callable[[int], None] = lambda _: None
    etag: str = ""
    _tag: str = field(default="", init=False)
    """The strong entity tag of what the part is a beginning of."""

    def run(self) -> int:
        """Bring the whole file into the part; return the bytes received.

        Raises:
            NotFound: the server has no such file.
            Rejected: the server refuses it.
            IntegrityError: the file has another size; nothing of it is kept.
            DeadlineExceeded: the time was not enough; what came is kept.
            Unavailable: attempt after attempt brought nothing; what came is kept.
            OSError: the part cannot be written.
        """
        self._tag = self._remembered()
        patience = Patience(self.attempts, _BACKOFF, self.clock, deadline=self.deadline)
        received, furthest = 0, self.has()
        while True:
            try:
                for count in self._attempt():
                    received += count
                break
            except DeadlineExceeded:
                raise
            except Unavailable as error:
                progressed, furthest = self.has() > furthest, max(furthest, self.has())
                if self.stop():
                    raise Unavailable(f"fetching {self.url} was stopped; {self.has()} bytes are kept") from error
                if not patience.wait(progressed=progressed):
                    raise (self._late() if patience.is_late else self._given_up(error, patience)) from error
        sync_file(self.part)
        return received

    def has(self) -> int:
        """Return how many bytes of it are here."""
        try:
            return self.part.stat().st_size
        except FileNotFoundError:
            return 0

    def drop(self) -> None:
        """Forget what came of it."""
        self._tag = ""
        self.part.unlink(missing_ok=True)
        if self.origin is not None:
            self.origin.unlink(missing_ok=True)

    def _attempt(self) -> Iterator[int]:
        """Ask for what is missing and append it; yield the size of each piece once it is written."""
        at = self.has() if self._tag or self.sure else 0
        if at and at == self.size:
            return
        headers = {"Accept-Encoding": "identity"}
        if at:
            headers["Range"] = f"bytes={at}-"
            if self._tag:
                headers["If-Range"] = self._tag
        with self.open(headers, min(_TIMEOUT_S, self._left_s())) as answer:
            begin = self._begin(answer, at)
            if begin is None:
                return
            self.etag = answer.headers.get("ETag", "")
            whole = self._whole(answer, begin)
            if not begin:
                self._begin_anew()
            yield from self._append(answer.chunks(), begin, whole)
        if whole is not None and self.has() != whole:
            raise Unavailable(f"{self.url} ended after {self.has()} of {whole} bytes", url=self.url)

    def _begin(self, answer: Answer, at: int) -> int | None:
        """Return the offset of the answer's first byte; None when there is nothing left to send."""
        status, span = answer.status, answer.headers.get("Content-Range", "")
        if status == HTTPStatus.OK:
            return 0
        if status == HTTPStatus.PARTIAL_CONTENT:
            if not span.startswith(f"bytes {at}-"):
                message = f"{self.url} was asked for the bytes from {at} on and sends {span!r}"
                raise Unavailable(message, url=self.url)
            return at
        if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and at:
            if self.size is None and span.rpartition("/")[2] == str(at):
                return None
            self.drop()  # the next attempt begins anew
            raise Unavailable(f"{self.url} is shorter than the {at} bytes an earlier attempt brought", url=self.url)
        message = f"{self.url} answered HTTP {status}"
        if status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
            raise NotFound(f"{self.url} is not there (HTTP {status})", url=self.url)
        if status in _PASSING or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise Unavailable(message, url=self.url)
        raise Rejected(message, hint="Check the token and the address.", url=self.url, status=status)

    def _whole(self, answer: Answer, begin: int) -> int | None:
        """Return how many bytes the whole file has; None if that is known only at its end."""
        announced = answer.headers.get("Content-Length", "")  # missing where the body comes in chunks
        length = parse_length(announced)
        if length is None:
            if self.size is None and self.needs_length:
                message = f"{self.url} does not say how long it is"
                raise Rejected(message, hint="Serve it with a Content-Length.", url=self.url)
            return self.size
        whole = begin + length
        if self.size not in (None, whole):
            raise self._wrong_size(whole, self.size or 0)
        self._check(whole)
        return whole

    def _check(self, length: int) -> None:
        if self.size is not None and length > self.size:
            raise self._wrong_size(length, self.size)
        if self.size is None and self.most is not None and length > self.most:
            raise self.over_most(self.most) if self.over_most else self._wrong_size(length, self.most)

    def _begin_anew(self) -> None:
        """Note what the part becomes the beginning of, once nothing else is in it."""
        with suppress(FileNotFoundError):
            os.truncate(self.part, 0)
        self._tag = self.etag if self.etag.startswith('"') else ""
        if self.origin is not None:
            write_atomically(self.origin, json.dumps({"url": self.source, "tag": self._tag}), durable=False)

    def _remembered(self) -> str:
        if self.origin is not None:
            with suppress(OSError, ValueError):
                known = json.loads(self.origin.read_text(encoding="utf-8"))
                if isinstance(known, dict) and known.get("url") == self.source:
                    return str(known.get("tag", ""))
        return ""

    def _append(self, chunks: Iterator[bytes], at: int, whole: int | None) -> Iterator[int]:
        # Unbuffered: what came before a kill is there after it.
        descriptor = os.open(self.part, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(descriptor, at)
            os.lseek(descriptor, at, os.SEEK_SET)
            for chunk in chunks:
                at += len(chunk)
                self._check(at)
                if self.throttle:
                    self.throttle.take(len(chunk))
                view = memoryview(chunk)
                while view:
                    view = view[os.write(descriptor, view) :]
                self.on_bytes(len(chunk))
                yield len(chunk)
                if self.stop():
                    raise Unavailable("it was stopped")
                if at != whole:
                    self._left_s()
            if self.throttle:
                self.throttle.take(0)  # the last piece, too, takes its time
        finally:
            os.close(descriptor)

    def _left_s(self) -> float:
        left_s = _TIMEOUT_S if self.deadline is None else self.deadline - self.clock.monotonic()
        if left_s <= 0:
            raise self._late()
        return left_s

    def _late(self) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"{self.url} did not arrive in time; {self.has()} bytes are kept",
            hint="Run the same command again: it continues there.",
            url=self.url,
        )

    def _given_up(self, error: Unavailable, patience: Patience) -> Unavailable:
        return Unavailable(
            f"fetching {self.url} failed {patience.failures} times without a byte: {error.message}",
            hint="See whether the server runs and can be reached from here, then run the same command again.",
            url=self.url,
            have=self.has(),
        )

    def _wrong_size(self, found: int, wanted: int) -> IntegrityError:
        self.drop()
        return IntegrityError(
            f"{self.url} has {found} bytes or more, {wanted} were promised",
            hint="Publish it again; what came was thrown away.",
            url=self.url,
        )
