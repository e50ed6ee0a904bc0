"""Pictures, made up: a few rings, squares and triangles on a noisy background, and where they are."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

NAMES = ("ring", "square", "triangle")
"""The categories; a category's id is its place in here."""
SIDE = 64
MOST = 4
"""Shapes in one picture."""
SIZES = (13.0, 19.0, 28.0)
"""Shapes are small, medium or large, each a little more or less, and a little wider or higher."""
_VARY = 0.15
_TRIES = 20
_TILT = 0.15


@dataclass(frozen=True)
class Picture:
    """A picture and the truth about it."""

    pixels: NDArray[np.uint8]
    """Height x width x RGB."""
    boxes: NDArray[np.float32]
    """One row per shape: left, top, right, bottom, in pixels."""
    labels: NDArray[np.int32]

    def png(self) -> bytes:
        """Return it as a file that any client could send."""
        file = io.BytesIO()
        Image.fromarray(self.pixels).save(file, "PNG")
        return file.getvalue()


def draw(rng: np.random.Generator) -> Picture:
    """Draw one picture."""
    background = rng.integers(0, 90, 3)
    image = Image.new("RGB", (SIDE, SIDE), tuple(int(c) for c in background))
    pen = ImageDraw.Draw(image)
    boxes: list[tuple[float, float, float, float]] = []
    labels: list[int] = []
    # The largest first: later there would be no room for it.
    for size in sorted(rng.choice(SIZES, int(rng.integers(1, MOST + 1))), reverse=True):
        label = int(rng.integers(len(NAMES)))
        across = size * rng.uniform(1 - _VARY, 1 + _VARY, 2)
        points = _outline(label, float(rng.uniform(-_TILT, _TILT)))
        points = (points - points.min(axis=0)) / np.ptp(points, axis=0) * across
        places = [rng.uniform(1, SIDE - across - 1) for _ in range(_TRIES)]
        corner = next((p for p in places if not any(_touch((*p, *(p + across)), other) for other in boxes)), None)
        if corner is None:
            continue
        points += corner
        box = (*corner, *(corner + across))
        pen.polygon([tuple(point) for point in points], fill=tuple(int(c) for c in rng.integers(130, 256, 3)))
        if NAMES[label] == "ring":
            hole = (points + points.mean(axis=0)) / 2
            pen.polygon([tuple(point) for point in hole], fill=tuple(int(c) for c in background))
        boxes.append(box)
        labels.append(label)
    noise = rng.normal(0, rng.uniform(2, 8), (SIDE, SIDE, 3)) + np.linspace(-20, 20, SIDE)[:, None, None]
    pixels = np.clip(np.asarray(image, np.float32) + noise, 0, 255).astype(np.uint8)
    return Picture(pixels, np.array(boxes, np.float32).reshape(-1, 4), np.array(labels, np.int32))


def draw_many(count: int, *, seed: int) -> list[Picture]:
    """Draw pictures, the same ones for the same seed."""
    rng = np.random.default_rng(seed)
    return [draw(rng) for _ in range(count)]


def _outline(label: int, turn: float) -> NDArray[np.float64]:
    corner_count = {"ring": 40, "square": 4, "triangle": 3}[NAMES[label]]
    first = {"ring": 0.0, "square": math.pi / 4, "triangle": -math.pi / 2}[NAMES[label]]
    angles = first + turn + np.arange(corner_count) * math.tau / corner_count
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def _touch(one: tuple[float, ...], other: tuple[float, ...], apart: float = -2.0) -> bool:
    return (
        min(one[2], other[2]) - max(one[0], other[0]) > apart and min(one[3], other[3]) - max(one[1], other[1]) > apart
    )
