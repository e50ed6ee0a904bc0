"""The journal: every intent to change something and its outcome, written before and after the act.

One SQLite file (WAL, every commit synced) for everything that changes together, such as a target. An *operation* is one
numbered attempt with its plan; its *entries* record which step was intended, done, failed or undone, in the order of
writing. Numbers come from the file and never from a clock, so a clock set back changes no order; times are only shown.

One writer at a time: `Journal.writing` takes a lock that the kernel releases the moment its holder dies. So no process
waits for a lease to run out, and a holder that merely sleeps does not lose the lock while it may still act. Readers
never wait, and may leave a *wish* for the writer, such as to end a wait early.

This module stores; its callers define the steps and draw the conclusions.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cloudedge.clock import Clock, SystemClock, rfc3339
from cloudedge.errors import Conflict, NotFound, StorageError
from cloudedge.io import FileLock, Holder

__all__ = ["Entry", "Journal", "Operation", "State", "What", "Wish", "Writer"]

What = Literal["intent", "done", "failed", "undo", "undone", "note"]
"""`intent` and `undo` come before acting, the others after."""
State = Literal["open", "paused", "done", "undone", "failed"]
"""`open` and `paused` operations go on; the others are over."""

_BUSY_S = 10.0
_OPEN = ("open", "paused")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS operations (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL, subject TEXT NOT NULL, plan TEXT NOT NULL,
    by_whom TEXT NOT NULL, begun_at TEXT NOT NULL,
    state TEXT NOT NULL DEFAULT 'open', ended_at TEXT NOT NULL DEFAULT '', outcome TEXT NOT NULL DEFAULT '{}');
CREATE TABLE IF NOT EXISTS entries (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    operation INTEGER NOT NULL REFERENCES operations(number),
    step TEXT NOT NULL, what TEXT NOT NULL, detail TEXT NOT NULL, at TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS entries_of ON entries(operation, id);
CREATE TABLE IF NOT EXISTS wishes (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    operation INTEGER NOT NULL REFERENCES operations(number),
    what TEXT NOT NULL, by_whom TEXT NOT NULL, at TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS facts (key TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


@dataclass(frozen=True)
class Operation:
    """One numbered attempt to change something."""

    number: int
    kind: str
    subject: str
    """What it changes, such as a bundle's digest."""
    plan: Any
    by: str
    begun_at: str
    state: State
    ended_at: str
    outcome: Mapping[str, Any]

    @property
    def is_open(self) -> bool:
        """True while it has to be finished or undone."""
        return self.state in _OPEN


@dataclass(frozen=True)
class Entry:
    """One record of an operation."""

    id: int
    operation: int
    step: str
    what: What
    detail: Mapping[str, Any]
    at: str


@dataclass(frozen=True)
class Wish:
    """A request to the holder of the lock from a process that does not hold it."""

    id: int
    what: str
    by: str
    at: str


class Journal:
    """A journal.

    Args:
        path: The file; made, with its folder, if it is not there. None: kept in memory, for simulations.
        clock: The source of the times that are shown.

    Raises:
        StorageError: the file cannot be opened or is not a journal.
    """

    def __init__(self, path: str | os.PathLike[str] | None, *, clock: Clock | None = None) -> None:
        self.path = Path(path if path is not None else "memory")
        self._clock = clock or SystemClock()
        self._guard = threading.RLock()  # one thread may write several things together
        self._held = threading.Lock() if path is None else None
        with _stored(self.path, "opening"):
            if path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            where = self.path if path is not None else ":memory:"
            self._db = sqlite3.connect(where, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute("PRAGMA foreign_keys = ON")
            self._db.executescript(_SCHEMA)

    def close(self) -> None:
        """Close the file."""
        with self._guard:
            self._db.close()

    def __enter__(self) -> Journal:  # noqa: PYI034 - typing.Self is not in 3.10
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def writing(self, owner: str) -> Iterator[Writer]:
        """Hold the right to write, until the block or this process ends.

        Args:
            owner: The name of the holder in the messages that others get.

        Raises:
            Conflict: another process holds it; the message names it and since when.
        """
        if self._held is not None:
            if not self._held.acquire(blocking=False):
                raise Conflict(
                    "another operation is at work here", hint="Wait until it ends.", holder="another operation"
                )
            try:
                yield Writer(self)
            finally:
                self._held.release()
            return
        lock = self.path.with_name(self.path.name + ".lock")
        with _stored(lock, "locking"):
            held = FileLock.take(lock, owner=owner, clock=self._clock, refusal=self._refusal)
        with held:
            yield Writer(self)

    def _refusal(self, holder: Holder) -> Conflict:
        return Conflict(
            f"{self.path.stem}: {holder} is at work here",
            hint="Wait until it ends. If its process is killed, the lock is free at once.",
            holder=str(holder),
        )

    def operations(self, *, kind: str | None = None, limit: int = -1) -> list[Operation]:
        """List operations, the newest first."""
        where, values = ("WHERE kind = ?", [kind]) if kind else ("", [])
        rows = self._read(f"SELECT * FROM operations {where} ORDER BY number DESC LIMIT ?", *values, limit)  # noqa: S608
        return [_operation(row) for row in rows]

    def operation(self, number: int) -> Operation:
        """Return one operation.

        Raises:
            NotFound: there is none with that number.
        """
        rows = self._read("SELECT * FROM operations WHERE number = ?", number)
        if not rows:
            raise NotFound(
                f"{self.path.stem}: nothing has the number {number}", hint="See `cloudedge history` for the numbers."
            )
        return _operation(rows[0])

    def unfinished(self) -> Operation | None:
        """Return the operation that has to be finished or undone, if there is one."""
        rows = self._read(f"SELECT * FROM operations WHERE state IN {_OPEN} ORDER BY number DESC LIMIT 1")  # noqa: S608
        return _operation(rows[0]) if rows else None

    def entries(self, number: int, *, after: int = 0) -> list[Entry]:
        """List an operation's entries in the order of writing, beginning after the entry `after`."""
        rows = self._read("SELECT * FROM entries WHERE operation = ? AND id > ? ORDER BY id", number, after)
        return [_entry(row) for row in rows]

    def last_words(self, number: int) -> dict[str, Entry]:
        """Return the newest entry of every step of an operation, without notes."""
        return {entry.step: entry for entry in self.entries(number) if entry.what != "note"}

    def newest(self, steps: Sequence[str], what: What) -> Entry | None:
        """Return the newest entry, of any operation, that records `what` for one of some steps."""
        marks = ", ".join("?" * len(steps))
        rows = self._read(
            f"SELECT * FROM entries WHERE what = ? AND step IN ({marks}) ORDER BY id DESC LIMIT 1",  # noqa: S608
            *(what, *steps),
        )
        return _entry(rows[0]) if rows else None

    def ask(self, number: int, what: str, *, by: str) -> None:
        """Leave a wish for the process that works on an operation; needs no lock, and is seen at its next look."""
        self._write(
            "INSERT INTO wishes (operation, what, by_whom, at) VALUES (?, ?, ?, ?)", number, what, by, self._now()
        )

    def wishes(self, number: int) -> list[Wish]:
        """List the wishes for an operation, the oldest first."""
        rows = self._read("SELECT id, what, by_whom, at FROM wishes WHERE operation = ? ORDER BY id", number)
        return [Wish(*row) for row in rows]

    def recall(self, key: str) -> Any:
        """Return a fact that was remembered, or None."""
        rows = self._read("SELECT value FROM facts WHERE key = ?", key)
        return json.loads(rows[0][0]) if rows else None

    def _now(self) -> str:
        return rfc3339(self._clock.now())

    def _read(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._guard, _stored(self.path, "reading"):
            return self._db.execute(sql, values).fetchall()

    def _write(self, sql: str, *values: Any) -> int:
        with self._guard, _stored(self.path, "writing"):
            return self._db.execute(sql, values).lastrowid or 0

    @contextmanager
    def _together(self) -> Iterator[None]:
        with self._guard:
            with _stored(self.path, "writing"):
                self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                with _stored(self.path, "writing"):
                    self._db.execute("ROLLBACK")
                raise
            with _stored(self.path, "writing"):
                self._db.execute("COMMIT")


class Writer:
    """The right to write the journal. Every call is on disk when it returns, or when its `together` block ends."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    @contextmanager
    def together(self) -> Iterator[None]:
        """Write everything in the block as one: all of it is on disk when the block ends, or none of it ever is."""
        with self.journal._together():  # noqa: SLF001 - the two halves of one thing
            yield

    def begin(self, kind: str, subject: str, *, plan: Any, by: str) -> Operation:
        """Number a new operation.

        Raises:
            Conflict: one is unfinished.
        """
        unfinished = self.journal.unfinished()
        if unfinished is not None:
            what = f"{unfinished.kind} {unfinished.number} of {unfinished.subject}"
            raise Conflict(
                f"{self.journal.path.stem}: {what} is unfinished",
                hint="Finish it with `cloudedge resume`, or undo it with `cloudedge abort`.",
                number=unfinished.number,
            )
        number = self.journal._write(  # noqa: SLF001 - the two halves of one thing
            "INSERT INTO operations (kind, subject, plan, by_whom, begun_at) VALUES (?, ?, ?, ?, ?)",
            *(kind, subject, _json(plan), by, self.journal._now()),  # noqa: SLF001
        )
        return self.journal.operation(number)

    def record(self, number: int, step: str, what: What, **detail: Any) -> int:
        """Write an entry and return its id, which is higher than that of any entry before."""
        return self.journal._write(  # noqa: SLF001
            "INSERT INTO entries (operation, step, what, detail, at) VALUES (?, ?, ?, ?, ?)",
            *(number, step, what, _json(detail), self.journal._now()),  # noqa: SLF001
        )

    def set_state(self, number: int, state: State, **outcome: Any) -> None:
        """Record that an operation goes on, pauses or has ended, and its outcome."""
        ended = "" if state in _OPEN else self.journal._now()  # noqa: SLF001
        self.journal._write(  # noqa: SLF001
            "UPDATE operations SET state = ?, ended_at = ?, outcome = ? WHERE number = ?",
            *(state, ended, _json(outcome), number),
        )

    def remember(self, key: str, value: Any) -> None:
        """Keep a fact that outlives the operation, such as what is live."""
        self.journal._write(  # noqa: SLF001
            "INSERT INTO facts (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            *(key, _json(value)),
        )


def _operation(row: tuple[Any, ...]) -> Operation:
    number, kind, subject, plan, by, begun_at, state, ended_at, outcome = row
    return Operation(number, kind, subject, json.loads(plan), by, begun_at, state, ended_at, json.loads(outcome))


def _entry(row: tuple[Any, ...]) -> Entry:
    number, operation, step, what, detail, at = row
    return Entry(number, operation, step, what, json.loads(detail), at)


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


@contextmanager
def _stored(path: Path, doing: str) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise StorageError(
            f"{doing} the journal {path}: {error}",
            hint="Everything that was begun is in it. Free space or mend the folder, then run `cloudedge resume`.",
            path=str(path),
        ) from error
