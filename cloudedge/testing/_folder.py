"""A place that is a folder: real bytes of real bundles, kept across processes, without a server.

It is the smallest complete implementation of `Place`: a version is made beside the others and published by rename, the
pointer is a file that is replaced, and a process may be killed at any line. Use it to try out releases and in tests
that kill real processes.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from cloudedge.bundle import Bundle
from cloudedge.errors import Conflict, IntegrityError, NotFound
from cloudedge.hub import hash_file
from cloudedge.io import read_npz
from cloudedge.release import Estimate, Health, Leg, Loaded, Observed, Shares, Shipped, Version

__all__ = ["FolderPlace"]


class FolderPlace:
    """A place in a folder.

    Args:
        root: The folder; made when something is put there.
        name: The place's name; of a shard, `sparse/TABLE/SHARD/REPLICA`.
        leg: The leg that it belongs to.
        shards: Sparse: the number of shards of the table.
        room_bytes: The bytes that it can hold; None: as many as the disk.
    """

    def __init__(self, root: Path, name: str, leg: Leg, *, shards: int = 1, room_bytes: int | None = None) -> None:
        self.name = name
        self.leg = leg
        self._root = root / name.replace("/", "_")
        self._table, self._shard = (name.split("/")[1], int(name.split("/")[2])) if leg == "sparse" else ("", 0)
        self._shards = shards
        self._room = room_bytes

    def observe(self) -> Observed:
        """Read the folder."""
        state = self._state()
        loaded = {path.name: self._loaded(path) for path in sorted(self._root.glob("versions/*"))}
        free = None if self._room is None else self._room - sum(each.memory_bytes for each in loaded.values())
        return Observed(
            self.name,
            self.leg,
            loaded,
            state["active"],
            self._table,
            self._shard,
            self._shards,
            free_memory_bytes=free,
            order=state["fence"],
        )

    def estimate(self, version: Version) -> Estimate:
        """Count the bytes."""
        size = version.dense_bytes if self.leg != "sparse" else 0
        for name, table in version.tables.items():
            if self.leg == "edge" or name == self._table:
                size += (8 + table.row_bytes) * (table.rows if self.leg == "edge" else table.shard_rows[self._shard])
        return Estimate(ship_bytes=size, memory_bytes=size, disk_bytes=size)

    def load(self, version: Version, *, order: int) -> Shipped:
        """Copy the files and rows that belong here, and publish them with a rename."""
        self._fence(order)
        ready, making = self._root / "versions" / version.pin, self._root / f"making-{version.pin}"
        if ready.exists():
            return Shipped(0, "nothing")
        shutil.rmtree(making, ignore_errors=True)  # left by a process that was killed here
        making.mkdir(parents=True)
        size = self._fill(making, _bundle(version))
        ready.parent.mkdir(exist_ok=True)
        making.rename(ready)
        return Shipped(size, "base")

    def _fill(self, folder: Path, bundle: Bundle) -> int:
        if self.leg != "sparse":
            for path, source in bundle.dense.items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, folder / path)
        for name, table in bundle.sparse.items():
            if self.leg == "edge" or name == self._table:
                mine = table.keys % np.uint64(self._shards) == self._shard
                np.savez(folder / f"{name}.npz", keys=table.keys[mine], values=table.values[mine])
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

    def verify(self, version: Version) -> None:
        """Compare every dense file and every row with the bundle's."""
        folder = self._root / "versions" / version.pin
        if not folder.exists():
            raise NotFound(f"{self.name} does not have {version.pin}")
        bundle = _bundle(version)
        if self.leg != "sparse":
            for path, layer in bundle.dense_layers.items():
                if not (folder / path).is_file() or hash_file(folder / path).digest != layer.digest:
                    raise IntegrityError(f"{self.name}: {path} of {version.pin} is not what was packed")
        for name, table in bundle.sparse.items():
            if self.leg == "edge" or name == self._table:
                rows = read_npz(folder / f"{name}.npz")
                expected, found = table.lookup(rows["keys"])
                mine = int((table.keys % np.uint64(self._shards) == self._shard).sum())
                if len(rows["keys"]) != mine or not found.all() or not np.array_equal(expected, rows["values"]):
                    raise IntegrityError(f"{self.name}: the rows of {name} in {version.pin} are not what was packed")

    def activate(self, shares: Shares, *, order: int) -> None:
        """Replace the pointer."""
        self._fence(order)
        missing = [pin for pin in shares if not (self._root / "versions" / pin).exists()]
        if missing:
            raise NotFound(f"{self.name} does not have {', '.join(missing)}")
        self._write(self._state() | {"active": dict(shares)})

    def unload(self, pin: str, *, order: int) -> None:
        """Delete a version, with a rename first: a half-deleted one must not look whole."""
        self._fence(order)
        if pin in self._state()["active"]:
            raise Conflict(f"{self.name}: {pin} is active")
        going = self._root / f"making-{pin}"
        shutil.rmtree(going, ignore_errors=True)
        if (self._root / "versions" / pin).exists():
            (self._root / "versions" / pin).rename(going)
        shutil.rmtree(going, ignore_errors=True)

    def watch(self) -> Health:
        """Report nothing: a folder gets no requests."""
        return Health()

    def _loaded(self, folder: Path) -> Loaded:
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        return Loaded("ready", memory_bytes=size, shards=self._shards if self.leg == "sparse" else None)

    def _state(self) -> dict[str, Any]:
        try:
            state: dict[str, Any] = json.loads((self._root / "state.json").read_text())
        except FileNotFoundError:
            return {"active": {}, "fence": 0}
        return state

    def _fence(self, order: int) -> None:
        state = self._state()
        if order < state["fence"]:
            raise Conflict(f"{self.name}: order {order} came after {state['fence']}")
        self._write(state | {"fence": order})

    def _write(self, state: dict[str, Any]) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        new = self._root / "state.json.new"
        new.write_text(json.dumps(state))
        new.replace(self._root / "state.json")


def _bundle(version: Version) -> Bundle:
    if version.bundle is None:
        raise NotFound(f"the bytes of {version} are not here")
    return version.bundle
