"""Clicks as Criteo's data set has them: 13 numbers and 26 categories per impression, and whether somebody clicked.

The categories are as uneven as real ones (a few are everywhere, most are rare), and every one of them has an effect
on the click that was planted here. A model that finds it scores; how well it could score at best is known.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DENSE, SLOTS, PER_SLOT = 13, 26, 20_000
ROWS = SLOTS * PER_SLOT
"""Rows of the one embedding table all slots share: a slot's ids follow those of the slot before."""


@dataclass(frozen=True)
class Clicks:
    """Impressions, one per row."""

    dense: NDArray[np.float32]
    ids: NDArray[np.int64]
    clicked: NDArray[np.float32]
    truth: NDArray[np.float32]
    """What the click was drawn from; no model gets to see it."""

    def __len__(self) -> int:
        return len(self.clicked)

    def __getitem__(self, rows: slice | NDArray[np.int64]) -> Clicks:
        return Clicks(self.dense[rows], self.ids[rows], self.clicked[rows], self.truth[rows])


def draw(count: int, *, seed: int) -> Clicks:
    """Draw impressions; the planted effects are the same for every seed."""
    planted = np.random.default_rng(20)
    weights = planted.normal(0, 0.25, DENSE).astype(np.float32)
    effects = planted.normal(0, 0.35, ROWS).astype(np.float32)

    rng = np.random.default_rng(seed)
    dense = rng.standard_normal((count, DENSE), dtype=np.float32)
    rank = np.minimum(rng.pareto(0.9, (count, SLOTS)) * 20, PER_SLOT - 1).astype(np.int64)
    ids = rank + np.arange(SLOTS) * PER_SLOT
    truth = dense @ weights + effects[ids].sum(axis=1) - np.float32(1.2)
    clicked = (rng.random(count) < 1 / (1 + np.exp(-truth))).astype(np.float32)
    return Clicks(dense, ids, clicked, truth)


def auc(clicked: NDArray[np.float32], score: NDArray[np.float32]) -> float:
    """Return the chance that a click scores above a non-click."""
    rank = np.empty(len(score))
    rank[np.argsort(score, kind="stable")] = np.arange(1, len(score) + 1)
    positives = clicked.sum()
    return float(
        (rank[clicked == 1].sum() - positives * (positives + 1) / 2) / (positives * (len(clicked) - positives))
    )
