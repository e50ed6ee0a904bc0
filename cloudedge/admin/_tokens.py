"""Tokens of admin APIs on loopback: a server makes one, and clients of the same user find it.

Every page in a browser can send requests to loopback, and so can every user of a machine: an address is no permission.
A server that is given no token makes one and keeps it in ``admin/PORT.token`` in cloudedge's home, readable by its
owner only. A client that is given none, for a server on loopback, looks there.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from cloudedge.config import home
from cloudedge.http1 import is_loopback

__all__ = ["OwnToken", "find_token"]

_MAX_BYTES = 4096


class OwnToken:
    """A new token, kept in a file while its server listens."""

    def __init__(self) -> None:
        self.text = secrets.token_urlsafe(32)
        self.path: Path | None = None

    def keep(self, port: int) -> None:
        """Write the token where clients of this user look for it; `path` stays None where nothing can be written."""
        path = _path(port)
        unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                file.write(self.text + "\n")
            unfinished.replace(path)
        except OSError:
            return  # a pod, perhaps, with a read-only file system: its orders need a token that was given
        self.path = path

    def remove(self) -> None:
        """Remove the file, unless another server on the same port has replaced it."""
        if self.path is not None and _read(self.path) == self.text:
            with suppress(OSError):
                self.path.unlink()


def find_token(url: str) -> str:
    """Read the token that a server on loopback keeps for its user; empty if there is none."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return ""
    return _read(_path(port)) if port is not None and is_loopback(host) else ""


def _path(port: int) -> Path:
    return home() / "admin" / f"{port}.token"


def _read(path: Path) -> str:
    """Read a token that only this user can have written; empty if there is none."""
    try:
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            if about.st_uid != os.geteuid() or about.st_mode & 0o077:
                return ""
            return file.read(_MAX_BYTES).decode("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
