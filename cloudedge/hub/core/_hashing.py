"""SHA-256 of local files at the speed of the processor, several files at a time.

Reading a file and hashing it take about equally long. A thread reads a large file one buffer ahead while the last
buffer is hashed, so that the two overlap.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from cloudedge.errors import IntegrityError
from cloudedge.hub.core._oci import Digest
from cloudedge.hub.core._protocol import Progress
from cloudedge.io import map_in_threads

__all__ = ["Hashed", "hash_file", "hash_files"]


class Hashed(NamedTuple):
    """The digest, size and state of a file when it was read."""

    digest: Digest
    size: int
    mtime_ns: int


_BUFFER = 2 * 1024 * 1024
_SMALL = 4 * _BUFFER


def hash_file(path: Path, progress: Progress = lambda _: None) -> Hashed:
    """Hash a file.

    Raises:
        IntegrityError: the file changed while it was read.
        OSError: it cannot be read.
    """
    sha256 = hashlib.sha256()
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        before = os.fstat(fd)
        for chunk in _read(fd) if before.st_size <= _SMALL else _read_ahead(fd):
            sha256.update(chunk)
            progress(len(chunk))
        after = os.fstat(fd)
    finally:
        os.close(fd)
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise IntegrityError(f"{path} changed while it was read", hint="Run the command again when its writer is done.")
    return Hashed(Digest("sha256:" + sha256.hexdigest()), after.st_size, after.st_mtime_ns)


def hash_files(paths: Sequence[Path], *, jobs: int | None = None, progress: Progress = lambda _: None) -> list[Hashed]:
    """Hash many files; the results come in the order of `paths`."""
    return map_in_threads(lambda path: hash_file(path, progress), paths, jobs or min(4, os.cpu_count() or 1))


def _read(fd: int) -> Iterator[memoryview | bytes]:
    while chunk := os.read(fd, _BUFFER):
        yield chunk


def _read_ahead(fd: int) -> Iterator[memoryview | bytes]:
    free: SimpleQueue[bytearray | None] = SimpleQueue()
    full: SimpleQueue[memoryview | BaseException] = SimpleQueue()
    for _ in range(3):
        free.put(bytearray(_BUFFER))

    def fill() -> None:
        try:
            while (buffer := free.get()) is not None:
                got = os.readv(fd, [buffer])
                full.put(memoryview(buffer)[:got])
                if got == 0:
                    return
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits for it
            full.put(error)

    thread = threading.Thread(target=fill, name="read-ahead", daemon=True)
    thread.start()
    try:
        while True:
            item = full.get()
            if isinstance(item, BaseException):
                raise item
            if not item:
                return
            yield item
            buffer = item.obj
            item.release()
            free.put(buffer)  # type: ignore[arg-type]  # a memoryview's type does not name its buffer
    finally:
        free.put(None)
        thread.join()
