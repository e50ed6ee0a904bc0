"""What an update of an edge node costs: bytes that travel when 1 % of a table's rows change, against the whole zip.

    python bench/edge_delta.py [--mb 100] [--share 0.01] [--json]

A lab, and one node of ours in this process that runs the model as a process. Version 1 is a bundle of about `--mb`
megabytes, nearly all of them a table; version 2 changes `--share` of its rows. Bytes are what the lab sent.
Exit code 1 when the update takes more than 3 % of the zip that stock BIE would send.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "edge_node"), str(ROOT / "tests")]

from edge_world import make_bundle, make_world, noise, settle  # noqa: E402 - the tests' world, so that both mean the same
from models import make_table  # noqa: E402

from cloudedge.bundle import export_zip  # noqa: E402
from cloudedge.supervisor import down  # noqa: E402

BAR = 0.03
DIM = 64


def measure(folder: Path, mb: float, share: float) -> dict[str, float]:
    world = make_world(folder)
    world.add_node()
    rows = int(mb * 1e6 / (8 + 4 * DIM))
    table = make_table(rows=rows, dim=DIM)
    dense = {"weights": noise(200_000, 1)}
    changed = {name: array.copy() for name, array in table.items()}
    at = np.random.default_rng(1).choice(rows, max(1, int(rows * share)), replace=False)
    changed["values"][at] = make_table(rows=rows, dim=DIM, seed=9)["values"][at]
    first = make_bundle(world.hub, folder, 1, files=dense, sparse={"emb": table})
    second = make_bundle(world.hub, folder, 2, files=dense, sparse={"emb": changed}, parent=first)
    whole = export_zip(second, folder / "second.zip").stat().st_size
    agent = world.agent()
    sent = []
    try:
        for bundle in (first, second):
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
    return {"zip_bytes": whole, "install_bytes": sent[0], "update_bytes": sent[1], "share": sent[1] / whole, "bar": BAR}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=float, default=100)
    parser.add_argument("--share", type=float, default=0.01)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), options.mb, options.share)
    if options.json:
        print(json.dumps(found))
    else:
        print(f"zip, as stock BIE sends it   {found['zip_bytes']:>12,} bytes")
        print(f"first install                {found['install_bytes']:>12,} bytes")
        print(f"update of {options.share:.1%} of the rows   {found['update_bytes']:>12,} bytes  {found['share']:.2%}")
    return int(found["share"] > BAR)


if __name__ == "__main__":
    sys.exit(main())
