"""What feeding Paddle's engine costs: copying arrays, as the runtime does, or lending them to it.

Lending takes Paddle's own tensors, which are made of arrays without copying (DLPack) and have to outlive the run.
Prints microseconds of processor time for all inputs of one run, the quickest of many; the run itself is not counted.

    python bench/serving_inputs.py [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from cloudedge.serving.model._predictor import DenseModel
from tests.serving.models import DIM, SLOTS, paddle, save_ctr_dense, save_tiny

ROUNDS = 300


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print rows for programs")
    as_json = parser.parse_args().json
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, save, inputs in (("tiny", save_tiny, _tiny), ("ctr", save_ctr_dense, _ctr)):
            files = {path.name: path for path in save(Path(folder) / name).iterdir()}
            with DenseModel(files) as model:
                predictor = model.predictor()
            for count in (1, 32, 256):
                rows += [{"model": name, "rows": count, **_measure(predictor, inputs(count))}]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        print(
            f"{row['model']:5} {row['rows']:4} rows: copied {row['copied_us']:7.1f} us, lent {row['lent_us']:7.1f} us"
        )


def _tiny(rows: int) -> dict[str, Any]:
    return {"x": np.random.default_rng(0).random((rows, 13), np.float32)}


def _ctr(rows: int) -> dict[str, Any]:
    draw = np.random.default_rng(0).random
    return {"dense": draw((rows, 13), np.float32)} | {f"emb_{slot}": draw((rows, 1, DIM), np.float32) for slot in SLOTS}


def _measure(predictor: Any, feed: dict[str, Any]) -> dict[str, float]:
    from_dlpack, handles = paddle().utils.dlpack.from_dlpack, predictor.inputs
    lent: list[Any] = []

    def copy() -> None:
        for name, array in feed.items():
            handles[name].copy_from_cpu(array)

    def lend() -> None:
        lent[:] = [from_dlpack(array) for array in feed.values()]
        for name, tensor in zip(feed, lent, strict=True):
            handles[name].share_external_data(tensor)

    copied = predictor.run(feed)
    lend()
    predictor._run()  # noqa: SLF001 - what `run` does after its copies
    for one, other in zip(copied, predictor.outputs, strict=True):
        np.testing.assert_array_equal(one, other.copy_to_cpu())
    return {"copied_us": _quickest(copy), "lent_us": _quickest(lend)}


def _quickest(work: Callable[[], None]) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.thread_time()
        work()
        best = min(best, time.thread_time() - begin)
    return round(best * 1e6, 1)


if __name__ == "__main__":
    main()
