"""An FTP server's files. The address may hold user and password: ``ftp://user:password@host:21/path``."""

from __future__ import annotations

import ftplib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from cloudedge.clock import Clock
from cloudedge.cube.upstream.sources._remote_files import ListedFiles, RemoteFile, bounded, save
from cloudedge.errors import InputError, NotFound, Rejected, Unavailable
from cloudedge.io import Backoff, retry

__all__ = ["FtpFiles"]

_TIMEOUT_S = 30
_DEEPEST = 32
_TRIES = 3
_BACKOFF = Backoff(1.0, 10.0, 0.5, 1.5)
_NOT_THERE = {"450", "550", "551"}
"""Codes that servers answer for a file that does not exist."""
_BLOCK = 1 << 16

T = TypeVar("T")


class FtpFiles(ListedFiles):
    """One FTP server; every call has a connection of its own, since servers close idle ones."""

    def __init__(self, address: str, clock: Clock | None = None) -> None:
        super().__init__(clock)
        parts = urlsplit(address)
        self._host, self._port = parts.hostname or "", parts.port or ftplib.FTP_PORT
        self._user, self._password = unquote(parts.username or "anonymous"), unquote(parts.password or "")

    def address(self, path: str) -> str:
        """Return the URL without user and password."""
        return f"ftp://{self._host}:{self._port}{path}"

    def version(self, path: str) -> str | None:
        """Return time and size."""

        def ask(ftp: ftplib.FTP) -> str:
            ftp.voidcmd("TYPE I")  # the size of a text is undefined otherwise
            return f"{ftp.sendcmd(f'MDTM {path}')} {ftp.size(path)}"

        try:
            return self._call(path, ask)
        except NotFound:
            return None

    def read(self, path: str) -> bytes:
        """Read a file."""

        def ask(ftp: ftplib.FTP) -> bytes:
            content = b""
            ftp.voidcmd("TYPE I")
            with ftp.transfercmd(f"RETR {path}") as data:
                while chunk := data.recv(_BLOCK):
                    content = bounded(content + chunk, self.address(path))
            ftp.voidresp()
            return content

        return self._call(path, ask)

    def walk(self, path: str) -> Iterator[RemoteFile]:
        """List all files below a directory."""
        yield from self._call(path, lambda ftp: list(self._below(ftp, path.rstrip("/"), "", 0)))

    def _below(self, ftp: ftplib.FTP, directory: str, prefix: str, depth: int) -> Iterator[RemoteFile]:
        if depth == _DEEPEST:
            raise InputError(f"{self.address(directory)} is the {_DEEPEST}th directory inside another one")
        for name, facts in list(ftp.mlsd(directory)):
            if facts.get("type") == "dir":
                yield from self._below(ftp, f"{directory}/{name}", f"{prefix}{name}/", depth + 1)
            elif facts.get("type") == "file":
                size = facts.get("size", "")
                yield RemoteFile(
                    f"{prefix}{name}",
                    f"{directory}/{name}",
                    int(size) if size.isdecimal() else None,
                    facts.get("modify", ""),
                )

    def fetch(self, file: RemoteFile, target: Path, deadline: float) -> None:
        """Bring a file here."""

        def ask(ftp: ftplib.FTP) -> None:
            ftp.voidcmd("TYPE I")
            with ftp.transfercmd(f"RETR {file.key}") as data:
                chunks = iter(lambda: data.recv(_BLOCK), b"")
                save(chunks, target, file, self.address(file.key), lambda: self._clock.monotonic() < deadline)
            ftp.voidresp()

        self._call(file.key, ask)

    def _call(self, path: str, ask: Callable[[ftplib.FTP], T]) -> T:
        def once() -> T:
            with self._connected(path) as ftp:
                return ask(ftp)

        return retry(
            once,
            attempts=_TRIES,
            backoff=_BACKOFF,
            clock=self._clock,
            may_repeat=lambda error: isinstance(error, Unavailable),
        )

    @contextmanager
    def _connected(self, path: str) -> Iterator[ftplib.FTP]:
        try:
            with ftplib.FTP(timeout=_TIMEOUT_S) as ftp:  # noqa: S321 - what upstream offers
                ftp.connect(self._host, self._port)
                ftp.login(self._user, self._password)
                yield ftp
        except (ftplib.error_perm, ftplib.error_temp) as error:
            code = str(error)[:3]
            if code in _NOT_THERE:
                raise NotFound(f"{self.address(path)} is not there ({code})", path=path) from error
            if isinstance(error, ftplib.error_temp):
                raise self._away(path, code) from error
            raise Rejected(
                f"{self.address(path)}: the server refused ({code})", hint="Check user, password and permissions."
            ) from error
        except (ftplib.Error, EOFError, OSError) as error:
            raise self._away(path, type(error).__name__) from error

    def _away(self, path: str, why: str) -> Unavailable:
        return Unavailable(
            f"{self.address(path)} cannot be read: {why}", hint="Check that the server runs; it is asked again later."
        )
