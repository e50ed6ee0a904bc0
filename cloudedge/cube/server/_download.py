"""Downloads that end whole or not at all: resumed after a break, checked against their SHA-256, renamed into place."""

from __future__ import annotations

import hashlib
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from cloudedge.clock import Clock, SystemClock
from cloudedge.errors import (
    CloudEdgeError,
    ConfigError,
    DeadlineExceeded,
    IntegrityError,
    NotFound,
    Rejected,
    StorageError,
    Unavailable,
)
from cloudedge.io import sync_directory

if TYPE_CHECKING:
    import requests

__all__ = ["Fetched", "Throttle", "bearer", "fetch", "part_of", "plain_url", "sha256_of"]

_CHUNK = 1 << 16
_MAX_FAILURES = 6
"""Tries that brought nothing, one after the other."""
_TIMEOUT_S = 30.0
_OK, _PARTIAL, _NOT_MODIFIED, _OUT_OF_RANGE = 200, 206, 304, 416


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


@dataclass(frozen=True)
class Fetched:
    """A file that was fetched."""

    path: Path
    size_bytes: int
    received_bytes: int
    """What travelled this time; less than the size when an earlier try had left something."""
    etag: str
    sha256: str


def plain_url(url: str) -> str:
    """Return a URL without the user and password in it, for messages."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def bearer(token: str | None) -> Any:
    """Return what makes requests send a token, and no other host get it after a redirect."""
    if token is None:
        return None

    def sign(request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {token}"
        return request

    return sign


def part_of(target: Path, sha256: str | None) -> Path:
    """Return where a file is kept until it is whole."""
    # The name holds the digest: what is left of another content is never continued.
    return target.with_name(f".{target.name}.{(sha256 or 'any')[:16]}.part")


def fetch(
    url: str,
    path: str | os.PathLike[str],
    *,
    sha256: str | None,
    size: int | None,
    deadline: float,
    token: str | None = None,
    limit: Throttle | None = None,
    clock: Clock | None = None,
    max_bytes: int = 1 << 44,
) -> Fetched:
    """Fetch a file; what an earlier call left of it is continued.

    Args:
        url: http or https.
        path: Where it shall be; a file that is there is replaced.
        sha256: What it must hash to, in hexadecimal; None takes what comes.
        size: Its bytes; None takes what the server announces.
        deadline: By `clock.monotonic()`.
        token: Sent as a bearer token.
        limit: Bytes per second, shared by all who hold it.
        clock: For the deadline and the pauses between tries.
        max_bytes: What is refused when no `size` is given.

    Raises:
        NotFound: the server has no such file.
        Rejected: it does not give it to us.
        IntegrityError: what came is not what `sha256` or `size` says; nothing of it is kept.
        StorageError: it cannot be written here.
        DeadlineExceeded: the time was not enough; what came is kept for the next call.
        Unavailable: the server breaks off again and again.
    """
    target = Path(path)
    part = part_of(target, sha256)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if sha256 is None:
            part.unlink(missing_ok=True)  # nothing says that it is the same content
        download = _Download(url, part, size, max_bytes, deadline, bearer(token), limit, clock or SystemClock())
        received = download.run()
        digest = sha256_of(part)
        if sha256 is not None and digest != sha256 and received < part.stat().st_size:
            part.unlink()  # what an earlier call had left may be the damaged half: once more from the start
            received += download.run()
            digest = sha256_of(part)
        if sha256 is not None and digest != sha256:
            part.unlink()
            raise IntegrityError(
                f"{plain_url(url)} has the SHA-256 {digest}, not {sha256}",
                hint="Publish it again; what came was thrown away.",
                url=plain_url(url),
            )
        about = part.stat()
        part.replace(target)
        sync_directory(target.parent)
    except OSError as error:
        raise StorageError(f"cannot write {target}: {error.strerror}", path=str(target)) from error
    return Fetched(target, about.st_size, received, download.etag, digest)


@dataclass
class _Download:
    url: str
    part: Path
    size: int | None
    max_bytes: int
    deadline: float
    auth: Any
    limit: Throttle | None
    clock: Clock
    etag: str = ""

    def __post_init__(self) -> None:
        import requests  # noqa: PLC0415 - slow to import

        self._session = requests.Session()
        self._errors = (requests.RequestException,)
        self._plain = plain_url(self.url)

    def run(self) -> int:
        """Bring the whole file into the part; returns the bytes received."""
        failures = received = 0
        with self.part.open("ab") as out, self._session:
            while True:
                before = received
                try:
                    for chunk in self._chunks(out):
                        received += len(chunk)
                    out.flush()
                    os.fsync(out.fileno())
                except (*self._errors, Unavailable) as error:
                    out.flush()
                    failures = 1 if received > before else failures + 1
                    self._pause(error, failures)
                else:
                    return received

    def _pause(self, error: Exception, failures: int) -> None:
        """Wait before another try, or say why there is none."""
        if isinstance(error, DeadlineExceeded):
            raise error
        why = error.message if isinstance(error, CloudEdgeError) else type(error).__name__
        if failures >= _MAX_FAILURES:
            raise Unavailable(
                f"fetching {self._plain} failed {failures} times without a byte: {why}",
                hint="See whether the server runs and can be reached from here, then run the same command again.",
                url=self._plain,
            ) from error
        wait = min(0.1 * 2**failures, 5.0) * (0.5 + self.clock.random())
        if self.clock.monotonic() + wait >= self.deadline:
            raise self._too_late() from error
        self.clock.sleep(wait)

    def _too_late(self) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"{self._plain} did not arrive in time; {self.part.stat().st_size} bytes are kept",
            hint="Run the same command again: it continues there.",
            url=self._plain,
        )

    def _left(self) -> float:
        left = self.deadline - self.clock.monotonic()
        if left <= 0:
            raise self._too_late()
        return left

    def _chunks(self, out: Any) -> Any:
        """Ask for what is missing, append it and give back each piece once it is written."""
        at = out.seek(0, os.SEEK_END)
        headers = {"Accept-Encoding": "identity"}
        if at:
            headers["Range"] = f"bytes={at}-"
            if self.etag:
                headers["If-Range"] = self.etag
        timeout = min(_TIMEOUT_S, self._left())
        with self._session.get(self.url, headers=headers, auth=self.auth, stream=True, timeout=timeout) as answer:
            whole = self._expected(answer, at, out)
            at = out.seek(0, os.SEEK_END)
            if answer.status_code == _OUT_OF_RANGE:
                return
            answer.raw.enforce_content_length = False  # it would throw the last piece away; the length is checked here
            for chunk in answer.iter_content(_CHUNK):
                at += len(chunk)
                if at > whole:
                    raise self._wrong_size(at, whole)
                if self.limit:
                    self.limit.take(len(chunk))
                out.write(chunk)
                if at < whole:
                    self._left()
                yield chunk
        if at != whole:
            raise Unavailable(f"{self._plain} ended after {at} of {whole} bytes")

    def _expected(self, answer: requests.Response, at: int, out: Any) -> int:
        """Judge an answer's head and return how many bytes the whole file has."""
        status, url = answer.status_code, self._plain
        if status in {_OK, _PARTIAL}:
            length = answer.headers.get("Content-Length", "")
            if not length.isdecimal() and self.size is None:
                raise Rejected(f"{url} does not say how long it is", hint="Serve it with a Content-Length.", url=url)
            begin = at if status == _PARTIAL else 0
            if begin < at:
                out.truncate(0)
            whole = begin + int(length) if length.isdecimal() else self.size or 0
            if self.size not in {None, whole} or whole > self.max_bytes:
                raise self._wrong_size(whole, self.size or self.max_bytes)
            self.etag = answer.headers.get("ETag", "")
            return whole
        if status == _OUT_OF_RANGE and at and at == self.size:
            return at
        if status == _OUT_OF_RANGE and at:
            out.truncate(0)
            raise Unavailable(f"{url} is shorter than the {at} bytes an earlier try had brought")
        if status in {404, 410}:
            raise NotFound(f"{url} is not there (HTTP {status})", url=url)
        if status in {408, 425, 429} or status >= 500:  # noqa: PLR2004 - the server's own trouble
            raise Unavailable(f"{url} answered HTTP {status}", url=url)
        raise Rejected(f"{url} answered HTTP {status}", hint="Check the token and the address.", url=url, status=status)

    def _wrong_size(self, found: int, wanted: int) -> IntegrityError:
        self.part.unlink(missing_ok=True)
        return IntegrityError(
            f"{self._plain} has {found} bytes or more, not {wanted}",
            hint="Publish it again; what came was thrown away.",
            url=self._plain,
        )


def sha256_of(path: Path) -> str:
    """Hash a file."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
