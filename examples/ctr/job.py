"""The click model as a job's workers train it together: each on its share of the clicks, exchanging gradients.

python -m paddle.distributed.launch --nproc_per_node 2 --backend gloo examples/ctr/job.py

Writes the network as Paddle's inference model, and how well it scores, into the folder CLOUDEDGE_OUTPUT.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import paddle
from clicks import auc, draw
from network import Trainer
from paddle import distributed


def main() -> None:
    """Train; the first worker saves what all of them learned."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=60_000, help="impressions to train on")
    count = parser.parse_args().count
    distributed.init_parallel_env()
    rank, workers = distributed.get_rank(), distributed.get_world_size()
    share = draw(count, seed=1)[slice(rank, count - count % workers, workers)]  # all shares have the same size
    trainer, test = Trainer(), draw(10_000, seed=3)
    whole, trainer.net = trainer.net, paddle.DataParallel(trainer.net)
    for epoch in range(2):
        trainer.fit(share, seed=epoch)
        found = auc(test.clicked, trainer.score(test))  # the same for all: they differ in their clicks, not in weights
        print(f"worker {rank} of {workers}: pass {epoch} over {len(share)} impressions, AUC {found:.6f}", flush=True)
    if rank == 0:
        output = Path(os.environ["CLOUDEDGE_OUTPUT"])
        trainer.net = whole
        trainer.save(output)
        (output / "metrics.json").write_text(json.dumps({"auc": found}))


if __name__ == "__main__":
    main()
