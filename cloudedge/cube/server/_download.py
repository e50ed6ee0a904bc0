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
    """A file that was downloaded."""

    path: Path
    size_bytes: int
    received_bytes: int
    """Bytes that travelled this time; fewer than the size when an earlier attempt had left some."""
    etag: str
    sha256: str


def plain_url(url: str) -> str:
    """Return a URL without the user and password in it, for messages."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def bearer(token: str | None) -> Any:
    """Return an authorisation for requests: it sends the token, and to no other host after a redirect."""
    if token is None:
        return None

    def sign(request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {token}"
        return request

    return sign


def part_of(target: Path, sha256: str | None) -> Path:
    """Return the path at which a file is kept until it is whole."""
    # The name holds the digest: the rest of another content is never continued.
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
    """Download a file, continuing an earlier download of it.

    Args:
        url: http or https.
        path: The final path; a file that is there is replaced.
        sha256: The expected SHA-256 in hexadecimal; None accepts any.
        size: The expected bytes; None accepts the size that the server announces.
        deadline: By `clock.monotonic()`.
        token: Sent as a bearer token.
        limit: Bytes per second, shared by all downloads that hold it.
        clock: For the deadline and the pauses between attempts.
        max_bytes: The largest size that is accepted when no `size` is given.
        attempts: Attempts in a row that bring no byte; 1 where the caller owns the retries.

    Raises:
        NotFound: the server has no such file.
        Rejected: the server refuses to give it.
        IntegrityError: the content does not match `sha256` or `size`; nothing of it is kept.
        StorageError: it cannot be written here.
        DeadlineExceeded: the time was not enough; the bytes that came are kept for the next call.
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
        download.drop()  # nothing proves that it is the same content
    download.part.touch()  # an empty file counts too
    received = download.run()
    found = digest_file(download.part)
    if sha256 not in (None, found.sha256) and received < found.size:
        download.drop()  # the bytes of an earlier call may be the damaged half: once more from the start
        received += download.run()
        found = digest_file(download.part)
    if sha256 not in (None, found.sha256):
        download.drop()
        raise IntegrityError(
            f"{download.url} has the SHA-256 {found.sha256}, not {sha256}",
            hint="Publish it again; the downloaded bytes were thrown away.",
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
