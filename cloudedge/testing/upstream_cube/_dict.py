"""Loading of a version's files as upstream's server does it, with its faults.

An absent index or data file is skipped, a data file that is too long is taken, and a patch is laid over the current
version by the rules of either generation: "A" up to v0.6.3, "B" from v0.7.0 on.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MAX_VALUE_BYTES", "Dict", "LoadFailed", "load_base", "load_patch"]

MAX_VALUE_BYTES = 1024
"""Longer values are loaded and then not found."""


class LoadFailed(Exception):
    """A version's files do not load."""


@dataclass(frozen=True)
class Dict:
    """A loaded version."""

    version: str
    table: dict[int, int]
    """Key to address: block << 32 | offset."""
    blocks: tuple[bytes | None, ...]
    index_lengths: tuple[int, ...]
    data_lengths: tuple[int, ...]

    def find(self, key: int) -> bytes | None:
        """Return a key's value, or None where upstream answers "not found", for any reason."""
        address = self.table.get(key)
        if address is None:
            return None
        number, offset = address >> 32, address & 0xFFFFFFFF
        block = self.blocks[number] if number < len(self.blocks) else None
        if block is None or offset + 4 > len(block):
            return None
        (length,) = struct.unpack_from("<I", block, offset)
        if length < 4 or offset + length > len(block) or length - 4 > MAX_VALUE_BYTES:  # noqa: PLR2004 - its own size
            return None
        return block[offset + 4 : offset + length]


def load_base(directory: Path, version: str) -> Dict:
    """Load a whole version.

    Raises:
        LoadFailed: a list is missing, or a file is shorter than listed.
    """
    index_lengths, data_lengths = _lists(directory)
    table = _read_index(directory, index_lengths, 0, 0)
    blocks = tuple(_read_data(directory, i, n) for i, n in enumerate(data_lengths))
    return Dict(version, table, blocks, index_lengths, data_lengths)


def load_patch(current: Dict, directory: Path, version: str, *, generation: str) -> Dict:
    """Lay a version's files over the current one."""
    index_lengths, data_lengths = _lists(directory)
    known = current.index_lengths
    continues = index_lengths[: len(known)] == known
    if generation == "A" and not continues:
        return load_base(directory, version)
    blocks = len(current.blocks)
    high = blocks << 32 if generation == "B" else 0
    table = current.table | _read_index(directory, index_lengths, len(known) if continues else 0, high)
    if generation == "B":
        more = (_read_data(directory, i, n) for i, n in enumerate(data_lengths))
        return Dict(version, table, (*current.blocks, *more), index_lengths, data_lengths)
    if data_lengths[:blocks] != current.data_lengths:
        raise LoadFailed("the data files of the base have other lengths")
    new = (_read_data(directory, i, n) for i, n in enumerate(data_lengths) if i >= blocks)
    return Dict(version, table, (*current.blocks, *new), index_lengths, data_lengths)


def _lists(directory: Path) -> tuple[tuple[int, ...], tuple[int, ...]]:
    try:
        index, data = (directory / "index.n").read_bytes(), (directory / "data.n").read_bytes()
        count = struct.unpack_from("<3I", index)[2]
        (blocks,) = struct.unpack_from("<I", data)
        return struct.unpack_from(f"<{count}Q", index, 12), struct.unpack_from(f"<{blocks}I", data, 4)
    except (OSError, struct.error) as error:
        raise LoadFailed(str(error)) from error


def _read_index(directory: Path, lengths: tuple[int, ...], first: int, high: int) -> dict[int, int]:
    table: dict[int, int] = {}
    for number in range(first, len(lengths)):
        path = directory / f"index.{number}"
        if not path.exists():
            continue
        content = path.read_bytes()
        if len(content) != lengths[number]:
            raise LoadFailed(f"{path} has {len(content)} bytes, index.n says {lengths[number]}")
        table.update((key, address | high) for key, address in struct.iter_unpack("<QQ", content))
    return table


def _read_data(directory: Path, number: int, length: int) -> bytes | None:
    path = directory / f"data.{number}"
    if not path.exists():
        return None
    content = path.read_bytes()
    if len(content) < length:
        raise LoadFailed(f"{path} has {len(content)} bytes, data.n says {length}")
    return content[:length]
