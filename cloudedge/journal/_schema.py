"""The tables of a journal, and the checksums of their rows."""

from __future__ import annotations

import sqlite3
import zlib
from typing import Any

__all__ = ["KEYS", "SCHEMA", "highest_id", "row_sum"]

SCHEMA = """
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
CREATE TABLE IF NOT EXISTS sums (of TEXT NOT NULL, key NOT NULL, sum INTEGER NOT NULL, PRIMARY KEY (of, key))
    WITHOUT ROWID;
CREATE TRIGGER IF NOT EXISTS operation_changed AFTER UPDATE ON operations
    BEGIN DELETE FROM sums WHERE of = 'operations' AND key = NEW.number; END;
CREATE TRIGGER IF NOT EXISTS fact_changed AFTER UPDATE ON facts
    BEGIN DELETE FROM sums WHERE of = 'facts' AND key = NEW.key; END;
"""
"""The triggers are for a cloudedge that does not know `sums`: a row that it changes has no sum, and not a wrong one."""

KEYS = {"operations": "number", "entries": "id", "wishes": "id", "facts": "key"}
"""By table: its key. A row is written after those it refers to in this order."""


def row_sum(row: tuple[Any, ...]) -> int:
    """Return the checksum of a row."""
    return zlib.crc32(repr(row).encode("utf-8", "surrogateescape"))


def highest_id(db: sqlite3.Connection, table: str = "entries") -> int:
    """Return the highest id that a table ever gave to a row; 0 if there was none."""
    (found,) = db.execute(
        f"SELECT max(ifnull((SELECT seq FROM sqlite_sequence WHERE name = ?), 0), ifnull((SELECT max({KEYS[table]}) "  # noqa: S608
        f"FROM {table}), 0))",
        (table,),
    ).fetchone()
    return int(found)
