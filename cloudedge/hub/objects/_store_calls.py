"""The calls an object store's backend supplies, and how they are made: repeated where it helps, explained.

A backend (`Calls`) raises whatever its SDK raises. `Caller` looks that up in the backend's one table of
explanations, so that nothing foreign leaves, and repeats a call a few times, with jittered pauses, when its
explanation says that trying again helps. Every call can be repeated safely. A conditional write whose answer
was lost may meet its own result and raise `Conflict`; whoever writes conditionally reads again after one, and
finds the write done.
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

from cloudedge.errors import CloudEdgeError, ConfigError, Unavailable
from cloudedge.hub.core import ObjectInfo
from cloudedge.io import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cloudedge.clock import Clock
    from cloudedge.hub.objects._multipart import Part

__all__ = [
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

T = TypeVar("T")


@dataclass(frozen=True)
class Answer:
    """A failed call in the backend's words: the names to look up, most telling first, and a text to show."""

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
    """Bytes to come."""
    version: str


@dataclass(frozen=True)
class Unfinished:
    """An upload that was begun and not completed."""

    name: str
    upload: str
    begun: datetime
    age_s: float


class Calls(Protocol):
    """What a backend supplies. `name` is an object's whole name in the bucket; `md5` is in base64."""

    errors: tuple[type[Exception], ...]
    """What these calls raise when they fail, besides `Unavailable`."""
    explanations: Mapping[str, tuple[type[CloudEdgeError], str]]
    """What the names in an `Answer` mean here, and what to do about it."""

    def answer(self, error: Exception) -> Answer:
        """Read one of `errors`."""
        ...

    def head(self, name: str) -> ObjectInfo:
        """Describe an object; that it is not there is an error."""
        ...

    def open(self, name: str, start: int) -> Opened | None:
        """Begin to download from an offset; None if the object is not longer than that."""
        ...

    def put(self, name: str, data: bytes, md5: str) -> None:
        """Write an object at once."""
        ...

    def page(self, prefix: str, token: str | None) -> tuple[Sequence[ObjectInfo], str | None]:
        """List some objects, and say how to go on."""
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
        """Return size and ETag of the parts that are there."""
        ...

    def send_part(self, name: str, upload: str, part: Part, body: IO[bytes]) -> str:
        """Send a part and return its ETag."""
        ...

    def complete_upload(self, name: str, upload: str, etags: Mapping[int, str]) -> None:
        """Make the object of its parts."""
        ...

    def abort_upload(self, name: str, upload: str) -> None:
        """Drop an upload and its parts."""
        ...


class Caller:
    """Makes calls: repeats those worth repeating and explains those that failed for good."""

    def __init__(self, calls: Calls, url: str, clock: Clock) -> None:
        self.errors: tuple[type[Exception], ...] = (Unavailable, *calls.errors)
        """What a call may raise that is worth a look: trying again may help."""
        self._calls = calls
        self._url = url
        self._clock = clock

    def attempt(self, what: str, call: Callable[[], T]) -> T:
        """Make a call until it succeeds, or fails in a way that will not change.

        Raises:
            CloudEdgeError: what the last failure means.
        """
        failures = 0
        while True:
            try:
                return call()
            except self.errors as error:
                failures += 1
                self.pause_or_raise(error, what, failures)

    def pause_or_raise(self, error: Exception, what: str, failures: int) -> None:
        """Wait for the next try, or raise what an error means if there should be none."""
        known = error if isinstance(error, CloudEdgeError) else self._explain(error, what)
        if not known.retry_helps or failures >= _TRIES:
            raise known from (None if known is error else error)
        self._clock.sleep(_BACKOFF.pause_s(failures, self._clock))

    def _explain(self, error: Exception, what: str) -> CloudEdgeError:
        answer, table = self._calls.answer(error), self._calls.explanations
        kind, hint = next((table[name] for name in answer.names if name in table), (Unavailable, ""))
        return kind(f"{self._url}: {what} failed: {answer.text}", hint=hint, url=self._url)


def http_answer(code: str, status: int, message: str) -> Answer:
    """Name an error that came over HTTP by its code, by what the code speaks of, and by its status."""
    quota = ("quota",) if "quota" in code.lower() else ()
    names = (code, *quota, str(status), f"{status // 100}xx")
    return Answer(names, f"{message or 'no message'} ({code or 'no code'}, HTTP {status})")


def class_answer(error: Exception) -> Answer:
    """Name an error that never was an answer by its class and the classes above."""
    certificate = ("certificate",) if "CERTIFICATE_VERIFY_FAILED" in str(error) else ()
    names = (*certificate, *(c.__name__ for c in type(error).__mro__))
    return Answer(names, f"{error} ({type(error).__name__})")


def given(value: T | None, field: str) -> T:
    """Return a field of an answer.

    Raises:
        Unavailable: it is missing. Python takes headers that a broken connection cut off for complete ones.
    """
    if value is None:
        raise Unavailable(f"an answer has no {field}: it was cut off", hint="Run the command again.")
    return value


def listed(name: str, size: int | None, etag: str | None, *, modified: datetime | None, date: str | None) -> ObjectInfo:
    """Describe an object, its age reckoned by the server's clock: written when, answered when.

    Raises:
        Unavailable: the answer does not have all that.
    """
    age_s = (parsedate_to_datetime(given(date, "Date")) - given(modified, "Last-Modified")).total_seconds()
    return ObjectInfo(name, given(size, "Content-Length"), given(etag, "ETag").strip('"'), max(age_s, 0.0))


def unfinished(name: str, upload: str, *, begun: datetime, date: str | None) -> Unfinished:
    """Describe an unfinished upload, its age reckoned by the server's clock."""
    age_s = (parsedate_to_datetime(given(date, "Date")) - begun).total_seconds()
    return Unfinished(name, upload, begun, max(age_s, 0.0))


def md5_of(data: bytes) -> str:
    """Return the MD5 of `data` the way HTTP writes it."""
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


def split_url(url: str, scheme: str) -> tuple[str, str]:
    """Return bucket and prefix of ``scheme://bucket/prefix``.

    Raises:
        ConfigError: it is something else, or carries credentials.
    """
    parts = urlsplit(url)
    wanted = f"wanted: {scheme}://bucket/prefix"
    if "@" in parts.netloc:  # the URL is not repeated: it has a secret in it
        raise ConfigError(f"credentials do not belong into a hub's URL ({wanted})")
    segments = parts.path.strip("/").split("/") if parts.path.strip("/") else []
    if parts.scheme != scheme or not parts.netloc or parts.query or parts.fragment:
        raise ConfigError(f"not a hub's URL: {url!r} ({wanted})")
    if any(segment in ("", ".", "..") for segment in segments):
        raise ConfigError(f"not a hub's URL: {url!r} has an empty, . or .. step in its path")
    return parts.netloc, "/".join(segments)


def hush(*loggers: str) -> None:
    """Keep an SDK from logging signatures and session tokens, which these do at debug level."""
    for name in loggers:
        logger = logging.getLogger(name)
        if logger.level < logging.INFO:
            logger.setLevel(logging.INFO)
