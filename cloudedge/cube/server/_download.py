"""Downloads of a version's files: over HTTP, checked against their SHA-256, renamed into place."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from cloudedge.clock import Clock, SystemClock
from cloudedge.errors import IntegrityError, StorageError, Unavailable
from cloudedge.io import Answer, Download, Throttle, digest_file, publish

if TYPE_CHECKING:
    import requests

__all__ = ["Fetched", "bearer", "fetch", "part_of", "plain_url"]

_CHUNK = 1 << 16
_ATTEMPTS = 6


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
    attempts: int = _ATTEMPTS,
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
        clock: For the deadline and the pauses between attempts.
        max_bytes: What is refused when no `size` is given.
        attempts: Attempts in a row that bring no byte; 1 where the caller owns the retries.

    Raises:
        NotFound: the server has no such file.
        Rejected: it does not give it to us.
        IntegrityError: what came is not what `sha256` or `size` says; nothing of it is kept.
        StorageError: it cannot be written here.
        DeadlineExceeded: the time was not enough; what came is kept for the next call.
        Unavailable: the server breaks off again and again.
    """
    import requests  # noqa: PLC0415 - slow to import

    target, plain = Path(path), plain_url(url)
    with requests.Session() as session:
        download = Download(
            plain,
            part_of(target, sha256),
            lambda headers, timeout_s: _opened(session, url, headers, bearer(token), timeout_s),
            clock or SystemClock(),
            size=size,
            most=max_bytes,
            sure=sha256 is not None,
            deadline=deadline,
            throttle=limit,
            attempts=attempts,
        )
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            return _bring(download, target, sha256)
        except OSError as error:
            raise StorageError(f"cannot write {target}: {error.strerror}", path=str(target)) from error


def _bring(download: Download, target: Path, sha256: str | None) -> Fetched:
    if sha256 is None:
        download.drop()  # nothing says that it is the same content
    download.part.touch()  # an empty file is one too
    received = download.run()
    found = digest_file(download.part)
    if sha256 not in (None, found.sha256) and received < found.size:
        download.drop()  # what an earlier call had left may be the damaged half: once more from the start
        received += download.run()
        found = digest_file(download.part)
    if sha256 not in (None, found.sha256):
        download.drop()
        raise IntegrityError(
            f"{download.url} has the SHA-256 {found.sha256}, not {sha256}",
            hint="Publish it again; what came was thrown away.",
            url=download.url,
        )
    publish(download.part, target)
    return Fetched(target, found.size, received, download.etag, found.sha256)


@dataclass(frozen=True)
class _Answer:
    """An answer of requests."""

    response: requests.Response

    @property
    def status(self) -> int:
        return self.response.status_code

    @property
    def headers(self) -> Any:
        return self.response.headers

    def chunks(self) -> Iterator[bytes]:
        self.response.raw.enforce_content_length = False  # it would throw the last piece away
        yield from self.response.iter_content(_CHUNK)


@contextmanager
def _opened(
    session: requests.Session, url: str, headers: Mapping[str, str], auth: Any, timeout_s: float
) -> Iterator[Answer]:
    import requests  # noqa: PLC0415 - slow to import

    try:
        with session.get(url, headers=headers, auth=auth, stream=True, timeout=timeout_s) as response:
            yield _Answer(response)
    except requests.RequestException as error:
        raise Unavailable(type(error).__name__) from error
