"""Files of donefiles and rows on this machine, a web server, an FTP server or in a bucket.

Small files are read in place; the SequenceFiles of a directory are brought here. Hidden files and Hadoop's own
(``_SUCCESS``) are left out; every other file must be a SequenceFile.
"""

from __future__ import annotations

import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from cloudedge.clock import Clock, SystemClock
from cloudedge.config import HubConfig
from cloudedge.errors import ConfigError, DeadlineExceeded, InputError, NotFound, StorageError
from cloudedge.hub import open_store
from cloudedge.io import path_below, publish, safe_path

__all__ = [
    "MAX_DONEFILE",
    "ListedFiles",
    "LocalFiles",
    "RemoteFile",
    "RemoteFiles",
    "bounded",
    "open_remote_files",
    "save",
]

MAX_DONEFILE = 16 << 20
"""Bytes; a line has about a hundred."""
_MAX_FILES = 1_000_000
_LISTING = ".listing.json"


@dataclass(frozen=True)
class RemoteFile:
    """A file below a directory that was listed."""

    path: str
    """Relative to that directory."""
    key: str
    """Its whole path on its host."""
    size: int | None
    version: str
    """A text that changes with the content, as far as the host can tell."""


class RemoteFiles(Protocol):
    """One host's files, by absolute path."""

    def address(self, path: str) -> str:
        """Return a path's address, for messages."""

    def version(self, path: str) -> str | None:
        """Return a text that changes with the file: an ETag, a time. None without a file, empty if it is unknown."""

    def read(self, path: str) -> bytes:
        """Read a small file.

        Raises:
            NotFound: it is not there.
            InputError: it is longer than `MAX_DONEFILE`.
        """

    def bring(self, path: str, into: Path, deadline: float) -> Path:
        """Make a directory's SequenceFiles readable here, continuing an earlier call; return their directory.

        Raises:
            NotFound: there is no such directory, or nothing in it.
        """


class LocalFiles:
    """This machine. Nothing is copied."""

    def address(self, path: str) -> str:
        """Return the path."""
        return path

    def version(self, path: str) -> str | None:
        """Return time and size."""
        try:
            about = Path(path).stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unreadable(path, error) from error
        return f"{about.st_mtime_ns}-{about.st_size}-{about.st_ino}"

    def read(self, path: str) -> bytes:
        """Read a file."""
        try:
            with Path(path).open("rb") as file:
                return bounded(file.read(MAX_DONEFILE + 1), path)
        except FileNotFoundError as error:
            raise NotFound(f"{path} is not there", path=path) from error
        except OSError as error:
            raise _unreadable(path, error) from error

    def bring(self, path: str, into: Path, deadline: float) -> Path:  # noqa: ARG002 - the protocol's
        """Return the path."""
        if not Path(path).exists():
            raise NotFound(f"{path} is not there", path=path)
        return Path(path)


class ListedFiles(ABC):
    """The common part of remote hosts: a listing is fetched file by file, and a second call continues the first."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()

    @abstractmethod
    def address(self, path: str) -> str:
        """Return a path's address, for messages."""

    @abstractmethod
    def walk(self, path: str) -> Iterator[RemoteFile]:
        """List all files below a directory, or a file alone."""

    @abstractmethod
    def fetch(self, file: RemoteFile, target: Path, deadline: float) -> None:
        """Bring one file here, whole or not at all."""

    def bring(self, path: str, into: Path, deadline: float) -> Path:
        """Fetch a directory's SequenceFiles; see `RemoteFiles`."""
        files = sorted((file for file in self._bounded_walk(path) if _counts(file.path)), key=lambda file: file.path)
        if not files:
            raise NotFound(
                f"there is no file in {self.address(path)}",
                hint="Check the donefile's 'input', and whether that directory can be listed.",
            )
        try:
            self._start(into, files)
            for file in files:
                target = path_below(into, file.path)
                if target.exists():
                    continue  # published by rename: it is whole, and the listing shows that it is the same
                if self._clock.monotonic() >= deadline:
                    raise DeadlineExceeded(
                        f"{self.address(path)} did not arrive in time; what came is kept",
                        hint="Run the same command again: it continues there.",
                    )
                target.parent.mkdir(parents=True, exist_ok=True)
                self.fetch(file, target, deadline)
        except OSError as error:
            raise StorageError(
                f"cannot keep {self.address(path)} in {into}: {error.strerror}",
                hint="Free space there.",
                path=str(into),
            ) from error
        return into

    def _bounded_walk(self, path: str) -> Iterator[RemoteFile]:
        for number, file in enumerate(self.walk(path)):
            if number == _MAX_FILES:
                raise InputError(f"{self.address(path)} holds more than {_MAX_FILES} files")
            safe_path(file.path, f"a file that {self.address(path)} lists")
            yield file

    @staticmethod
    def _start(into: Path, files: list[RemoteFile]) -> None:
        """Begin a directory, or continue one with the same listing."""
        listing = json.dumps([asdict(file) for file in files])
        note = into / _LISTING
        if note.exists() and note.read_text() == listing:
            return
        shutil.rmtree(into, ignore_errors=True)
        into.mkdir(parents=True)
        note.write_text(listing)


def open_remote_files(
    address: str, hubs: Mapping[str, HubConfig] | None = None, clock: Clock | None = None
) -> tuple[RemoteFiles, str]:
    """Return the host of an address, and the path there.

    Args:
        address: A local path, ``http(s)://``, ``ftp://``, ``s3://`` or ``bos://``.
        hubs: From cloudedge.yaml: the settings of one in the same bucket are used to reach it.
        clock: For deadlines.

    Raises:
        ConfigError: the scheme is unknown.
    """
    parts = urlsplit(address)
    scheme = parts.scheme if "://" in address else "file"
    if scheme == "file":
        return LocalFiles(), str(Path(address.removeprefix("file://")).absolute())
    if scheme in {"http", "https"}:
        from cloudedge.cube.upstream.sources._http_files import HttpFiles  # noqa: PLC0415 - requests is slow to import

        return HttpFiles(f"{scheme}://{parts.netloc}", clock), unquote(parts.path)
    if scheme == "ftp":
        from cloudedge.cube.upstream.sources._ftp_files import FtpFiles  # noqa: PLC0415

        return FtpFiles(address, clock), unquote(parts.path)
    if scheme in {"s3", "bos"}:
        from cloudedge.cube.upstream.sources._bucket_files import BucketFiles, same_bucket  # noqa: PLC0415

        return BucketFiles(open_store(same_bucket(scheme, parts.netloc, hubs or {})), clock), parts.path
    raise ConfigError(
        f"donefiles cannot be read from {scheme}://",
        hint="Give a local path, or http://, https://, ftp://, s3:// or bos://.",
    )


def save(chunks: Iterator[bytes], target: Path, file: RemoteFile, address: str, is_in_time: Callable[[], bool]) -> None:
    """Write a file's bytes under a hidden name, check their number, and rename the file.

    Raises:
        InputError: there are more or fewer bytes than were listed.
        DeadlineExceeded: it took too long.
        StorageError: the bytes cannot be written.
    """
    part = target.with_name(f".{target.name}.part")
    with _kept(part):
        out = part.open("wb")
    with out:
        size = 0
        for chunk in chunks:
            if not is_in_time():
                raise DeadlineExceeded(f"{address} did not arrive in time", hint="Run the same command again.")
            with _kept(part):
                size += out.write(chunk)
        with _kept(part):
            out.flush()
            os.fsync(out.fileno())
    if file.size not in {None, size}:
        raise InputError(
            f"{address} has {size} bytes and was listed with {file.size}: it is still being written",
            hint="Write the donefile's line after the files it points to.",
        )
    with _kept(target):
        publish(part, target)


@contextmanager
def _kept(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"cannot write {path}: {error.strerror}", hint="Free space there.", path=str(path)
        ) from error


def bounded(content: bytes, address: str) -> bytes:
    """Return content that is short enough for a donefile.

    Raises:
        InputError: it is too long.
    """
    if len(content) > MAX_DONEFILE:
        raise InputError(f"{address} has more than {MAX_DONEFILE} bytes, which is no donefile")
    return content


def _counts(path: str) -> bool:
    """Tell whether a file may hold rows: no part of its path is hidden, for us or for Hadoop."""
    return not any(step.startswith((".", "_")) for step in path.split("/"))


def _unreadable(path: str, error: OSError) -> InputError:
    return InputError(f"cannot read {path}: {error.strerror}", path=path)
