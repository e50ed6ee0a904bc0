"""Warm files: plain copies in the cache folder of each partition, overlaid on the volume.

A stale copy would hide the current file below it. So code that changes the volume records this first, and clears the
record when no copy is stale any more. A record that was never cleared means a killed process: every copy is then
compared with the volume before the overlay is mounted again.
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
        folders: Their folders, one for each partition.
        note: The file that records a change in progress.
    """

    def __init__(self, folders: Sequence[Path], note: Path) -> None:
        self.folders = folders
        self._note = note

    def remove(self, paths: Sequence[str]) -> None:
        """Remove files or folders from the warm files; all of them if no path is given."""
        for folder in self.folders:
            for path in paths or ("",):
                found = folder / path
                shutil.rmtree(found) if found.is_dir() else found.unlink(missing_ok=True)

    @contextmanager
    def changing(self) -> Iterator[Callable[[], None]]:
        """Record that the volume or these files change; yields a function to call when no copy is stale any more.

        Raises:
            Conflict: another process changes the data set.
        """
        with self._locked_note() as note:
            was_changing = os.pread(note, 1, 0)
            os.pwrite(note, _CHANGING, 0)
            os.fsync(note)
            # This change cannot vouch for an earlier one that was interrupted.
            yield (lambda: None) if was_changing else (lambda: os.ftruncate(note, 0))

    def remove_stale(self, volume: Path) -> None:
        """Remove the copies that differ from the volume, if a change was interrupted.

        Raises:
            Conflict: another process changes the data set.
        """
        with self._locked_note() as note:
            if not os.pread(note, 1, 0):
                return
            for folder in self.folders:
                for path in sorted(folder.rglob("*"), reverse=True):  # files before the folders they are in
                    below = volume / path.relative_to(folder)
                    if path.is_dir() and not below.is_dir():
                        path.rmdir()
                    elif path.is_file() and _size_and_time(path) != _size_and_time(below):
                        path.unlink()
            os.ftruncate(note, 0)

    @contextmanager
    def _locked_note(self) -> Iterator[int]:
        busy = Conflict(
            f"another process changes the data set {self._note.parent.name}", hint="Try again when it has ended."
        )
        with FileLock.take(self._note, refusal=lambda _: busy) as lock:
            yield lock.descriptor


def _size_and_time(path: Path) -> tuple[int, int] | None:
    """Return a file's size and modification time, in milliseconds as a volume keeps it."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_size, found.st_mtime_ns // 1_000_000
