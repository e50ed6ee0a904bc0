"""How good a detector is: mean average precision at an overlap of one half, as Pascal VOC defines it since 2010."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


def overlap(boxes: Array, others: Array) -> Array:
    """Return the intersection over union of every box with every other; boxes are left, top, right, bottom."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    common = np.prod(np.clip(high - low, 0, None), axis=2)
    areas = [np.prod(b[:, 2:] - b[:, :2], axis=1) for b in (boxes, others)]
    return common / np.maximum(areas[0][:, None] + areas[1][None] - common, 1e-9)


def average_precision(found: Sequence[Array], truth: Sequence[Array], *, at_least: float = 0.5) -> float:
    """Return the average precision for one category.

    Args:
        found: For each picture: rows of score, left, top, right, bottom.
        truth: For each picture: rows of left, top, right, bottom.
        at_least: The overlap from which a box counts as found.

    Returns:
        The area below the curve of precision over recall, or NaN if there was nothing to find.
    """
    wanted = sum(map(len, truth))
    if not wanted:
        return float("nan")
    ranked = sorted(((row[0], i, row[1:]) for i, rows in enumerate(found) for row in rows), key=lambda one: -one[0])
    taken = [np.zeros(len(boxes), bool) for boxes in truth]
    hits = np.zeros(len(ranked))
    for rank, (_, picture, box) in enumerate(ranked):
        if not len(truth[picture]):
            continue
        overlaps = overlap(box[None], truth[picture])[0]
        best = int(overlaps.argmax())
        if overlaps[best] >= at_least and not taken[picture][best]:
            taken[picture][best] = True
            hits[rank] = 1
    recall = np.concatenate([[0], hits.cumsum() / wanted])
    precision = np.concatenate([hits.cumsum() / np.arange(1, len(hits) + 1), [0]])
    best_from_here = np.maximum.accumulate(precision[::-1])[::-1][:-1]
    return float((np.diff(recall) * best_from_here).sum())


def mean_average_precision(found: Sequence[Array], truth: Sequence[tuple[NDArray[np.int32], Array]]) -> float:
    """Return the mean over the categories that occur.

    Args:
        found: For each picture: rows of category, score, left, top, right, bottom.
        truth: For each picture: categories, and boxes.
    """
    categories = sorted({int(label) for labels, _ in truth for label in labels})
    return float(
        np.mean(
            [
                average_precision(
                    [rows[rows[:, 0] == category][:, 1:] for rows in found],
                    [boxes[labels == category] for labels, boxes in truth],
                )
                for category in categories
            ]
        )
    )
