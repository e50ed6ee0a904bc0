"""Tables and bundles' chains of them, made of seeds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from cloudedge.bundle import Bundle
from cloudedge.cube.delivery import TableVersion
from cloudedge.hub import LocalHub

DIM = 4


def rows_of(seed: int, count: int, *, dim: int = DIM) -> dict[int, np.ndarray]:
    rng = np.random.default_rng(seed)
    keys = rng.choice(np.arange(1, 20 * count + 1, dtype=np.uint64), count, replace=False)
    return {int(key): row for key, row in zip(keys, rng.random((count, dim), np.float32), strict=True)}


def changed(rows: Mapping[int, np.ndarray], seed: int, share: float = 0.05) -> dict[int, np.ndarray]:
    """Change, remove and add a share of the rows each."""
    rng = np.random.default_rng(seed)
    out = dict(rows)
    some = rng.permutation(np.array(sorted(rows), np.uint64))
    count = max(1, int(len(rows) * share))
    dim = len(next(iter(rows.values())))
    for key in some[:count]:
        out[int(key)] = rng.random(dim, np.float32)
    for key in some[count : 2 * count]:
        del out[int(key)]
    for key in rng.integers(10**9, 2**63, count, dtype=np.uint64):
        out[int(key)] = rng.random(dim, np.float32)
    return out


def arrays(rows: Mapping[int, np.ndarray]) -> dict[str, np.ndarray]:
    keys = np.array(sorted(rows), np.uint64)
    return {"keys": keys, "values": np.stack([rows[int(key)] for key in keys])}


class Tables:
    """Packs versions of a table into a hub of its own; `parent` makes a version a delta on another."""

    def __init__(self, folder: Path, name: str = "emb") -> None:
        self.folder = folder / "hub"
        self.hub = LocalHub(self.folder)
        self.name = name
        self._dense = folder / "dense"
        self._dense.mkdir(parents=True)
        (self._dense / "model").write_text("dense")
        self._count = 0
        self.rows: dict[str, dict[int, np.ndarray]] = {}
        self.bundles: dict[str, Bundle] = {}

    def version(self, rows: dict[int, np.ndarray], parent: TableVersion | None = None) -> TableVersion:
        self._count += 1
        (self._dense / "model").write_text(f"dense {self._count}")
        bundle = Bundle.pack(
            self._dense,
            name="model",
            sparse={self.name: arrays(rows)},
            parent=None if parent is None else self.bundles[parent.version],
            hub=self.hub,
            copy=True,
        )
        self.rows[bundle.pin], self.bundles[bundle.pin] = dict(rows), bundle
        return TableVersion(self.name, bundle.pin, bundle.sparse[self.name])

    def fresh(self, count: int = 300) -> TableVersion:
        """Pack rows that no version had before."""
        return self.version(rows_of(1000 + self._count, count))


def expected(rows: Mapping[int, np.ndarray], shard: int, shards: int) -> dict[int, bytes]:
    return {key: row.tobytes() for key, row in rows.items() if key % shards == shard}
