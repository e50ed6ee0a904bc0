"""Checks and repairs of a journal's file.

`check_journal` reads a copy and changes nothing. `repair_journal` joins the newest sound backup with every row of the
damaged file that is as it was written, into a new file. The damaged file is moved aside and never changed. If rows that
came after the backup are missing, the new journal is in *doubt*: it names what is missing, and its owner has to find
out otherwise what happened since, for a target from its places.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from cloudedge.clock import Clock, SystemClock
from cloudedge.io import publish, sync_directory, sync_file, who
from cloudedge.journal._files import SQLITE_ERRORS, aside, backups, beside, lock, next_aside, stored, wal
from cloudedge.journal._schema import KEYS, SCHEMA, highest_id, row_sum

__all__ = ["BackupReport", "JournalReport", "Repair", "check_journal", "repair_journal"]

_SHOWN = 5
_GAP = 500
"""Between two damaged pages rows are asked for one by one, until so many in a row are lost: more than a page holds."""
_JSON = {"operations": (3, 8), "entries": (4,), "wishes": (), "facts": (1,)}
_WORDS = {"operations": (6, {"open", "paused", "done", "undone", "failed"}),
          "entries": (3, {"intent", "done", "failed", "undo", "undone", "note"})}  # fmt: skip
"""By table: the columns that hold JSON, and the column that holds one of a few words."""

JournalState = Literal["sound", "doubtful", "damaged", "missing", "absent"]
"""`doubtful`: repaired, and something is missing. `missing`: it was there before. `absent`: there never was one."""


@dataclass(frozen=True)
class BackupReport:
    """A backup of a journal."""

    path: str
    order: int
    """The id of its newest entry."""
    is_sound: bool


@dataclass(frozen=True)
class JournalReport:
    """The state of a journal's file."""

    path: str
    state: JournalState
    problems: tuple[str, ...] = ()
    operations: int = 0
    entries: int = 0
    order: int = 0
    """The highest id that an entry ever had."""
    backups: tuple[BackupReport, ...] = ()
    """The newest first."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


@dataclass(frozen=True)
class Repair:
    """The result of a repair, or of its dry run."""

    path: str
    was: JournalState
    backup: str = ""
    """The backup that it began with; empty: there was no sound one."""
    read: int = 0
    """Rows of the damaged file that are not in the backup."""
    lost: tuple[str, ...] = ()
    """What is missing; empty: nothing."""
    moved_to: str = ""
    """Where the damaged file is now; empty: there was none."""
    operations: int = 0
    entries: int = 0

    @property
    def is_needed(self) -> bool:
        """False if the journal was sound, or in a doubt that only its owner can end."""
        return self.was in ("damaged", "missing")

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self) | {"is_needed": self.is_needed}


@dataclass
class _Readable:
    """The readable part of a file."""

    tables: dict[str, dict[Any, tuple[Any, ...]]] = field(default_factory=lambda: {table: {} for table in KEYS})
    problems: list[str] = field(default_factory=list)
    order: int = 0

    @property
    def rows(self) -> int:
        return sum(len(rows) for rows in self.tables.values())


def check_journal(path: Path) -> JournalReport:
    """Check every page and every row of a journal and of its backups; changes nothing."""
    kept = tuple(BackupReport(str(each), _order_of(each), not _read(each).problems) for each in backups(path))
    if not path.exists() or not path.stat().st_size:
        if not beside(path):
            return JournalReport(str(path), "absent")
        what = "it is empty" if path.exists() else "it is missing"
        return JournalReport(str(path), "missing", (what,), backups=kept)
    found = _read(path)
    doubt = _fact(found, "doubt")
    state: JournalState = "damaged" if found.problems else "doubtful" if doubt else "sound"
    return JournalReport(
        str(path),
        state,
        tuple(found.problems) or ((doubt,) if doubt else ()),
        len(found.tables["operations"]),
        len(found.tables["entries"]),
        found.order,
        kept,
    )


def repair_journal(
    path: Path,
    *,
    dry_run: bool = False,
    by: str | None = None,
    clock: Clock | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Repair:
    """Repair a journal; does nothing to a sound one.

    Args:
        path: The journal.
        dry_run: Find out what would be done and change nothing.
        by: The name of the operator, for the lock.
        clock: For the lock.
        tell: Called with a sentence for each part of the work.

    Raises:
        Conflict: another process is at work on the journal.
        StorageError: the disk is full or cannot be read.
    """
    if dry_run:
        with stored(path, "reading"):
            return _repair(path, tell, write=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    with lock(path, by or who(), clock or SystemClock()), stored(path, "repairing"):
        return _repair(path, tell, write=True)


def _repair(path: Path, tell: Callable[[str], None], *, write: bool) -> Repair:
    tell(f"checking {path}")
    report = check_journal(path)
    if report.state not in ("damaged", "missing"):
        return Repair(str(path), report.state, operations=report.operations, entries=report.entries)
    base = next((Path(each.path) for each in report.backups if each.is_sound), None)
    tell(f"beginning with the backup {base.name}" if base else "there is no sound backup")
    joined = _read(base) if base else _Readable()
    known, complete = joined.rows, False
    # A repair that was killed may have moved the file aside already, or its write-ahead log.
    sources = [each for each in (path, *aside(path)) if each.exists() and each.stat().st_size]
    problems: list[str] = []
    for source, found in sorted(((each, _read(each)) for each in sources), key=lambda pair: pair[1].order):
        if found.order < joined.order:
            continue  # older than the backup
        tell(f"read {found.rows} rows of {source.name}")
        for table, rows in found.tables.items():
            joined.tables[table].update(rows)
        joined.order = found.order
        complete, problems = not found.problems, found.problems
    read = joined.rows - known
    orphans = _drop_orphans(joined)
    lost = () if complete and not orphans else tuple(_lost(base, problems, orphans))
    joined.tables["facts"]["doubt"] = ("doubt", json.dumps("; ".join(lost)))
    moved = next_aside(path) if path.exists() or wal(path).exists() else None
    if write:
        tell(f"writing {joined.rows} rows")
        _replace(path, joined, moved)
    return Repair(
        str(path),
        report.state,
        str(base) if base else "",
        read,
        lost,
        str(moved) if moved else "",
        len(joined.tables["operations"]),
        len(joined.tables["entries"]),
    )


def _lost(base: Path | None, problems: list[str], orphans: int) -> Iterator[str]:
    yield f"everything after the backup {base.name} that could not be read" if base else "all that could not be read"
    yield from problems[:_SHOWN]
    if orphans:
        yield f"the operations of {orphans} entries"


def _drop_orphans(joined: _Readable) -> int:
    """Leave out entries and wishes of operations that are lost; return how many there were."""
    dropped = 0
    for table in ("entries", "wishes"):
        rows = joined.tables[table]
        for key in [key for key, row in rows.items() if row[1] not in joined.tables["operations"]]:
            del rows[key]
            dropped += 1
    return dropped


def _replace(path: Path, joined: _Readable, moved: Path | None) -> None:
    """Write the new file beside the journal, move the damaged one aside, and put the new one in its place.

    Killed anywhere, this leaves a journal that is damaged or missing, or the new one; the next repair goes on.
    """
    making = path.with_name(f".{path.name}.repaired")
    making.unlink(missing_ok=True)
    with closing(sqlite3.connect(making, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = DELETE")
        db.executescript(SCHEMA)
        db.execute("BEGIN")
        for table, rows in joined.tables.items():
            for key, row in rows.items():
                db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)  # noqa: S608
                db.execute("INSERT INTO sums VALUES (?, ?, ?)", (table, key, row_sum(row)))
        db.execute("DELETE FROM sqlite_sequence WHERE name = 'entries'")
        db.execute("INSERT INTO sqlite_sequence VALUES ('entries', ?)", (joined.order,))
        db.execute("COMMIT")
    sync_file(making)
    if moved is not None:
        if path.exists():
            os.link(path, moved)  # under both names until the new one takes the first
        if wal(path).exists():
            wal(path).rename(wal(moved))  # it must not reach the new one
    path.with_name(f"{path.name}-shm").unlink(missing_ok=True)
    sync_directory(path.parent)
    publish(making, path)


def _order_of(backup: Path) -> int:
    number = backup.name.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


def _fact(found: _Readable, key: str) -> str:
    row = found.tables["facts"].get(key)
    return str(json.loads(row[1])) if row else ""


@contextmanager
def _copied(path: Path) -> Iterator[Path]:
    """Lend a copy of a database with its write-ahead log: opening a file can change it."""
    with tempfile.TemporaryDirectory(prefix="cloudedge-journal-") as folder:
        copy = Path(folder) / "copy.db"
        shutil.copyfile(path, copy)
        if wal(path).exists():
            shutil.copyfile(wal(path), wal(copy))
        yield copy


def _read(path: Path) -> _Readable:
    """Read every row of a file that is as it was written, and list what is wrong with the rest."""
    found = _Readable()
    with _copied(path) as copy, closing(sqlite3.connect(copy, isolation_level=None)) as db:
        db.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
        try:
            said = [str(row[0]) for row in db.execute(f"PRAGMA integrity_check({_SHOWN})")]
            found.problems += [] if said == ["ok"] else said
        except SQLITE_ERRORS as error:
            found.problems.append(str(error))
        sums = _sums(db, found.problems)
        for table, key in KEYS.items():
            for row in _salvage(db, table, found.problems):
                number = row[0]  # the key is the first column of every table
                if _is_as_written(table, row, sums.pop((table, number), None)):
                    found.tables[table][number] = row
                else:
                    found.problems.append(f"{table}: the row {key} {number!r:.40} is not what was written")
        found.problems += [f"{table}: the row {key!r:.40} is gone" for table, key in sums]
        try:
            found.order = highest_id(db)
        except SQLITE_ERRORS:
            found.order = max(found.tables["entries"], default=0)
    return found


def _sums(db: sqlite3.Connection, problems: list[str]) -> dict[tuple[str, Any], int]:
    try:
        return {(table, key): kept for table, key, kept in db.execute("SELECT of, key, sum FROM sums")}
    except SQLITE_ERRORS as error:
        if "no such table" not in str(error):  # else it was written before rows had sums
            problems.append(f"sums: {error}")
        return {}


def _salvage(db: sqlite3.Connection, table: str, problems: list[str]) -> list[tuple[Any, ...]]:
    """Read a table from both ends; between two damaged pages, row by row."""
    rows: dict[int, tuple[Any, ...]] = {}
    ends: list[int] = []
    for way in ("ASC", "DESC"):
        last = 0
        try:
            for number, *row in db.execute(f"SELECT rowid, * FROM {table} NOT INDEXED ORDER BY rowid {way}"):  # noqa: S608
                rows[number], last = tuple(row), number
        except SQLITE_ERRORS as error:
            problems.append(f"{table}: {error}")
            ends.append(last)
        else:
            return list(rows.values())
    first, last = ends
    found = first
    for number in range(first + 1, last or first + _GAP):
        if number - found > _GAP:
            break
        with suppress(*SQLITE_ERRORS):
            for row in db.execute(f"SELECT * FROM {table} NOT INDEXED WHERE rowid = ?", (number,)):  # noqa: S608
                rows[number], found = tuple(row), number
    return [rows[number] for number in sorted(rows)]


def _is_as_written(table: str, row: tuple[Any, ...], kept: int | None) -> bool:
    if kept is not None:
        return row_sum(row) == kept
    column, words = _WORDS.get(table, (0, set()))
    try:
        for each in _JSON[table]:
            json.loads(row[each])
        "".join(value for value in row if isinstance(value, str)).encode()
    except (ValueError, TypeError):
        return False
    is_complete = all(value is not None for value in row) and (table == "facts" or isinstance(row[0], int))
    return is_complete and (not words or row[column] in words)
