"""Donefiles: the lines with which a trainer announces finished rows to cube-transfer, one JSON object each.

    base.txt    {"id":"1562000400","key":"1562000400","input":"/data/ctr/20190701/base"}
    patch.txt   {"id":"1562000401","key":"1562000400","input":"/data/ctr/20190701/patch"}

Writing is strict: upstream fails on numbers that are not strings, and never reads a last patch line without a
newline. Reading is lenient: numbers are accepted, short lines are skipped, and a last line that is still being
written (no newline, no JSON yet) is ignored.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloudedge.errors import InputError, StorageError

__all__ = ["DoneEntry", "append_donefile", "parse_donefile", "read_donefile"]

_SHORTEST = 3  # characters; upstream skips shorter lines


@dataclass(frozen=True)
class DoneEntry:
    """One finished training output."""

    id: int
    """Grows from entry to entry; a unix time by custom."""
    key: int
    """The id of the base: its own for a base, that of its base for a patch."""
    input: str
    """The directory of SequenceFiles."""

    @property
    def is_base(self) -> bool:
        """True for a base, which needs no other entry."""
        return self.id == self.key

    def line(self) -> str:
        """Write the entry as a line, newline included."""
        plain = {"id": str(self.id), "key": str(self.key), "input": self.input}
        return json.dumps(plain, separators=(",", ":"), ensure_ascii=False) + "\n"


def read_donefile(path: str | os.PathLike[str]) -> list[DoneEntry]:
    """Read all entries, in order; the last one is the newest.

    Raises:
        InputError: the file cannot be read, or a line is no entry; `path` and `line` name it.
    """
    try:
        text = Path(path).read_bytes().decode(errors="replace")
    except OSError as error:
        raise InputError(f"cannot read the donefile {path}: {error.strerror}", path=str(path)) from error
    return parse_donefile(text, source=str(path))


def parse_donefile(
    text: str, *, source: str = "donefile", warn: Callable[[str], None] = lambda _: None
) -> list[DoneEntry]:
    """Read all entries of a text; `source` names it in errors, `warn` gets each line that upstream would not accept.

    Raises:
        InputError: a line is no entry; `path` and `line` name it.
    """
    entries = []
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if len(line.strip()) < _SHORTEST:
            continue
        try:
            entry, is_odd = _entry(line)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            if number == len(lines) and not line.rstrip().endswith("}"):
                break
            raise InputError(
                f"{source}, line {number}: no donefile entry: {error}",
                hint='Write {"id":"1562000400","key":"1562000400","input":"/data/..."}.',
                path=source,
                line=number,
            ) from error
        entries.append(entry)
        if is_odd:
            warn(f"{source}, line {number}: id and key are numbers; upstream takes only strings")
        if number == len(lines):
            warn(f"{source}, line {number}: the last line does not end; upstream never reads such a patch")
    if not entries:
        warn(f"{source} has no entry" + ("; upstream crashes on that" if source.endswith("base.txt") else ""))
    return entries


def append_donefile(path: str | os.PathLike[str], entry: DoneEntry) -> None:
    """Add an entry in one write, on a line of its own.

    Raises:
        StorageError: the file cannot be written.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            unfinished = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            os.write(descriptor, (b"\n" if unfinished else b"") + entry.line().encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StorageError(f"cannot write the donefile {path}: {error.strerror}", path=str(path)) from error


def _entry(line: str) -> tuple[DoneEntry, bool]:
    """Read a line; also return whether upstream would have refused its numbers."""
    plain = json.loads(line)
    if not isinstance(plain, dict):
        raise TypeError("not an object")
    if not isinstance(plain["input"], str) or not plain["input"]:
        raise ValueError("'input' is not a path")
    is_odd = not all(isinstance(plain[name], str) for name in ("id", "key"))
    return DoneEntry(_number(plain, "id"), _number(plain, "key"), plain["input"]), is_odd


def _number(plain: dict[str, Any], name: str) -> int:
    text = str(plain[name])
    if isinstance(plain[name], bool) or not re.fullmatch(r"[0-9]{1,19}", text):
        raise ValueError(f"{name!r} is {plain[name]!r}, not a number")
    return int(text)
