"""Downloads of a node: one folder of unfinished files, which survive network cuts and kills of the node.

A file grows in ``NAME.part``; ``NAME.from`` remembers which content that is the beginning of (URL and entity tag). The
caller compares the digest and moves the file to its place.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPSHandler, OpenerDirector, ProxyHandler, Request, build_opener

from cloudedge.clock import Clock, SystemClock
from cloudedge.errors import StorageError, Unavailable
from cloudedge.io import Answer, Download, Throttle, storage_errors

__all__ = ["Downloads", "digest_name"]

_CHUNK = 64 * 1024


class Downloads:
    """Fetches files into a folder.

    Args:
        folder: Where unfinished files wait.
        headers: Sent with every request.
        pace: How fast, at most.
        fetched: Called with the number of bytes of each piece that arrives.
        clock: Where time and chance come from.
        stop: Whether to give up now.
        tls: Whose certificates are believed; the system's if left out.
    """

    def __init__(
        self,
        folder: Path,
        *,
        headers: Mapping[str, str] | None = None,
        pace: Throttle | None = None,
        fetched: Callable[[int], None] = lambda _: None,
        clock: Clock | None = None,
        stop: Callable[[], bool] = lambda: False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.folder = folder
        self._pace = pace
        self._fetched = fetched
        self._clock = clock or SystemClock()
        self._stop = stop
        # As the link to the cloud has it: a proxy for the internet is none for a machine in the cellar.
        self._opener = build_opener(ProxyHandler({}), HTTPSHandler(context=tls))
        self._headers = dict(headers or {})

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
            Rejected: the server refuses it.
            IntegrityError: it is longer than it should be.
            Unavailable: the network does not bring it; what came is kept.
            StorageError: the disk does not take it.
        """
        part, plain = self.folder / f"{name}.part", url.partition("?")[0]  # behind it may be a secret

        def over(most: int) -> StorageError:
            message = f"{plain} has more than the {most} bytes there is room for"
            return StorageError(message, errno=errno.ENOSPC, free=most)

        download = Download(
            plain,
            part,
            lambda headers, timeout_s: _opened(self._opener, self._request(url, headers, token), timeout_s),
            self._clock,
            size=size,
            most=most,
            over_most=over,
            sure=sure,
            origin=part.with_suffix(".from"),
            source=url,
            needs_length=False,
            throttle=self._pace,
            stop=self._stop,
            on_bytes=self._fetched,
        )
        with storage_errors("downloading", part):
            self.folder.mkdir(parents=True, exist_ok=True)
            part.touch()
            download.run()
        return part

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

    def _request(self, url: str, headers: Mapping[str, str], token: str) -> Request:
        request = Request(url, headers={**headers, **self._headers})  # noqa: S310 - http and https only, as `Config.parse` saw to
        if token:
            request.add_unredirected_header("x-bce-security-token", token)  # for this server and no other
        return request


@dataclass(frozen=True)
class _Answer:
    """An answer of urllib; one that says no is an answer too."""

    response: http.client.HTTPResponse | HTTPError

    @property
    def status(self) -> int:
        return self.response.status or 0

    @property
    def headers(self) -> Any:
        return self.response.headers

    def chunks(self) -> Iterator[bytes]:
        """Yield bytes as they arrive: what came before a cut is not lost in a buffer."""
        read = getattr(self.response, "read1", self.response.read)
        try:
            while chunk := read(_CHUNK):
                yield chunk
        except (http.client.HTTPException, OSError) as error:
            raise Unavailable(type(error).__name__) from error


@contextmanager
def _opened(opener: OpenerDirector, request: Request, timeout_s: float) -> Iterator[Answer]:
    try:
        response: http.client.HTTPResponse | HTTPError = opener.open(request, timeout=timeout_s)
    except HTTPError as error:
        response = error
    except (http.client.HTTPException, OSError) as error:
        raise Unavailable(str(getattr(error, "reason", "")) or type(error).__name__) from error
    with response:
        yield _Answer(response)


def digest_name(url: str, version: str, key: str) -> str:
    """Name the unfinished download of a file whose content has no digest yet."""
    return hashlib.sha256(f"{url}\n{version}\n{key}".encode()).hexdigest()
