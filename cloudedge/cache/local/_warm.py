"""Files that were warmed up: plain ones in the cache folder of each partition, laid over the volume.

One that is of yesterday would hide the one of today below it. So whoever changes the volume writes that down first, and
takes it back when no file is of yesterday any more; if that never happened, because it was killed, every file is
compared with the volume before it is laid over it again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cloudedge.errors import Conflict
from cloudedge.io import FileLock

__all__ = ["WarmFiles"]

_CHANGING = b"changing"


class WarmFiles:
    """The warm files of one data set.

    Args:
        folders: Where they lie, one folder for each partition.
        note: The file in which it is written down that the volume changes.
    """

    def __init__(self, folders: Sequence[Path], note: Path) -> None:
        self.folders = folders
        self._note = note

    def forget(self, paths: Sequence[str]) -> None:
        """Remove some of them, files or folders; all if none is named."""
        for folder in self.folders:
            for path in paths or ("",):
                found = folder / path
                shutil.rmtree(found) if found.is_dir() else found.unlink(missing_ok=True)

    @contextmanager
    def changing(self) -> Iterator[Callable[[], None]]:
        """Write down that the volume or these files change; yields what to call when all of them are good again.

        Raises:
            Conflict: another process changes it.
        """
        with self._noted() as note:
            was_changing = os.pread(note, 1, 0)
            os.pwrite(note, _CHANGING, 0)
            os.fsync(note)
            # What somebody else left unsettled is not settled by this.
            yield (lambda: None) if was_changing else (lambda: os.ftruncate(note, 0))

    def settle(self, volume: Path) -> None:
        """Remove those that are not as the volume has them, if somebody who changed it never came to its end.

        Raises:
            Conflict: another process changes it.
        """
        with self._noted() as note:
            if not os.pread(note, 1, 0):
                return
            for folder in self.folders:
                for path in sorted(folder.rglob("*"), reverse=True):  # files before the folders they are in
                    below = volume / path.relative_to(folder)
                    if path.is_dir() and not below.is_dir():
                        path.rmdir()
                    elif path.is_file() and _looks(path) != _looks(below):
                        path.unlink()
            os.ftruncate(note, 0)

    @contextmanager
    def _noted(self) -> Iterator[int]:
        busy = Conflict(
            f"another process changes the data set {self._note.parent.name}", hint="Try again when it has ended."
        )
        with FileLock.take(self._note, refusal=lambda _: busy) as lock:
            yield lock.descriptor


def _looks(path: Path) -> tuple[int, int] | None:
    """Return size and time of a file; a volume keeps milliseconds."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_size, found.st_mtime_ns // 1_000_000
