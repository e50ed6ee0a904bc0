"""What an update of an edge node costs: bytes that travel when 1 % of a model changes, against the whole zip.

    python bench/edge_delta.py [--mb 100] [--share 0.01] [--json]

A lab, and one node of ours in this process that runs the model as a process. Each model has about `--mb` megabytes, and
`--share` of it changes from one version to the next:

    rows       nearly all of it is a table; so many of its rows change, and travel as a delta
    anew       the same, packed without its parent, as happens when a chain of deltas has become too long or too heavy
    one file   dense, in one file; so many of its bytes change, and the file travels whole
    files      dense, in a hundred files; one of them changes, and travels

Bytes are what the lab sent. Exit code 1 when the update by rows takes more than 3 % of the zip that stock BIE sends.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

# The tests' world, so that both mean the same.
from cloudedge.bundle import Bundle, export_zip  # noqa: E402
from cloudedge.supervisor import down  # noqa: E402
from tests.edge_bie.node.world import World, make_bundle, make_world, noise, settle  # noqa: E402
from tests.models import make_table  # noqa: E402

BAR = 0.03
DIM = 64


FILES = 100


def by_rows(world: World, folder: Path, size: int, share: float, *, is_anew: bool = False) -> tuple[Bundle, Bundle]:
    rows = int(size / (8 + 4 * DIM))
    table = make_table(rows=rows, dim=DIM)
    dense = {"weights": noise(200_000, 1)}
    changed = {name: array.copy() for name, array in table.items()}
    at = np.random.default_rng(1).choice(rows, max(1, int(rows * share)), replace=False)
    changed["values"][at] = make_table(rows=rows, dim=DIM, seed=9)["values"][at]
    first = make_bundle(world.hub, folder, 1, files=dense, sparse={"emb": table})
    parent = None if is_anew else first
    return first, make_bundle(world.hub, folder, 2, files=dense, sparse={"emb": changed}, parent=parent)


def dense(world: World, folder: Path, size: int, share: float, *, files: int = 1) -> tuple[Bundle, Bundle]:
    weights = {f"weights-{number}": noise(size // files, number) for number in range(files)}
    first = make_bundle(world.hub, folder, 1, files=weights)
    old = bytearray(weights["weights-0"])
    old[: max(1, int(size * share))] = noise(max(1, int(size * share)), 999)
    return first, make_bundle(world.hub, folder, 2, files={**weights, "weights-0": bytes(old[: size // files])})


CASES = {
    "rows": by_rows,
    "anew": partial(by_rows, is_anew=True),
    "one file": dense,
    "files": partial(dense, files=FILES),
}


def measure(folder: Path, make: Callable[..., tuple[Bundle, Bundle]], mb: float, share: float) -> dict[str, float]:
    world = make_world(folder)
    world.add_node()
    bundles = make(world, folder, int(mb * 1e6), share)
    whole = export_zip(bundles[1], folder / "second.zip").stat().st_size
    agent = world.agent()
    sent = []
    try:
        for bundle in bundles:
            before = sum(world.lab.traffic().values())
            world.release(bundle)
            settle(agent)
            if world.asks() != int(bundle.version):
                raise SystemExit(f"version {bundle.version} did not come live")
            sent.append(sum(world.lab.traffic().values()) - before)
    finally:
        agent.close()
        down(folder / "n1" / "processes")
        world.bie.close()
        world.lab.close()
    return {"zip_bytes": whole, "install_bytes": sent[0], "update_bytes": sent[1], "share": sent[1] / whole}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=float, default=100)
    parser.add_argument("--share", type=float, default=0.01)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = {}
    for name, make in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            found[name] = measure(Path(folder), make, options.mb, options.share)
    if options.json:
        print(json.dumps({"bar": BAR, **found}))
    else:
        print(f"{options.share:.1%} changed      as a zip   first install          update")
        for name, each in found.items():
            print(
                f"{name:<10} {each['zip_bytes']:>12,}    {each['install_bytes']:>12,}    {each['update_bytes']:>12,}"
                f"  {each['share']:.2%}"
            )
    return int(found["rows"]["share"] > BAR)


if __name__ == "__main__":
    sys.exit(main())
