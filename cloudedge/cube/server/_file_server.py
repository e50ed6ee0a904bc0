"""Read-only file server over HTTP, from which servers and agents fetch versions.

Only regular files below the root are served, never anything hidden, and no listing. Ranges, ``If-Range`` and
``If-None-Match`` are understood, so that a broken download goes on where it stopped. `fetch` is the client; wget is
another.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import re
import stat
import threading
from collections import Counter
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from cloudedge.clock import Clock
from cloudedge.errors import ConfigError, InputError
from cloudedge.http1 import ThreadedHandler, ThreadedServer, is_loopback
from cloudedge.io import Throttle

__all__ = ["FileServer", "parse_range"]

_CHUNK = 64 * 1024
_RANGE = re.compile(r"bytes=([0-9]{0,19})-([0-9]{0,19})")


class Span(NamedTuple):
    """Bytes from `start` up to, not including, `stop`."""

    start: int
    stop: int


def parse_range(header: str, size: int) -> Span | None:
    """Read a Range header for a file of `size` bytes; None for a header that is not supported.

    Raises:
        InputError: it asks for bytes the file does not have.
    """
    match = _RANGE.fullmatch(header.strip())
    if match is None or match[1] == match[2] == "":
        return None  # several ranges, other units: a server may answer with everything
    if match[1] == "":
        span = Span(max(0, size - int(match[2])), size)
    else:
        span = Span(int(match[1]), min(size, int(match[2]) + 1) if match[2] else size)
    if span.start >= span.stop:
        raise InputError(f"there is no range {header!r} in {size} bytes")
    return span


class FileServer:
    """Serves the files below a directory until closed.

    >>> with FileServer("out") as files:  # doctest: +SKIP
    ...     files.url("ctr_part0.tar")
    'http://127.0.0.1:37211/ctr_part0.tar'

    Args:
        root: The directory to serve; nothing outside of it, whatever paths and links say.
        host: The address to listen on; loopback by default.
        port: 0 takes any free one.
        token: What clients must send, as ``Authorization: Bearer TOKEN`` or, as wget does, as the password of Basic
            authentication; required unless `host` is loopback.
        limit_bytes_per_s: For all downloads together.
        threads: Downloads at a time; more wait in the listener's queue.
        clock: For the limit.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        token: str | None = None,
        limit_bytes_per_s: float | None = None,
        threads: int = 32,
        clock: Clock | None = None,
    ) -> None:
        if not token and not is_loopback(host):
            raise ConfigError(
                f"files would be served on {host} without a token", hint="Set a token, or listen on 127.0.0.1."
            )
        if not Path(root).is_dir():
            raise InputError(f"{root} is not a directory to serve", path=str(root))
        self.root = Path(root).resolve()
        self.host = host
        self.token = token
        self.throttle = None if limit_bytes_per_s is None else Throttle(limit_bytes_per_s, clock)
        self._sent: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._http = _Http(self, port, threads)
        self._http.start()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._http.port

    def url(self, path: str | os.PathLike[str], *, host: str | None = None) -> str:
        """Return a file's URL: `path` is absolute or relative to the root, `host` is this machine's name for clients.

        Raises:
            InputError: the file is outside of the root.
        """
        try:
            inside = (self.root / path).relative_to(self.root)
        except ValueError as error:
            raise InputError(f"{path} is not below {self.root}, which is served", path=str(path)) from error
        name = host or self.host
        return f"http://{f'[{name}]' if ':' in name else name}:{self.port}/{quote(inside.as_posix())}"

    def bytes_sent(self, path: str | os.PathLike[str]) -> int:
        """Count the bytes of a file that were sent so far."""
        with self._lock:
            return self._sent[(self.root / path).relative_to(self.root).as_posix()]

    def count(self, name: str, sent: int) -> None:
        """Note that bytes of a file were sent."""
        with self._lock:
            self._sent[name] += sent

    def authorised(self, header: str) -> bool:
        """Tell whether an Authorization header carries the token."""
        if self.token is None:
            return True
        kind, _, rest = header.partition(" ")
        given = rest.strip().encode()
        if kind.lower() == "basic":
            try:
                given = base64.b64decode(given, validate=True).partition(b":")[2]
            except binascii.Error:
                return False
        elif kind.lower() != "bearer":
            return False
        return hmac.compare_digest(given, self.token.encode())

    def open(self, path: str) -> tuple[str, IO[bytes]] | None:
        """Open the file that a request's path names; None if no such file is served."""
        parts = [unquote(part, errors="surrogateescape") for part in urlsplit(path).path.split("/")[1:]]
        # Hidden files are workspaces and incomplete files; the other conditions reject paths that leave the directory.
        if any(part == "" or part.startswith(".") or "/" in part or "\0" in part for part in parts):
            return None
        try:
            real = self.root.joinpath(*parts).resolve(strict=True)
            if not real.is_relative_to(self.root):
                return None  # a link that leads out
            # O_NONBLOCK: a pipe would make open() wait for its other end.
            descriptor = os.open(real, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except (OSError, RuntimeError, ValueError):
            return None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            return None
        return "/".join(parts), os.fdopen(descriptor, "rb", buffering=0)

    def close(self) -> None:
        """Stop listening; downloads under way break off."""
        self._http.close(break_off=True)

    def __enter__(self) -> FileServer:  # noqa: PYI034 - typing.Self is not in 3.10
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Http(ThreadedServer):
    def __init__(self, files: FileServer, port: int, threads: int) -> None:
        self.files = files
        super().__init__(
            files.host, port, _Handler, name="cube-files", max_requests=threads, wait=True, title="the file server"
        )


class _Handler(ThreadedHandler):
    server: _Http
    server_version = "cloudedge-files"

    def _answer(self) -> None:
        if self.has_body:
            self.close_connection = True  # no request here has a body; it would be read as the next request
        if not self.server.files.authorised(self.headers.get("Authorization", "")):
            self.send_head(HTTPStatus.UNAUTHORIZED, 0, {"WWW-Authenticate": 'Basic realm="cloudedge"'})
            return
        if not self.accept(self.timeout):
            return  # the server closes
        found = self.server.files.open(self.path)
        if found is None:
            self.send_head(HTTPStatus.NOT_FOUND, 0)
            return
        name, file = found
        with file:
            self._send_file(name, file)

    do_GET = do_HEAD = _answer  # noqa: N815 - the names BaseHTTPRequestHandler calls

    def _send_file(self, name: str, file: IO[bytes]) -> None:
        about = os.fstat(file.fileno())
        etag = f'"{about.st_ino:x}-{about.st_size:x}-{about.st_mtime_ns:x}"'
        headers = {"ETag": etag, "Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
        headers["Last-Modified"] = self.date_time_string(int(about.st_mtime))
        if self.headers.get("If-None-Match", "") == etag:
            self.send_head(HTTPStatus.NOT_MODIFIED, None, headers)
            return
        span = None
        if self.headers.get("If-Range", etag) == etag:
            try:
                span = parse_range(self.headers.get("Range", ""), about.st_size)
            except InputError:
                self.send_head(
                    HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, 0, {"Content-Range": f"bytes */{about.st_size}"}
                )
                return
        if span is None:
            span = Span(0, about.st_size)
            self.send_head(HTTPStatus.OK, about.st_size, headers)
        else:
            headers["Content-Range"] = f"bytes {span.start}-{span.stop - 1}/{about.st_size}"
            self.send_head(HTTPStatus.PARTIAL_CONTENT, span.stop - span.start, headers)
        if self.command != "HEAD":
            self._send_span(name, file, span)

    def _send_span(self, name: str, file: IO[bytes], span: Span) -> None:
        files, at = self.server.files, span.start
        self.wfile.flush()
        while at < span.stop:
            step = min(span.stop - at, _CHUNK if files.throttle else 1 << 24)
            if files.throttle:
                files.throttle.take(step)
            sent = self.connection.sendfile(file, at, step)
            files.count(name, sent)
            at += sent
            if sent < step:  # the file became shorter: the client must not take the next answer for the rest
                self.close_connection = True
                return
