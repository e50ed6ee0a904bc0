"""Operations and their entries, in one SQLite file.

One SQLite file (WAL, every commit synced) for everything that changes together, such as a target. An *operation* is one
numbered attempt with its plan; its *entries* record which step was intended, done, failed or undone, in the order of
writing. Numbers come from the file and never from a clock, so a clock set back changes no order; times are only shown.

One writer at a time: `Journal.writing` takes a lock that the kernel releases the moment its holder dies. So no process
waits for a lease to run out, and a holder that merely sleeps does not lose the lock while it may still act. Readers
never wait, and may leave a *wish* for the writer, such as to end a wait early.

Every row has a checksum in the table `sums`, since SQLite notices damage to its pages and not to the text in them. A
file that is damaged is refused when it is opened, and a row when it is read: nothing is concluded from either. Each
`writing` that wrote something ends with a backup.

This module stores; its callers define the steps and draw the conclusions.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from cloudedge.clock import Clock, SystemClock, rfc3339
from cloudedge.errors import Conflict, NotFound, StorageError
from cloudedge.journal._backup import back_up, is_due
from cloudedge.journal._files import damaged, free_bytes, give_up_reserve, is_full, lock, require_there, reserve, stored
from cloudedge.journal._schema import KEYS, SCHEMA, highest_id, row_sum

__all__ = ["Entry", "Journal", "Operation", "State", "What", "Wish", "Writer"]

_Made = TypeVar("_Made")

What = Literal["intent", "done", "failed", "undo", "undone", "note"]
"""`intent` and `undo` come before acting, the others after."""
State = Literal["open", "paused", "done", "undone", "failed"]
"""`open` and `paused` operations go on; the others are over."""

_BUSY_S = 10.0
_OPEN = ("open", "paused")
_DOUBT = "doubt"
_LITTLE_BYTES = 512 * 1024
"""With less room than this on its disk, a journal gives up what it reserved."""
_CHECKED = 20
"""How many operations are read when a journal is opened: only the newest can be unfinished."""


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
        reserve_bytes: Room on the disk that every `writing` takes and that is given up when the disk is full.

    Raises:
        JournalDamaged: the file is damaged, or is gone although it was there before.
        StorageError: the file cannot be opened.
    """

    def __init__(
        self, path: str | os.PathLike[str] | None, *, clock: Clock | None = None, reserve_bytes: int = 0
    ) -> None:
        self.path = Path(path if path is not None else "memory")
        self._clock = clock or SystemClock()
        self._guard = threading.RLock()  # one thread may write several things together
        self._held = threading.Lock() if path is None else None
        self._is_file = path is not None
        self._reserve_bytes = reserve_bytes
        with stored(self.path, "opening"):
            if self._is_file:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                require_there(self.path)
            self._db = self._with_room(self._open)
        if self._is_file:
            try:
                self._require_sound()
            except BaseException:
                self._db.close()
                raise

    def _open(self) -> sqlite3.Connection:
        where = self.path if self._is_file else ":memory:"
        db = sqlite3.connect(where, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            db.execute("PRAGMA foreign_keys = ON")
            if self._is_file:
                self._require_pages(db)
            db.executescript(SCHEMA)
        except BaseException:
            db.close()
            raise
        return db

    def _require_pages(self, db: sqlite3.Connection) -> None:
        (found,) = db.execute("PRAGMA integrity_check(1)").fetchone()
        if found != "ok":
            raise damaged(self.path, f"is damaged: {found}")

    def _require_sound(self) -> None:
        """Read what every command relies on: the facts, and the operations that may be unfinished."""
        for _ in self._rows("facts"):
            pass
        self.operations(limit=_CHECKED)

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
        with lock(self.path, owner, self._clock):
            self._look_after()
            before = self._db.total_changes
            try:
                yield Writer(self)
            finally:
                if self._db.total_changes != before:
                    self._back_up()

    def _look_after(self) -> None:
        """Take what an operation may need later: room on the disk, and a backup if there is none."""
        reserve(self.path, self._reserve_bytes)
        if is_due(self.path):
            self._back_up()

    def _back_up(self) -> None:
        with self._guard:
            if not self._db.in_transaction:
                back_up(self._db, self.path)

    def give_up_reserve(self) -> bool:
        """Free the room that is kept on this disk for a time like this; return whether there was any.

        The journal does so itself when it cannot write. Others write beside it, such as a hub its tags.
        """
        return self._is_file and give_up_reserve(self.path)

    @property
    def order(self) -> int:
        """The highest id that an entry ever had: no place has seen a higher order from this journal."""
        with self._guard, stored(self.path, "reading"):
            return highest_id(self._db)

    @property
    def doubt(self) -> str:
        """The losses that a repair left; empty if nothing is missing."""
        return str(self.recall(_DOUBT) or "")

    def operations(self, *, kind: str | None = None, limit: int = -1) -> list[Operation]:
        """List operations, the newest first."""
        where, values = ("WHERE t.kind = ?", [kind]) if kind else ("", [])
        rows = self._rows("operations", f"{where} ORDER BY t.number DESC LIMIT ?", *values, limit)
        return self._parsed(_operation, rows)

    def operation(self, number: int) -> Operation:
        """Return one operation.

        Raises:
            NotFound: there is none with that number.
        """
        rows = self._rows("operations", "WHERE t.number = ?", number)
        if not rows:
            raise NotFound(
                f"{self.path.stem}: nothing has the number {number}", hint="See `cloudedge history` for the numbers."
            )
        return self._parsed(_operation, rows)[0]

    def unfinished(self) -> Operation | None:
        """Return the operation that has to be finished or undone, if there is one."""
        rows = self._rows("operations", f"WHERE t.state IN {_OPEN} ORDER BY t.number DESC LIMIT 1")
        return next(iter(self._parsed(_operation, rows)), None)

    def entries(self, number: int, *, after: int = 0) -> list[Entry]:
        """List an operation's entries in the order of writing, beginning after the entry `after`."""
        rows = self._rows("entries", "WHERE t.operation = ? AND t.id > ? ORDER BY t.id", number, after)
        return self._parsed(_entry, rows)

    def last_words(self, number: int) -> dict[str, Entry]:
        """Return the newest entry of every step of an operation, without notes."""
        return {entry.step: entry for entry in self.entries(number) if entry.what != "note"}

    def newest(self, steps: Sequence[str], what: What) -> Entry | None:
        """Return the newest entry, of any operation, that records `what` for one of some steps."""
        marks = ", ".join("?" * len(steps))
        where = f"WHERE t.what = ? AND t.step IN ({marks}) ORDER BY t.id DESC LIMIT 1"
        return next(iter(self._parsed(_entry, self._rows("entries", where, what, *steps))), None)

    def ask(self, number: int, what: str, *, by: str) -> None:
        """Leave a wish for the process that works on an operation; needs no lock, and is seen at its next look."""
        self._write(
            "INSERT INTO wishes (operation, what, by_whom, at) VALUES (?, ?, ?, ?)", number, what, by, self._now()
        )

    def wishes(self, number: int) -> list[Wish]:
        """List the wishes for an operation, the oldest first."""
        rows = self._rows("wishes", "WHERE t.operation = ? ORDER BY t.id", number)
        return [Wish(id_, what, by, at) for id_, _, what, by, at in rows]

    def recall(self, key: str) -> Any:
        """Return a fact that was remembered, or None."""
        rows = self._rows("facts", "WHERE t.key = ?", key)
        return next(iter(self._parsed(_fact, rows)), None)

    def _now(self) -> str:
        return rfc3339(self._clock.now())

    def _read(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._guard, stored(self.path, "reading"):
            return self._db.execute(sql, values).fetchall()

    def _rows(self, table: str, where: str = "", *values: Any) -> list[tuple[Any, ...]]:
        """Read whole rows of a table, called `t` in `where`, each compared with its checksum."""
        if not self._is_file:
            return self._read(f"SELECT * FROM {table} t {where}", *values)  # noqa: S608
        sums = f"LEFT JOIN sums s ON s.of = '{table}' AND s.key = t.{KEYS[table]}"
        found = self._read(f"SELECT t.*, s.sum FROM {table} t {sums} {where}", *values)  # noqa: S608
        for *row, kept in found:
            if kept is not None and row_sum(tuple(row)) != kept:
                raise damaged(self.path, f"is damaged: a row of {table} is not what was written")
        return [row[:-1] for row in found]

    def _parsed(self, make: Callable[[tuple[Any, ...]], _Made], rows: Sequence[tuple[Any, ...]]) -> list[_Made]:
        try:
            return [make(row) for row in rows]
        except (ValueError, TypeError) as error:
            raise damaged(self.path, f"is damaged: {error}") from error

    def _write(self, sql: str, *values: Any) -> int:
        """Write one row, in the transaction that is open or in one of its own."""
        with self._guard, stored(self.path, "writing"):
            if self._db.in_transaction:
                return self._write_row(sql, values)
            return self._with_room(lambda: self._write_alone(sql, values))

    def _write_alone(self, sql: str, values: tuple[Any, ...]) -> int:
        with self._together():
            return self._write_row(sql, values)

    def _write_row(self, sql: str, values: tuple[Any, ...]) -> int:
        number = self._db.execute(sql, values).lastrowid or 0
        if self._is_file:
            words = sql.split()
            table = words[1] if words[0] == "UPDATE" else words[2]
            key = values[0] if table == "facts" else values[-1] if words[0] == "UPDATE" else number
            for row in self._db.execute(f"SELECT * FROM {table} WHERE {KEYS[table]} = ?", (key,)):  # noqa: S608
                self._db.execute("INSERT OR REPLACE INTO sums VALUES (?, ?, ?)", (table, key, row_sum(row)))
        return number

    def _skip(self, order: int) -> None:
        with self._guard, stored(self.path, "writing"):
            above = max(order, highest_id(self._db))
            self._db.execute("DELETE FROM sqlite_sequence WHERE name = 'entries'")
            self._db.execute("INSERT INTO sqlite_sequence VALUES ('entries', ?)", (above,))

    @contextmanager
    def _together(self) -> Iterator[None]:
        with self._guard:
            with stored(self.path, "writing"):
                if self._is_file and free_bytes(self.path) < _LITTLE_BYTES:
                    self.give_up_reserve()  # a commit that fails for lack of room takes the whole block back
                self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                with stored(self.path, "writing"):
                    self._db.execute("COMMIT")
            except BaseException:
                with stored(self.path, "writing"):
                    if self._db.in_transaction:
                        self._db.execute("ROLLBACK")
                raise

    def _with_room(self, act: Callable[[], _Made]) -> _Made:
        """Do it; where the disk is full, give up the room that was reserved for this, and do it again."""
        try:
            return act()
        except (sqlite3.Error, OSError, StorageError) as error:
            cause = error.__cause__ if isinstance(error, StorageError) else error
            if not (is_full(cause) and self.give_up_reserve()):
                raise
            return act()


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

    def continue_above(self, order: int) -> None:
        """Give the entries that follow ids above `order`."""
        self.journal._skip(order)  # noqa: SLF001

    def settle(self) -> None:
        """End the doubt of a repair: what it could not bring back was found out otherwise."""
        if self.journal.doubt:
            self.remember(_DOUBT, "")

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


def _fact(row: tuple[Any, ...]) -> Any:
    return json.loads(row[1])


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
