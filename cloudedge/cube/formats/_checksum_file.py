"""The checksum file of a part: the checksum of its rows, in a small file beside its directory.

Upstream's files carry no checksum, and a flipped bit in a value looks like any other value. The builder therefore
leaves ``<part>.rows.json`` beside the directory of every base it builds, where the tar's ``.md5`` is too; no program of
upstream's reads it. A loader that finds it can verify that the rows are still those that were built.
"""

from __future__ import annotations

import json
from pathlib import Path

from cloudedge.errors import IntegrityError
from cloudedge.io import write_synced

__all__ = ["read_checksum_file", "write_checksum_file"]

_MOST_BYTES = 4096
_HALF = 64
_Sum = tuple[int, int]


def write_checksum_file(directory: Path, rows: int, checksum: _Sum) -> None:
    """Write the checksum of a part's rows: the low and the high half."""
    low, high = checksum
    write_synced(_beside(directory), json.dumps({"checksum": f"{high:016x}{low:016x}", "rows": rows}) + "\n")


def read_checksum_file(directory: Path) -> _Sum | None:
    """Return the checksum that the rows of a part must have; None if no checksum file is there.

    Raises:
        IntegrityError: the checksum file cannot be read.
    """
    path = _beside(directory)
    try:
        with path.open("rb") as file:
            text = json.loads(file.read(_MOST_BYTES))["checksum"]
        total = int(text, 16)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise IntegrityError(
            f"{path} does not hold the checksum of the rows beside it",
            hint="Fetch or build the part again; without this file it is loaded unchecked.",
            path=str(path),
        ) from error
    return total & (2**_HALF - 1), total >> _HALF


def _beside(directory: Path) -> Path:
    part = directory.absolute()
    return part.with_name(f"{part.name}.rows.json")
