"""Train the click network, save it, train on and save it again: steps 1 and 2 of `run.py`, to do the rest by hand.

    python examples/ctr/train.py FOLDER

FOLDER/v1/whole, FOLDER/v2/whole   the network as Paddle's inference model, before and after training on
FOLDER/dense.npy, FOLDER/ids.npy   three impressions to ask for
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from clicks import auc, draw
from network import Trainer


def main(folder: Path) -> None:
    """Train and save."""
    clicks, test = draw(60_000, seed=1), draw(10_000, seed=3)
    trainer = Trainer()
    for epoch in range(2):
        trainer.fit(clicks, seed=epoch)
    for name in ("v1", "v2"):
        if name == "v2":
            trainer.fit(draw(6_000, seed=2), seed=9, rate=1e-3)
        trainer.save(folder / name / "whole")
        scores = trainer.score(test)
        print(f"{name}: AUC {auc(test.clicked, scores):.4f}; the first three of the test score {scores[:3]}")
    np.save(folder / "dense.npy", test.dense[:3])
    np.save(folder / "ids.npy", test.ids[:3])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
