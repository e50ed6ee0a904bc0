"""Reader of rows as text, in both forms that upstream's kv_to_seqfile.py has taken.

key show click v1 v2 ...     from v0.8.0 on: show and click are dropped, the rest become float32
key:value                    before: the text after the first colon is the value

Other programs write columns too, and a reader that drops the wrong ones makes a table of garbage. So columns are
refused where they contradict the first form: counters are never negative, and rows have one length. A file whose every
line looks like a save of Paddle's parameter servers (``key slot unseen_days delta_score show click embed_w g2sum ...``)
is refused as well, unless the caller names the form.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cloudedge.errors import InputError

__all__ = ["read_text"]

_PAIR = re.compile(rb"\s*(-?[0-9]+):(.*)", re.DOTALL)
_COUNTERS = 2  # show and click
_STATE = 7  # columns that a parameter server writes at least: slot to g2sum
_ENOUGH = 1000  # lines that look like a parameter server's, and none that does not
_FORMS = "'key show click v1 v2 ...' or 'key:value'; keys are integers below 2^64"


def read_text(path: str | os.PathLike[str], *, columns: bool = False) -> Iterator[tuple[int, bytes]]:
    """Read rows (key, value); the form is recognised line by line, and empty lines are skipped.

    Args:
        path: The file.
        columns: Take every line as ``key show click v1 v2 ...``, even if all of them look like another program's.

    Raises:
        InputError: a line is in neither form; `path` and `line` name it.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            yield from _read_lines(path, file, columns=columns)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", path=str(path)) from error


def _read_lines(path: Path, lines: Iterator[bytes], *, columns: bool) -> Iterator[tuple[int, bytes]]:
    width = 0
    states: int | None = None if columns else 0  # lines that look like a parameter server's; None once one does not
    shown = b""
    for number, line in enumerate(lines, 1):
        row = line.rstrip(b"\r\n")
        if not row.strip():
            continue
        try:
            if not columns and (pair := _PAIR.fullmatch(row)):
                states = None
                yield _key(pair[1]), pair[2]
                continue
            key, numbers = _parse_columns(row)
            width = _check_width(len(numbers) - _COUNTERS, width)
            value = _float32(numbers[_COUNTERS:])
        except (ValueError, OverflowError) as error:
            raise InputError(
                f"{path}, line {number}: cannot read {_shown(row)}: {error}",
                hint=f"Write {_FORMS}.",
                path=str(path),
                line=number,
            ) from error
        if states is not None:
            states = states + 1 if _looks_like_state(numbers) else None
            shown = shown or row
            if states == _ENOUGH:
                raise _state_refused(path, shown)
        yield key, value
    if states:
        raise _state_refused(path, shown)


def _parse_columns(row: bytes) -> tuple[int, NDArray[np.float64]]:
    words = row.split()
    if len(words) < 1 + _COUNTERS:
        raise ValueError("fewer than three columns and no colon")
    key = _key(words[0])
    numbers = np.array([float(word) for word in words[1:]], np.float64)
    if not (numbers[:_COUNTERS] >= 0).all():
        raise ValueError("the second and third columns are show and click, which are never negative")
    return key, numbers


def _check_width(width: int, before: int) -> int:
    if before and width and width != before:
        raise ValueError(f"the row has {width} numbers after show and click, and rows before have {before}")
    return width or before


def _looks_like_state(numbers: NDArray[np.float64]) -> bool:
    """Tell whether columns can be slot, unseen_days, delta_score, show, click, embed_w, g2sum and more."""
    if len(numbers) < _STATE:
        return False
    slot, unseen_days, delta_score, show, click, _, g2sum = numbers[:_STATE]
    whole = float(slot).is_integer() and float(unseen_days).is_integer()
    return bool(whole and delta_score >= 0 and show >= click >= 0 and g2sum >= 0)


def _state_refused(path: Path, row: bytes) -> InputError:
    return InputError(
        f"{path}: its lines look like a parameter server's save, 'key slot unseen_days delta_score show click embed_w "
        f"g2sum ...', such as {_shown(row)}: counters and optimizer state would become the row",
        hint="Write 'key show click' and the weights alone. If the lines are in that form, add `--from columns`.",
        path=str(path),
    )


def _float32(values: NDArray[np.float64]) -> bytes:
    with np.errstate(over="raise"):
        try:
            return values.astype(np.float32).tobytes()
        except FloatingPointError:
            raise ValueError("a value that float32 cannot hold") from None


def _key(word: bytes) -> int:
    if not re.fullmatch(rb"-?[0-9]{1,20}", word):
        raise ValueError(f"{word[:24]!r} is not an integer key")
    key = int(word)
    if not -(2**63) <= key < 2**64:
        raise ValueError(f"key {key} does not fit in 64 bits")
    return key % 2**64  # a negative id is its two's complement, as everywhere


def _shown(row: bytes) -> str:
    return repr(row[:80].decode(errors="backslashreplace"))
