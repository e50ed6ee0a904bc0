"""Downloads that stop and go on: over network cuts, over a kill of the node, and without asking for a byte twice.

A file is written to ``NAME.part``, and where it is from (URL and entity tag) to ``NAME.from`` before its first byte.
What is there is asked for no more: a range request with If-Range, so that a server whose file has changed sends the new
one from its beginning instead of a mixture. The name itself appears once the bytes are what they should be.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import json
import os
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

from cloudedge.clock import Clock, SystemClock
from cloudedge.errors import IntegrityError, NotFound, Rejected, StorageError, Unavailable
from cloudedge.io import storage_errors

__all__ = ["Downloads", "Pace"]

Answer = http.client.HTTPResponse | HTTPError

_CHUNK = 64 * 1024
_TIMEOUT_S = 30.0
"""To connect, and for each read: a connection that brings nothing for so long is given up."""
_TRIES = 6
"""Tries in a row that bring no byte, before the caller is told; it comes back later."""
_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 10.0


class Pace:
    """A limit on bytes per second, shared by all downloads of a node; 0: none."""

    def __init__(self, bytes_per_s: int = 0, clock: Clock | None = None) -> None:
        self.bytes_per_s = bytes_per_s
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._free_at = 0.0

    def __call__(self, count: int) -> None:
        """Wait until `count` bytes may have been taken."""
        if not self.bytes_per_s:
            return
        with self._lock:
            now = self._clock.monotonic()
            self._free_at = max(self._free_at, now) + count / self.bytes_per_s
            wait = self._free_at - now
        if wait > 0:
            self._clock.sleep(wait)


@dataclass(frozen=True)
class _Bounds:
    """How long a file is, or may be; None: nobody says."""

    size: int | None
    most: int | None

    def check(self, what: str, length: int) -> None:
        if self.size is not None and length > self.size:
            raise IntegrityError(f"{what} is longer than the {self.size} bytes that were promised")
        if self.most is not None and length > self.most:
            raise StorageError(
                f"{what} has more than the {self.most} bytes there is room for", errno=errno.ENOSPC, free=self.most
            )


class Downloads:
    """Fetches files into a folder.

    Args:
        folder: Where unfinished files wait.
        headers: Sent with every request.
        pace: How fast, at most.
        fetched: Told of bytes as they come.
        clock: Where time and chance come from.
        stop: Whether to give up now.
        tls: Whose certificates are believed; the system's if left out.
    """

    def __init__(
        self,
        folder: Path,
        *,
        headers: Mapping[str, str] | None = None,
        pace: Pace | None = None,
        fetched: Callable[[int], None] = lambda _: None,
        clock: Clock | None = None,
        stop: Callable[[], bool] = lambda: False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.folder = folder
        self._pace = pace or Pace()
        self._fetched = fetched
        self._clock = clock or SystemClock()
        self._stop = stop
        # As the link to the cloud has it: a proxy for the internet is none for a machine in the cellar.
        self._opener = build_opener(ProxyHandler({}), HTTPSHandler(context=tls))
        self._headers = {"Accept-Encoding": "identity", **(headers or {})}

    def has(self, name: str) -> int:
        """Return how many bytes of an unfinished file are here."""
        try:
            return (self.folder / f"{name}.part").stat().st_size
        except FileNotFoundError:
            return 0

    def fetch(
        self,
        name: str,
        url: str,
        *,
        size: int | None = None,
        most: int | None = None,
        token: str = "",
        sure: bool = False,
    ) -> Path:
        """Download a file, going on where an earlier attempt stopped.

        Args:
            name: What it is called in the folder; one name per content.
            url: Where it is.
            size: How many bytes it has, if that is known; more are refused as they come.
            most: How many bytes it may have, where the size is not known: what there is room for.
            token: Sent along, for storage that wants it.
            sure: Whether the caller checks a digest afterwards; a server without entity tags is then trusted to go on.

        Returns:
            The file, whole; its content is for the caller to check.

        Raises:
            NotFound: there is no such file.
            IntegrityError: it is longer than it should be.
            Unavailable: the network does not bring it; what came is kept.
            StorageError: the disk does not take it.
        """
        part, failures, last = self.folder / f"{name}.part", 0, ""
        with storage_errors("downloading", part):
            self.folder.mkdir(parents=True, exist_ok=True)
        while failures < _TRIES:
            before = self.has(name)
            try:
                self._get(part, url, _Bounds(size, most), token, sure=sure)
            except Unavailable as error:
                last = error.message
            else:
                return part
            if self._stop():
                break
            failures = 0 if self.has(name) > before else failures + 1
            pause = min(_LONGEST_PAUSE_S, _PAUSE_S * 2**failures)
            if failures:
                self._clock.sleep(pause * (0.5 + self._clock.random() / 2))
        raise Unavailable(f"cannot download {_plain(url)}: {last}", url=_plain(url), have=self.has(name))

    def drop(self, name: str) -> None:
        """Forget what came of a file."""
        for suffix in (".part", ".from"):
            (self.folder / f"{name}{suffix}").unlink(missing_ok=True)

    def sweep(self, keep: set[str], *, idle_s: float = 0.0) -> None:
        """Drop unfinished files, except some and those that got bytes not long ago."""
        now = self._clock.now().timestamp()
        for path in sorted(self.folder.iterdir()) if self.folder.is_dir() else ():
            part = path.with_suffix(".part")
            at = (part if part.exists() else path).stat().st_mtime
            if path.stem not in keep and now - at >= idle_s:
                path.unlink(missing_ok=True)

    def _get(self, part: Path, url: str, bounds: _Bounds, token: str, *, sure: bool) -> None:
        begun, tag = self._begun(part, url, sure=sure)
        if bounds.size is not None and begun == bounds.size:
            return
        request = Request(url, headers=self._headers)  # noqa: S310 - http and https only, as `Config.parse` saw to
        if token:
            request.add_unredirected_header("x-bce-security-token", token)  # for this server and no other
        if begun:
            request.add_header("Range", f"bytes={begun}-")
            if tag:
                request.add_header("If-Range", tag)
        try:
            with self._answer(request) as answer:
                at = _offset(answer, begun, bounds.size, url)
                if at is not None:
                    if not at:
                        _write_origin(part, {"url": url, "tag": _strong_tag(answer)})
                    self._take(part, at, answer, bounds)
        except (http.client.HTTPException, OSError) as error:
            raise Unavailable(str(getattr(error, "reason", "")) or type(error).__name__) from error

    def _answer(self, request: Request) -> Answer:
        """Send a request; an answer that says no is an answer too."""
        try:
            answer: http.client.HTTPResponse = self._opener.open(request, timeout=_TIMEOUT_S)
        except HTTPError as error:
            return error
        return answer

    def _begun(self, part: Path, url: str, *, sure: bool) -> tuple[int, str]:
        """Return how many bytes can be gone on from, and the tag of what they are a beginning of."""
        origin = _origin(part)
        tag = origin.get("tag", "") if origin.get("url") == url else ""
        # Without a tag nobody but a digest could tell whether the rest belongs to this beginning.
        return (self.has(part.stem) if tag or sure else 0), tag

    def _take(self, part: Path, at: int, answer: Answer, bounds: _Bounds) -> None:
        total, size = _length(answer, at), bounds.size
        if size is not None and total is not None and total != size:
            raise IntegrityError(f"{_plain(answer.geturl())} has {total} bytes, {size} were promised")
        bounds.check(_plain(answer.geturl()), total or 0)
        self._append(part, at, _chunks(answer), bounds)
        wanted = total if size is None else size
        if wanted is not None and self.has(part.stem) != wanted:
            raise Unavailable(f"the connection ended after {self.has(part.stem)} of {wanted} bytes")

    def _append(self, part: Path, at: int, chunks: Iterator[Any], bounds: _Bounds) -> None:
        with storage_errors("downloading", part):
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.ftruncate(descriptor, at)
                os.lseek(descriptor, at, os.SEEK_SET)
                for chunk in chunks:
                    bounds.check(part.stem, at + len(chunk))
                    view = memoryview(chunk)
                    while view:
                        view = view[os.write(descriptor, view) :]
                    at += len(chunk)
                    self._fetched(len(chunk))
                    if self._stop():
                        raise Unavailable("the node is stopping")
                    self._pace(len(chunk))
            finally:
                os.close(descriptor)


def _chunks(answer: Answer) -> Iterator[bytes]:
    """Yield bytes as they arrive: what came before a cut is not lost in a buffer."""
    read = getattr(answer, "read1", answer.read)
    try:
        while chunk := read(_CHUNK):
            yield chunk
    except (http.client.HTTPException, OSError) as error:
        raise Unavailable(type(error).__name__) from error


def _offset(answer: Answer, begun: int, size: int | None, url: str) -> int | None:
    """Return where the answer's bytes go; None when there are none to come."""
    if answer.status == HTTPStatus.PARTIAL_CONTENT:
        said = answer.headers.get("Content-Range", "")
        if not said.startswith(f"bytes {begun}-"):
            raise Unavailable(f"asked for the bytes from {begun} on, the server sends {said!r}")
        return begun
    if answer.status == HTTPStatus.OK:
        return 0
    if answer.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and begun:
        total = answer.headers.get("Content-Range", "").rpartition("/")[2]
        if total == str(begun) and size in (None, begun):
            return None
        raise IntegrityError(f"{_plain(url)} is shorter than the {begun} bytes that came of it", url=_plain(url))
    text = f"{_plain(url)}: the server says {answer.status}"
    if answer.status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
        raise NotFound(text, url=_plain(url))
    if answer.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        raise Rejected(text, url=_plain(url))
    raise Unavailable(text)


def _length(answer: Answer, at: int) -> int | None:
    said = answer.headers.get("Content-Length", "")  # missing where the body comes in chunks
    return at + int(said) if said.isdecimal() else None


def _strong_tag(answer: Answer) -> str:
    tag = answer.headers.get("ETag", "")
    return tag if tag.startswith('"') else ""


def _origin(part: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        value = json.loads(part.with_suffix(".from").read_text(encoding="utf-8"))
        if isinstance(value, dict):
            return value
    return {}


def _write_origin(part: Path, value: dict[str, str]) -> None:
    with storage_errors("downloading", part):
        temporary = part.with_suffix(".from.new")
        temporary.write_text(json.dumps(value), encoding="utf-8")
        # The bytes of another origin go before the new one is named: a crash between leaves a beginning without a tag.
        with suppress(FileNotFoundError):
            os.truncate(part, 0)
        temporary.rename(part.with_suffix(".from"))


def _plain(url: str) -> str:
    """Return a URL without what may be a secret in it."""
    return url.partition("?")[0]


def digest_name(url: str, version: str, key: str) -> str:
    """Name the unfinished download of a file whose content nobody has named."""
    return hashlib.sha256(f"{url}\n{version}\n{key}".encode()).hexdigest()
