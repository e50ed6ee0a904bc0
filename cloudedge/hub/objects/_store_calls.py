"""The calls that an object store's backend supplies, made with retries and with errors explained.

A backend (`Calls`) raises its SDK's errors. `Caller` looks them up in the backend's one table of explanations, so that
no foreign exception leaves, and repeats a call a few times, with jittered pauses, if its explanation is transient.
Every call can be repeated safely. A conditional write whose answer was lost may meet its own result and raise
`Conflict`; its caller reads again after a conflict and finds the write done.
"""

from __future__ import annotations

import base64
import hashlib
import logging
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import IO, TYPE_CHECKING, Final, Protocol, TypeVar
from urllib.parse import urlsplit

from cloudedge.errors import (
    CloudEdgeError,
    ConfigError,
    Conflict,
    NotFound,
    Rejected,
    StorageError,
    Unavailable,
)
from cloudedge.hub.core import ObjectInfo
from cloudedge.io import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cloudedge.clock import Clock
    from cloudedge.hub.objects._multipart import Part

__all__ = [
    "HTTP_EXPLANATIONS",
    "Answer",
    "Caller",
    "Calls",
    "Opened",
    "Unfinished",
    "class_answer",
    "given",
    "http_answer",
    "hush",
    "listed",
    "md5_of",
    "split_url",
    "unfinished",
]

_TRIES: Final = 5
_BACKOFF = Backoff(0.4, 5.0, 0.0, 1.0)

HTTP_EXPLANATIONS: Final[Mapping[str, tuple[type[CloudEdgeError], str]]] = {
    # error codes that S3 and BOS share
    "BadDigest": (Unavailable, "Run the command again; the bytes were damaged on their way."),
    "InvalidPart": (Unavailable, "Run the command again; another process uploads the same blob."),
    "NoSuchBucket": (NotFound, "Create the bucket, or correct the hub's URL."),
    "RequestTimeout": (Unavailable, "Run the command again; the connection is slow."),
    "quota": (StorageError, "Free space in the bucket, or ask its owner for a larger quota."),
    # HTTP statuses
    "401": (Rejected, "Check the access key and the secret key."),
    "403": (Rejected, "Check the access key, the secret key and the bucket's policy."),
    "404": (NotFound, ""),
    "408": (Unavailable, "Run the command again."),
    "409": (Conflict, "Run the command again; another process writes the object at the same time."),
    "412": (Conflict, "Run the command again; another process wrote the object."),
    "429": (Unavailable, "Run the command again later; the server is busy."),
    "507": (StorageError, "Free space in the bucket, or on the server's disks."),
    "3xx": (ConfigError, "Check the hub's endpoint and region."),
    "4xx": (Rejected, ""),
    "5xx": (Unavailable, "Run the command again later; the server failed."),
    # below HTTP
    "certificate": (Rejected, "Check the endpoint's name and certificate, and this machine's clock."),
}
"""The explanations that all backends share; a backend adds its own codes and exceptions."""

T = TypeVar("T")


@dataclass(frozen=True)
class Answer:
    """A failed call as the backend reports it: names to look up, the most specific first, and a text to show."""

    names: tuple[str, ...]
    text: str


class Stream(Protocol):
    """The body of an answer."""

    def read(self, amt: int, /) -> bytes:
        """Return up to `amt` bytes, nothing at the end."""
        ...

    def close(self) -> None:
        """Give the connection back."""
        ...


@dataclass(frozen=True)
class Opened:
    """An object being downloaded."""

    stream: Stream
    size: int
    """Bytes that follow."""
    version: str


@dataclass(frozen=True)
class Unfinished:
    """An upload that was begun and not completed."""

    name: str
    upload: str
    begun: datetime
    age_s: float


class Calls(Protocol):
    """The calls of a backend. `name` is an object's whole name in the bucket; `md5` is in base64."""

    errors: tuple[type[Exception], ...]
    """The exceptions that these calls raise, besides `Unavailable`."""
    explanations: Mapping[str, tuple[type[CloudEdgeError], str]]
    """By name in an `Answer`: the error class to raise and its hint."""

    def answer(self, error: Exception) -> Answer:
        """Read one of `errors`."""
        ...

    def head(self, name: str) -> ObjectInfo:
        """Describe an object; a missing one is an error."""
        ...

    def open(self, name: str, start: int) -> Opened | None:
        """Begin a download at an offset; None if the object is not longer than that."""
        ...

    def put(self, name: str, data: bytes, md5: str) -> None:
        """Write an object at once."""
        ...

    def page(self, prefix: str, token: str | None) -> tuple[Sequence[ObjectInfo], str | None]:
        """List one page of objects, and return the token of the next."""
        ...

    def delete(self, name: str) -> None:
        """Delete an object."""
        ...

    def list_uploads(self, prefix: str) -> list[Unfinished]:
        """List the unfinished uploads of the objects under a prefix."""
        ...

    def begin_upload(self, name: str) -> str:
        """Begin an upload in parts."""
        ...

    def list_parts(self, name: str, upload: str) -> dict[int, tuple[int, str]]:
        """Return size and ETag of the uploaded parts."""
        ...

    def send_part(self, name: str, upload: str, part: Part, body: IO[bytes]) -> str:
        """Send a part and return its ETag."""
        ...

    def complete_upload(self, name: str, upload: str, etags: Mapping[int, str]) -> None:
        """Complete an upload from its parts."""
        ...

    def abort_upload(self, name: str, upload: str) -> None:
        """Drop an upload and its parts."""
        ...


class Caller:
    """Makes calls: repeats transient failures and explains permanent ones."""

    def __init__(self, calls: Calls, url: str, clock: Clock) -> None:
        self.errors: tuple[type[Exception], ...] = (Unavailable, *calls.errors)
        """The exceptions of a call that a repeat may cure."""
        self._calls = calls
        self._url = url
        self._clock = clock

    def attempt(self, what: str, call: Callable[[], T]) -> T:
        """Make a call until it succeeds or fails permanently.

        Raises:
            CloudEdgeError: the meaning of the last failure.
        """
        failures = 0
        while True:
            try:
                return call()
            except self.errors as error:
                failures += 1
                self.pause_or_raise(error, what, failures)

    def pause_or_raise(self, error: Exception, what: str, failures: int) -> None:
        """Wait for the next try, or raise the error's meaning if there is none."""
        known = error if isinstance(error, CloudEdgeError) else self._explain(error, what)
        if not known.retry_helps or failures >= _TRIES:
            raise known from (None if known is error else error)
        self._clock.sleep(_BACKOFF.pause_s(failures, self._clock))

    def _explain(self, error: Exception, what: str) -> CloudEdgeError:
        answer, table = self._calls.answer(error), self._calls.explanations
        kind, hint = next((table[name] for name in answer.names if name in table), (Unavailable, ""))
        return kind(f"{self._url}: {what} failed: {answer.text}", hint=hint, url=self._url)


def http_answer(code: str, status: int, message: str) -> Answer:
    """Return the lookup names of an HTTP error: its code, the code's subject and its status."""
    quota = ("quota",) if "quota" in code.lower() else ()
    names = (code, *quota, str(status), f"{status // 100}xx")
    return Answer(names, f"{message or 'no message'} ({code or 'no code'}, HTTP {status})")


def class_answer(error: Exception) -> Answer:
    """Return the lookup names of an error below HTTP: its class and base classes."""
    certificate = ("certificate",) if "CERTIFICATE_VERIFY_FAILED" in str(error) else ()
    names = (*certificate, *(c.__name__ for c in type(error).__mro__))
    return Answer(names, f"{error} ({type(error).__name__})")


def given(value: T | None, field: str) -> T:
    """Return a field of an answer that must not be missing.

    Raises:
        Unavailable: it is missing. Python accepts headers that a broken connection cut off as complete.
    """
    if value is None:
        raise Unavailable(f"an answer has no {field}: it was cut off", hint="Run the command again.")
    return value


def listed(name: str, size: int | None, etag: str | None, *, modified: datetime | None, date: str | None) -> ObjectInfo:
    """Describe an object; its age is measured by the server's clock.

    Raises:
        Unavailable: a field is missing from the answer.
    """
    age_s = (parsedate_to_datetime(given(date, "Date")) - given(modified, "Last-Modified")).total_seconds()
    return ObjectInfo(name, given(size, "Content-Length"), given(etag, "ETag").strip('"'), max(age_s, 0.0))


def unfinished(name: str, upload: str, *, begun: datetime, date: str | None) -> Unfinished:
    """Describe an unfinished upload; its age is measured by the server's clock."""
    age_s = (parsedate_to_datetime(given(date, "Date")) - begun).total_seconds()
    return Unfinished(name, upload, begun, max(age_s, 0.0))


def md5_of(data: bytes) -> str:
    """Return the MD5 of `data` in HTTP's form."""
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


def split_url(url: str, scheme: str) -> tuple[str, str]:
    """Return bucket and prefix of ``scheme://bucket/prefix``.

    Raises:
        ConfigError: the URL has another form, or carries credentials.
    """
    parts = urlsplit(url)
    wanted = f"wanted: {scheme}://bucket/prefix"
    if "@" in parts.netloc:  # the message omits the URL, which holds a secret
        raise ConfigError(f"a hub's URL must not hold credentials ({wanted})")
    segments = parts.path.strip("/").split("/") if parts.path.strip("/") else []
    if parts.scheme != scheme or not parts.netloc or parts.query or parts.fragment:
        raise ConfigError(f"{url!r} is not a hub's URL ({wanted})")
    if any(segment in ("", ".", "..") for segment in segments):
        raise ConfigError(f"{url!r} is not a hub's URL: it has an empty, . or .. step in its path")
    return parts.netloc, "/".join(segments)


def hush(*loggers: str) -> None:
    """Keep an SDK from logging signatures and session tokens, as it does at debug level."""
    for name in loggers:
        logger = logging.getLogger(name)
        if logger.level < logging.INFO:
            logger.setLevel(logging.INFO)
