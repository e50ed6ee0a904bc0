"""The network: one wide embedding table for all 26 slots, and a small deep net on top of it and of the 13 numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import paddle
from clicks import DENSE, ROWS, SLOTS, Clicks
from numpy.typing import NDArray
from paddle import nn

WIDTH = 8
_BATCH = 500


class ClickNet(nn.Layer):  # type: ignore[misc]
    """Click probability of impressions."""

    def __init__(self) -> None:
        super().__init__()
        start = nn.initializer.Normal(0.0, 0.01)
        self.embedding = nn.Embedding(ROWS, WIDTH, sparse=True, weight_attr=paddle.ParamAttr("embedding", start))
        self.deep = nn.Sequential(
            nn.Linear(DENSE + SLOTS * WIDTH, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)
        )

    def forward(self, dense: paddle.Tensor, ids: paddle.Tensor) -> paddle.Tensor:
        """Score a batch."""
        rows = self.embedding(ids).reshape([-1, SLOTS * WIDTH])
        return nn.functional.sigmoid(self.deep(paddle.concat([dense, rows], axis=1)))


class Trainer:
    """A network and its optimiser, which touches only the rows that a batch looks up."""

    def __init__(self, *, seed: int = 1) -> None:
        paddle.seed(seed)
        self.net = ClickNet()
        self._adam = paddle.optimizer.Adam(2e-3, parameters=self.net.parameters(), lazy_mode=True)

    def fit(self, clicks: Clicks, *, seed: int, rate: float = 2e-3) -> None:
        """Go over the impressions once."""
        self.net.train()
        self._adam.set_lr(rate)
        order = np.random.default_rng(seed).permutation(len(clicks))
        for start in range(0, len(order), _BATCH):
            batch = clicks[order[start : start + _BATCH]]
            score = self.net(paddle.to_tensor(batch.dense), paddle.to_tensor(batch.ids))
            nn.functional.binary_cross_entropy(score, paddle.to_tensor(batch.clicked[:, None])).backward()
            self._adam.step()
            self._adam.clear_grad()

    def score(self, clicks: Clicks) -> NDArray[np.float32]:
        """Answer with the whole network, as it was trained: what serving has to agree with."""
        self.net.eval()
        with paddle.no_grad():
            scores: NDArray[np.float32] = self.net(paddle.to_tensor(clicks.dense), paddle.to_tensor(clicks.ids)).numpy()
        return scores[:, 0]

    def keep(self, file: Path) -> None:
        """Write the weights."""
        paddle.save(self.net.state_dict(), str(file))

    def restore(self, file: Path) -> None:
        """Go on from weights that were kept."""
        self.net.set_state_dict(paddle.load(str(file)))

    def save(self, folder: Path) -> Path:
        """Save the whole network as Paddle's inference model; returns its prefix."""
        self.net.eval()
        inputs = [
            paddle.static.InputSpec([None, DENSE], "float32", "dense"),
            paddle.static.InputSpec([None, SLOTS], "int64", "ids"),
        ]
        paddle.jit.save(self.net, str(folder / "model"), input_spec=inputs)
        return folder / "model"
