"""Locks on files and folders, with the name of their holder.

A lock is flock(2): the kernel releases it the moment its holder dies, so no lease has to run out, and a holder that
merely sleeps keeps it. The file stays when the lock is released. Its text names the holder for the message that
others get; a file without text, as shared locks leave it, is explained from the kernel's own table.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cloudedge.clock import Clock, SystemClock, rfc3339
from cloudedge.errors import Conflict

__all__ = ["FileLock", "Holder", "LockHeld", "locked_by"]

_NOTE_BYTES = 4096
_POLL_S = 0.015
_PROBES, _PROBE_S = 3, 0.01
"""`locked_by` takes a lock for an instant; a caller that refuses at once must not mistake that for a holder."""


@dataclass(frozen=True)
class Holder:
    """The holder of a lock, as far as it is known."""

    note: str
    """The file's text: the holder's name, process and time, or what else the holder wrote there."""
    pids: tuple[int, ...] = ()
    """The processes that the kernel of this machine names."""

    def __str__(self) -> str:
        return self.note or ", ".join(f"pid {pid}" for pid in self.pids) or "another process"


class LockHeld(Conflict):
    """Another process holds a lock."""


def _refusal(path: Path) -> Callable[[Holder], Exception]:
    return lambda holder: LockHeld(f"{path} is locked by {holder}", hint="Wait until that ends.", holder=str(holder))


class FileLock:
    """A lock that this process holds, until it is released or the process ends; also a context.

    Attributes:
        path: The locked file or folder.
        descriptor: It, opened.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor

    @classmethod
    def take(
        cls,
        path: Path,
        *,
        owner: str | None = None,
        folder: bool = False,
        shared: bool = False,
        wait_s: float | None = 0.0,
        poll_s: float = _POLL_S,
        mode: int = 0o644,
        clock: Clock | None = None,
        refusal: Callable[[Holder], Exception] | None = None,
    ) -> FileLock:
        """Take a lock.

        Args:
            path: The file to lock, made if it is not there; with `folder`, an existing folder.
            owner: Written into the file with this process and the time. None leaves the file's content alone.
            folder: Lock a folder itself, which holds no text.
            shared: Hold it together with others who share it.
            wait_s: How long to wait for another holder. 0 refuses at once; None waits without end.
            poll_s: The pause between two attempts, on average.
            mode: The permissions of a new file.
            clock: For the deadline and the pauses.
            refusal: Makes the error to raise; `LockHeld` if left out.

        Raises:
            LockHeld: another process holds it, or what `refusal` makes of that.
            OSError: the file cannot be opened.
        """
        time_ = clock or SystemClock()
        flags = os.O_RDONLY | os.O_DIRECTORY if folder else os.O_RDWR | os.O_CREAT
        lock = cls(path, os.open(path, flags | os.O_CLOEXEC, mode))
        try:
            is_ours = lock._wait(shared=shared, wait_s=wait_s, poll_s=poll_s, clock=time_)
            holder = None if is_ours else _holder(lock.descriptor, folder=folder)
            if is_ours and owner is not None:
                lock.write(f"{owner} (process {os.getpid()}, since {rfc3339(time_.now())})\n")
        except BaseException:
            lock.release()
            raise
        if holder is not None:
            lock.release()
            raise (refusal or _refusal(path))(holder)
        return lock

    def _wait(self, *, shared: bool, wait_s: float | None, poll_s: float, clock: Clock) -> bool:
        how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        if wait_s is None:
            fcntl.flock(self.descriptor, how)
            return True
        end = clock.monotonic() + wait_s
        for _ in range(_PROBES):
            if _try(self.descriptor, how):
                return True
            if not wait_s:
                time.sleep(_PROBE_S)
        while clock.monotonic() < end:
            clock.sleep(poll_s * (0.5 + clock.random()))
            if _try(self.descriptor, how):
                return True
        return False

    def write(self, text: str) -> None:
        """Replace the file's text."""
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, text.encode(), 0)

    def release(self) -> None:
        """Let others have it; a second time does nothing."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> FileLock:  # noqa: PYI034 - typing.Self is not in 3.10
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def locked_by(path: Path) -> Holder | None:
    """Name the process that holds a lock on a file; None if the lock is free or the file is missing."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return None if _try(descriptor, fcntl.LOCK_SH) else _holder(descriptor)
    finally:
        os.close(descriptor)


def _try(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(descriptor: int, *, folder: bool = False) -> Holder:
    note = "" if folder else os.pread(descriptor, _NOTE_BYTES, 0).decode(errors="replace").strip()
    inode = f":{os.fstat(descriptor).st_ino}"
    try:
        locks = [line.split() for line in Path("/proc/locks").read_text(encoding="ascii").splitlines()]
    except OSError:
        return Holder(note)
    # 1: FLOCK  ADVISORY  WRITE 4242 fd:01:1234 0 EOF; those who wait have an arrow before FLOCK.
    held = {int(words[4]) for words in locks if words[1] == "FLOCK" and words[5].endswith(inode)}
    return Holder(note, tuple(sorted(held)))
