"""Files that appear whole or not at all, also after a power cut.

A file is written under a hidden name beside its place, synced, and renamed into place; then its folder is synced. A
process killed between any two of these steps leaves the old file or the new one, never a part, and at most a hidden
file beside it. The functions raise `OSError`; callers add what they attempted, mostly with `storage_errors`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

__all__ = ["atomic_file", "publish", "sync_directory", "sync_file", "write_atomically", "write_synced"]


@contextmanager
def atomic_file(
    path: Path, *, mode: int = 0o666, durable: bool = True, scratch: Path | None = None
) -> Iterator[BinaryIO]:
    """Lend a file to write to; it becomes `path` when the block ends, and goes when the block fails.

    Args:
        path: The file's place; a file that is there is replaced.
        mode: The file's permissions, less the umask: 0o600 for a secret.
        durable: Wait until the device has the file and its name. False suits a status that is rewritten often and
            means nothing after a restart: readers still see the old file or the new one.
        scratch: The hidden file, on the same file system. Left out, its name is random. A fixed one is for a place
            with one writer: it replaces what a killed predecessor left there.
    """
    hidden = scratch or path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    if scratch is not None:
        hidden.unlink(missing_ok=True)
    descriptor = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 - opened for its mode
            yield file
            file.flush()
            if durable:
                os.fsync(descriptor)
        if durable:
            publish(hidden, path)
        else:
            hidden.replace(path)
    except BaseException:
        hidden.unlink(missing_ok=True)  # it takes up room
        raise


def write_atomically(
    path: Path, data: bytes | str, *, mode: int = 0o666, durable: bool = True, scratch: Path | None = None
) -> None:
    """Write a small file whole, text as UTF-8; the arguments are those of `atomic_file`."""
    with atomic_file(path, mode=mode, durable=durable, scratch=scratch) as file:
        file.write(data.encode() if isinstance(data, str) else data)


def publish(finished: Path, path: Path) -> None:
    """Rename a file or folder whose content is synced, and wait until the device has its new name."""
    finished.replace(path)
    sync_directory(path.parent)


def write_synced(path: Path, data: bytes | str, *, mode: int = 0o666) -> None:
    """Write a small new file where no reader looks yet, and wait until the device has its content.

    Raises:
        FileExistsError: the file exists.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(descriptor, "wb") as file:  # noqa: PTH123 - opened for its mode
        file.write(data.encode() if isinstance(data, str) else data)
        file.flush()
        os.fsync(descriptor)


def sync_file(path: Path) -> None:
    """Wait until the device has a file's content."""
    _sync(path, os.O_RDONLY)


def sync_directory(path: Path) -> None:
    """Wait until the device has a directory's entries."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
