"""Training: from scratch, or the outputs alone on features that stay as they are."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import paddle
from detector import Detector
from numpy.typing import NDArray
from precision import mean_average_precision
from shapes import MOST, SIDE, Picture

_BATCH = 8
_SCOPE = re.compile(r'("D":")[^"]*("},"N":"struct_name")')
"""Where an operator came from, with a number that grows with every save: the same program would be another file."""


class Trainer:
    """A detector and how it learns."""

    def __init__(self, *, seed: int = 1) -> None:
        paddle.seed(seed)
        self.net = Detector()

    def fit(
        self,
        pictures: Sequence[Picture],
        *,
        steps: int,
        rate: float,
        seed: int,
        outputs_only: bool = False,
        progress: Callable[[int, float], None] = lambda _step, _loss: None,
    ) -> None:
        """Learn from batches of the pictures, turned and mirrored at random.

        Args:
            pictures: To learn from.
            steps: How many batches.
            rate: The learning rate; it rises to this at the beginning and falls to nothing in the second half.
            seed: Of the choice of pictures.
            outputs_only: Leave everything else as it is, to the bit.
            progress: Told the step and the loss.
        """
        self.net.train()
        learns = self.net.outputs if outputs_only else self.net
        if outputs_only:
            self.net.features.eval()  # or its running means would move
            for parameter in self.net.features.parameters():
                parameter.stop_gradient = True
        adam = paddle.optimizer.Adam(
            rate, parameters=learns.parameters(), grad_clip=paddle.nn.ClipGradByGlobalNorm(50.0)
        )
        rng = np.random.default_rng(seed)
        for step in range(steps):
            adam.set_lr(rate * min(1.0, (step + 1) / (0.05 * steps), (steps - step) / (0.5 * steps)))
            chosen = rng.choice(len(pictures), _BATCH)
            loss = self.net.loss(*_tensors([turned(pictures[i], int(rng.integers(2))) for i in chosen]))
            loss.backward()
            adam.step()
            adam.clear_grad()
            progress(step, float(loss))

    def answer(self, pixels: NDArray[np.uint8], shapes: NDArray[np.int32]) -> NDArray[np.float32]:
        """Answer as the saved model does."""
        self.net.eval()
        with paddle.no_grad():
            rows: NDArray[np.float32] = self.net(paddle.to_tensor(pixels), paddle.to_tensor(shapes)).numpy()
        return rows

    def find(self, pictures: Sequence[Picture]) -> list[NDArray[np.float32]]:
        """Return what the detector finds: rows of category, score, left, top, right, bottom for each picture."""
        found: list[NDArray[np.float32]] = []
        for start in range(0, len(pictures), 50):
            pixels = np.stack([picture.pixels for picture in pictures[start : start + 50]])
            rows = self.answer(pixels, np.full((len(pixels), 2), SIDE, np.int32))
            found += [of_one[of_one[:, 0] >= 0] for of_one in rows]
        return found

    def precision(self, pictures: Sequence[Picture]) -> float:
        """Return the mean average precision on pictures, at an overlap of one half."""
        return mean_average_precision(self.find(pictures), [(p.labels, p.boxes) for p in pictures])

    def save(self, folder: Path) -> Path:
        """Save it as Paddle's inference model, what the outputs learn in a file of its own; returns the folder.

        Paddle joins parameters in the order of their names. So those of the features are the beginning of the file, and
        they are what the features saved alone have in their file.
        """
        self.net.eval()
        for parameter in self.net.parameters():
            parameter.stop_gradient = False  # is written down with each of them, and whoever froze one is gone
        image = paddle.static.InputSpec([None, SIDE, SIDE, 3], "uint8", "image")
        shape = paddle.static.InputSpec([None, 2], "int32", "im_shape")
        alone = paddle.static.InputSpec([None, 3, SIDE, SIDE], "float32", "x")
        with tempfile.TemporaryDirectory() as made:
            paddle.jit.save(self.net, f"{made}/whole", input_spec=[image, shape])
            paddle.jit.save(self.net.features, f"{made}/features", input_spec=[alone])
            whole, features = (Path(made, f"{name}.pdiparams").read_bytes() for name in ("whole", "features"))
            if not whole.startswith(features):
                raise SystemExit("this Paddle orders parameters in another way")
            folder.mkdir(parents=True)
            program = Path(made, "whole.json").read_text(encoding="utf-8")
            (folder / "model.json").write_text(_SCOPE.sub(r"\1\2", program), encoding="utf-8")
            (folder / "model.features.pdiparams").write_bytes(features)
            (folder / "model.outputs.pdiparams").write_bytes(whole[len(features) :])
        return folder


def turned(picture: Picture, way: int) -> Picture:
    """Return a picture in one of its eight orientations."""
    pixels, boxes = picture.pixels, picture.boxes
    if way & 1:
        pixels, boxes = pixels[:, ::-1], np.stack([SIDE - boxes[:, 2], boxes[:, 1], SIDE - boxes[:, 0], boxes[:, 3]], 1)
    if way & 2:
        pixels, boxes = pixels[::-1], np.stack([boxes[:, 0], SIDE - boxes[:, 3], boxes[:, 2], SIDE - boxes[:, 1]], 1)
    if way & 4:
        pixels, boxes = pixels.transpose(1, 0, 2), boxes[:, [1, 0, 3, 2]]
    return Picture(np.ascontiguousarray(pixels), boxes, picture.labels)


def _tensors(pictures: Sequence[Picture]) -> list[paddle.Tensor]:
    """Return pixels, boxes and labels as the loss takes them; an empty box means there is none."""
    boxes = np.zeros((len(pictures), MOST, 4), np.float32)
    labels = np.zeros((len(pictures), MOST), np.int32)
    for i, picture in enumerate(pictures):
        low, high = picture.boxes[:, :2] / SIDE, picture.boxes[:, 2:] / SIDE
        boxes[i, : len(low)] = np.concatenate([(low + high) / 2, high - low], axis=1)
        labels[i, : len(low)] = picture.labels
    return [paddle.to_tensor(a) for a in (np.stack([picture.pixels for picture in pictures]), boxes, labels)]
