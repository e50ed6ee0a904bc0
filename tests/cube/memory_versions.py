"""Versions made in memory, for servers under test."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np

from cloudedge import _core
from cloudedge.errors import InputError

BIG = 72623859790382857  # 0x0102030405060709

Rows = dict[int, tuple[float, ...]]


def make_version(name: str, rows: Rows) -> _core.Version:
    keys = np.array(list(rows), np.uint64)
    values = np.array(list(rows.values()), "<f4").reshape(len(rows), -1)
    return _core.memory_version(name, keys, np.ascontiguousarray(values).view(np.uint8))


def value(*floats: float) -> bytes:
    return struct.pack(f"<{len(floats)}f", *floats)


class Files:
    """Stands in for a part's files: versions by the last component of their path."""

    def __init__(self) -> None:
        self.versions: dict[str, Rows] = {}
        self.loads = 0
        self.before_load: Callable[[], object] = lambda: None

    def load(self, path: str, name: str) -> _core.Version:
        self.loads += 1
        self.before_load()
        try:
            return make_version(name, self.versions[path.rpartition("/")[2]])
        except KeyError:
            raise InputError(f"no files under {path}") from None

    def patch(self, base: _core.Version, path: str, name: str) -> _core.Version:
        return self.load(path, name)


def table(shards: int, shard: int, rows: int = 1000) -> dict[int, tuple[float, ...]]:
    return {key: (float(key), -float(key)) for key in range(rows) if key % shards == shard}
