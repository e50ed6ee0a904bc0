"""Reader of rows as text, in both forms that upstream's kv_to_seqfile.py has taken.

key show click v1 v2 ...     from v0.8.0 on: show and click are dropped, the rest become float32
key:value                    before: the text after the first colon is the value
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from cloudedge.errors import InputError

__all__ = ["read_text"]

_PAIR = re.compile(rb"\s*(-?[0-9]+):(.*)", re.DOTALL)
_COUNTERS = 2  # show and click


def read_text(path: str | os.PathLike[str]) -> Iterator[tuple[int, bytes]]:
    """Read rows (key, value); the form is recognised line by line, and empty lines are skipped.

    Raises:
        InputError: a line is in neither form; `path` and `line` name it.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                row = line.rstrip(b"\r\n")
                if not row.strip():
                    continue
                try:
                    yield _parse(row)
                except (ValueError, OverflowError) as error:
                    shown = row[:80].decode(errors="backslashreplace")
                    raise InputError(
                        f"{path}, line {number}: cannot read {shown!r}: {error}",
                        hint="Write 'key show click v1 v2 ...' or 'key:value'; keys are integers below 2^64.",
                        path=str(path),
                        line=number,
                    ) from error
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", path=str(path)) from error


def _parse(row: bytes) -> tuple[int, bytes]:
    if pair := _PAIR.fullmatch(row):
        return _key(pair[1]), pair[2]
    words = row.split()
    if len(words) < 1 + _COUNTERS:
        raise ValueError("fewer than three columns and no colon")
    for word in words[1 : 1 + _COUNTERS]:
        float(word)
    with np.errstate(over="raise"):
        try:
            values = np.array([float(word) for word in words[1 + _COUNTERS :]], np.float64).astype(np.float32)
        except FloatingPointError:
            raise ValueError("a value that float32 cannot hold") from None
    return _key(words[0]), values.tobytes()


def _key(word: bytes) -> int:
    if not re.fullmatch(rb"-?[0-9]{1,20}", word):
        raise ValueError(f"{word[:24]!r} is not an integer key")
    key = int(word)
    if not -(2**63) <= key < 2**64:
        raise ValueError(f"key {key} does not fit in 64 bits")
    return key % 2**64  # a negative id is its two's complement, as everywhere
