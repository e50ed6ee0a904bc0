"""The lab's store: objects by kind and name, in memory, behind a SQLite file that a restart reads.

Everything happens on one event loop, so there are no locks. Values are replaced, never changed in place, so a reader
may keep one. `commit` returns when everything written so far is on disk, and concurrent writers share one commit.
Reports of nodes are lazy: they go to disk with the next other write, or a moment later.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson

from cloudedge.errors import StorageError

__all__ = ["LabStore"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS object (kind TEXT, name TEXT, seq INTEGER, body BLOB, PRIMARY KEY (kind, name)) WITHOUT ROWID
"""
_Row = tuple[str, str]
Value = Mapping[str, Any]


class LabStore:
    """Objects by kind and name.

    Args:
        folder: The folder of `lab.db`; created if missing.
        watch: Called with kind, name, old and new value after every change, including undone ones.
    """

    def __init__(self, folder: Path, watch: Callable[[str, str, Value | None, Value | None], None]) -> None:
        self._watch = watch
        self._rows: dict[str, dict[str, Value]] = {}
        self._seq: dict[_Row, int] = {}
        self._next = 1
        self._dirty: dict[_Row, None] = {}
        self._lazy: dict[_Row, None] = {}
        self._undo: list[tuple[str, str, Value | None]] | None = None
        self._committing: asyncio.Future[None] | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(folder / "lab.db", check_same_thread=False, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.execute(_SCHEMA)
            rows = self._db.execute("SELECT kind, name, seq, body FROM object ORDER BY seq").fetchall()
        except (OSError, sqlite3.Error) as error:
            raise StorageError(f"cannot keep the lab's state in {folder}: {error}") from error
        for kind, name, seq, body in rows:
            self._rows.setdefault(kind, {})[name] = value = orjson.loads(body)
            self._seq[kind, name] = seq
            self._next = max(self._next, seq + 1)
            watch(kind, name, None, value)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lab-store")

    def get(self, kind: str, name: str) -> Value | None:
        """Return an object, or None."""
        return self._rows.get(kind, {}).get(name)

    def all(self, kind: str) -> list[Value]:
        """Return all objects of a kind in the control plane's order: by the second, newest first."""
        return sorted(self._rows.get(kind, {}).values(), key=lambda value: str(value["createTime"]), reverse=True)

    def count(self, kind: str) -> int:
        """Return the number of objects of a kind."""
        return len(self._rows.get(kind, {}))

    def age(self, kind: str, name: str) -> int:
        """Return a number that grows with the time of storage."""
        return self._seq.get((kind, name), 0)

    def put(self, kind: str, name: str, value: Value, *, lazy: bool = False) -> None:
        """Create or replace an object."""
        old = self._set(kind, name, value)
        if self._undo is not None:
            self._undo.append((kind, name, old))
        (self._lazy if lazy else self._dirty)[kind, name] = None

    def delete(self, kind: str, name: str) -> None:
        """Delete an object, if it exists."""
        if name in self._rows.get(kind, {}):
            old = self._set(kind, name, None)
            if self._undo is not None:
                self._undo.append((kind, name, old))
            self._dirty[kind, name] = None

    def _set(self, kind: str, name: str, value: Value | None) -> Value | None:
        rows = self._rows.setdefault(kind, {})
        old = rows.get(name)
        if value is None:
            del rows[name]
            self._seq.pop((kind, name), None)
        else:
            rows[name] = value
            if old is None:
                self._seq[kind, name] = self._next
                self._next += 1
        self._watch(kind, name, old, value)
        return old

    def begin(self) -> None:
        """Begin to record changes for `undo`."""
        self._undo = []

    def undo(self) -> None:
        """Undo all changes since `begin`."""
        log, self._undo = self._undo or [], None
        for kind, name, old in reversed(log):
            if old is not None or name in self._rows.get(kind, {}):
                self._set(kind, name, old)
            self._dirty[kind, name] = None

    @property
    def is_dirty(self) -> bool:
        """True if changes must reach the disk before they may be answered."""
        return bool(self._dirty)

    async def commit(self, *, lazy: bool = False) -> None:
        """Return when everything written so far is on disk; `lazy` includes the reports."""
        while self._committing is not None:
            await asyncio.shield(self._committing)
        if not (self._dirty or (lazy and self._lazy)):
            return
        rows = [*self._dirty, *(row for row in self._lazy if row not in self._dirty)]
        self._dirty, self._lazy = {}, {}
        values = [(*row, self._seq.get(row, 0), self.get(*row)) for row in rows]
        loop = asyncio.get_running_loop()
        self._committing = loop.create_future()
        try:
            await loop.run_in_executor(self._thread, self._write, values)
        except sqlite3.Error as error:
            self._dirty = {**dict.fromkeys(rows), **self._dirty}
            raise StorageError(f"cannot write the lab's state: {error}") from error
        finally:
            committing, self._committing = self._committing, None
            committing.set_result(None)

    def _write(self, rows: list[tuple[str, str, int, Value | None]]) -> None:
        gone = [(kind, name) for kind, name, _, value in rows if value is None]
        kept = [(kind, name, seq, orjson.dumps(value)) for kind, name, seq, value in rows if value is not None]
        self._db.execute("BEGIN")
        try:
            self._db.executemany("DELETE FROM object WHERE kind = ? AND name = ?", gone)
            self._db.executemany("INSERT OR REPLACE INTO object VALUES (?, ?, ?, ?)", kept)
        except sqlite3.Error:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def close(self) -> None:
        """Close the file; call `commit` before."""
        self._thread.shutdown()
        self._db.close()
