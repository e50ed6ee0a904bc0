"""Small models made from a seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def make_model(folder: Path, *, seed: int = 0, files: int = 3) -> Path:
    """Write a few dense files."""
    rng = np.random.default_rng(seed)
    (folder / "sub").mkdir(parents=True, exist_ok=True)
    (folder / "model.pdmodel").write_bytes(rng.bytes(300))
    (folder / "model.pdiparams").write_bytes(rng.bytes(20_000))
    for i in range(files):
        (folder / "sub" / f"part {i} é.bin").write_bytes(rng.bytes(100 * i))
    return folder


def make_table(rows: int = 1000, dim: int = 4, *, seed: int = 0, dtype: str = "float32") -> dict[str, np.ndarray]:
    """Make a table's arrays in canonical order."""
    rng = np.random.default_rng(seed)
    keys = np.sort(rng.choice(np.arange(1, rows * 50, dtype=np.uint64), rows, replace=False))
    if dtype == "int8":
        values = rng.integers(-128, 128, (rows, dim), dtype=np.int8)
        return {"keys": keys, "values": values, "scale": rng.random(rows, dtype=np.float32)}
    return {"keys": keys, "values": rng.standard_normal((rows, dim)).astype(dtype)}


def change_table(table: dict[str, np.ndarray], *, seed: int, share: float = 0.01) -> dict[str, np.ndarray]:
    """Return a table with some rows changed, some removed and some added."""
    rng = np.random.default_rng(seed)
    n = len(table["keys"])
    count = max(1, int(n * share))
    changed = {name: array.copy() for name, array in table.items()}
    at = rng.choice(n, count, replace=False)
    changed["values"][at] = make_table(n, table["values"].shape[1], seed=seed, dtype=table["values"].dtype.name)[
        "values"
    ][at]
    keep = np.ones(n, bool)
    keep[rng.choice(n, count // 2, replace=False)] = False
    new_keys = np.setdiff1d(rng.integers(n * 50, n * 100, count // 2).astype(np.uint64), table["keys"])
    fresh = make_table(max(len(new_keys), 1), table["values"].shape[1], seed=seed + 1, dtype=table["values"].dtype.name)
    out = {}
    for name, array in changed.items():
        extra = new_keys if name == "keys" else fresh[name][: len(new_keys)]
        out[name] = np.concatenate([array[keep], extra])
    order = np.argsort(out["keys"])
    return {name: array[order] for name, array in out.items()}
