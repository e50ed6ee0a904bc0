"""The files of a journal, and the errors of a damaged one.

NAME.db                     the journal, in WAL mode: NAME.db-wal and NAME.db-shm belong to it
NAME.db.lock                the lock of its writer
NAME.db.backup-ORDER        backups, single files; ORDER is the id of the newest entry in each
NAME.db.reserve             room on the disk, given up when the disk is full
NAME.db.damaged-N           a damaged journal that a repair moved aside, and NAME.db.damaged-N-wal

A file beside a journal proves that the journal was there: it is made after the journal. So a journal that is missing or
empty while such a file is there was lost, and no new one takes its place unasked.
"""

from __future__ import annotations

import errno
import os
import shlex
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cloudedge.clock import Clock
from cloudedge.errors import Conflict, StorageError
from cloudedge.io import FileLock, Holder

__all__ = [
    "SQLITE_ERRORS",
    "JournalDamaged",
    "aside",
    "backup_path",
    "backups",
    "beside",
    "damaged",
    "free_bytes",
    "give_up_reserve",
    "is_full",
    "lock",
    "next_aside",
    "require_there",
    "reserve",
    "stored",
    "wal",
]


SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""What SQLite raises for a damaged file: a message of its own can quote bytes of the file that are not text."""


class JournalDamaged(StorageError):
    """A journal is damaged or gone. Facts: ``path``."""


def damaged(path: Path, what: str) -> JournalDamaged:
    """Make the error of a journal that cannot be believed; its hint names the cure."""
    return JournalDamaged(
        f"the journal {path} {what}",
        hint=f"Nothing was changed. Run `cloudedge journal repair {shlex.quote(str(path))}`.",
        path=str(path),
    )


def wal(path: Path) -> Path:
    """Return the path of a database's write-ahead log."""
    return path.with_name(f"{path.name}-wal")


def backup_path(path: Path, order: int) -> Path:
    """Return the path of the backup whose newest entry has the id `order`."""
    return path.with_name(f"{path.name}.backup-{order:019d}")


def backups(path: Path) -> list[Path]:
    """List a journal's backups, the newest first."""
    return sorted(path.parent.glob(f"{_quoted(path)}.backup-*"), reverse=True)


def aside(path: Path) -> list[Path]:
    """List the damaged journals that repairs moved aside, the newest first."""
    found = [each for each in path.parent.glob(f"{_quoted(path)}.damaged-*") if each.name.split("-")[-1].isdecimal()]
    return sorted(found, key=lambda each: int(each.name.split("-")[-1]), reverse=True)


def next_aside(path: Path) -> Path:
    """Return the path for one more damaged journal."""
    before = aside(path)
    number = int(before[0].name.split("-")[-1]) + 1 if before else 1
    return path.with_name(f"{path.name}.damaged-{number}")


def _quoted(path: Path) -> str:
    return "".join(f"[{char}]" if char in "*?[" else char for char in path.name)


def _reserve(path: Path) -> Path:
    return path.with_name(f"{path.name}.reserve")


def reserve(path: Path, size: int) -> None:
    """Take room on the disk for the time when it is full; does nothing if it is taken, or if there is none."""
    if not size or _reserve(path).exists():
        return
    making = path.with_name(f".{path.name}.reserve")
    with suppress(OSError):
        try:
            descriptor = os.open(making, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, size)
            finally:
                os.close(descriptor)
            making.replace(_reserve(path))
        finally:
            making.unlink(missing_ok=True)


def give_up_reserve(path: Path) -> bool:
    """Free the room that was taken; return whether there was any."""
    try:
        _reserve(path).unlink()
    except OSError:
        return False
    return True


def free_bytes(path: Path) -> int:
    """Return the free bytes of the disk that a file is on."""
    found = os.statvfs(path.parent)
    return found.f_bavail * found.f_frsize


def is_full(error: BaseException | None) -> bool:
    """Tell whether an error may come from a full disk: growing the shared memory of a WAL fails as an I/O error."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return isinstance(error, sqlite3.OperationalError) and any(
        text in str(error) for text in ("is full", "disk I/O error", "unable to open database file")
    )


def beside(path: Path) -> list[Path]:
    """List the files that prove that a journal was there."""
    others = [each for each in (_reserve(path), wal(path)) if each.exists() and each.stat().st_size]
    return [*backups(path), *others, *aside(path)]


def require_there(path: Path) -> None:
    """Check that a journal which left traces beside it is still there.

    Raises:
        JournalDamaged: it is missing or empty.
    """
    try:
        is_empty, what = path.stat().st_size == 0, "is empty"
    except FileNotFoundError:
        is_empty, what = True, "is missing"
    if is_empty and (proof := beside(path)):
        raise damaged(path, f"{what}, and it was there before: {proof[0].name} is beside it")


@contextmanager
def lock(path: Path, owner: str, clock: Clock) -> Iterator[None]:
    """Hold the right to write a journal, until the block or this process ends.

    Raises:
        Conflict: another process holds it.
    """

    def refusal(holder: Holder) -> Conflict:
        return Conflict(
            f"{path.stem}: {holder} is at work here",
            hint="Wait until it ends. If its process is killed, the lock is free at once.",
            holder=str(holder),
        )

    file = path.with_name(f"{path.name}.lock")
    with stored(path, "locking"):
        try:
            held = FileLock.take(file, owner=owner, clock=clock, refusal=refusal)
        except OSError as error:
            if not (is_full(error) and give_up_reserve(path)):
                raise
            held = FileLock.take(file, owner=owner, clock=clock, refusal=refusal)
    with held:
        yield


@contextmanager
def stored(path: Path, doing: str) -> Iterator[None]:
    """Turn errors of SQLite and the file system into those of a journal.

    Raises:
        JournalDamaged: SQLite calls the file damaged.
        StorageError: anything else went wrong.
    """
    try:
        yield
    except (*SQLITE_ERRORS, OSError) as error:
        if _is_damage(error):
            raise damaged(path, f"is damaged: {error}") from error
        raise StorageError(
            f"{doing} the journal {path}: {error}",
            hint="Everything that was begun is in it. Free space or mend the folder, then run `cloudedge resume`.",
            path=str(path),
        ) from error


def _is_damage(error: BaseException) -> bool:
    """Tell whether SQLite calls a file damaged: for that it has no class of its own below `DatabaseError`."""
    texts = ("malformed", "Could not decode", "no such table", "no such column", "unsupported file format")
    return type(error) in (sqlite3.DatabaseError, UnicodeDecodeError) or (
        isinstance(error, sqlite3.DatabaseError) and any(text in str(error) for text in texts)
    )
