"""Backups of a journal: SQLite's online backup, checked, then published by rename; the newest few are kept."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path

from cloudedge.io import publish, sync_file
from cloudedge.journal._files import backup_path, backups
from cloudedge.journal._schema import highest_id

__all__ = ["back_up", "is_due"]

_KEPT = 5
_OLD_S = 3600.0
"""An operation may take hours. When it begins, the newest backup is no older than this."""


def is_due(path: Path) -> bool:
    """Tell whether the newest backup is missing or old."""
    newest = next(iter(backups(path)), None)
    with suppress(OSError):
        return newest is None or abs(time.time() - newest.stat().st_mtime) > _OLD_S
    return True


def back_up(db: sqlite3.Connection, path: Path) -> None:
    """Take a backup, which only the holder of the journal's lock does; a damaged one is not kept.

    A backup that cannot be taken must not stop what the journal is for: the next one is tried again.
    """
    making = path.with_name(f".{path.name}.backup")
    with suppress(sqlite3.Error, OSError):
        try:
            making.unlink(missing_ok=True)  # a predecessor was killed here
            with closing(sqlite3.connect(making, isolation_level=None)) as copy:
                db.backup(copy)
                copy.execute("PRAGMA journal_mode = DELETE")  # one file, with nothing beside it
                is_sound = copy.execute("PRAGMA quick_check(1)").fetchone() == ("ok",)
                order = highest_id(copy)
            if is_sound:
                sync_file(making)
                publish(making, backup_path(path, order))
                for old in backups(path)[_KEPT:]:
                    old.unlink(missing_ok=True)
        finally:
            making.unlink(missing_ok=True)
