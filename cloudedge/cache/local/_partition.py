"""The distribution of files to partitions, in turn or at random, as a cluster's runtime does it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

__all__ = ["deal"]


def deal(
    files: Sequence[str], partitions: int, strategy: Literal["sequence", "random"], *, seed: int = 0
) -> list[list[str]]:
    """Distribute files to partitions evenly, each file to exactly one.

    Args:
        files: The files in the order of reading.
        partitions: The number of partitions.
        strategy: ``sequence`` suits readers that read in order, ``random`` readers that draw batches at random.
        seed: Makes a random distribution repeatable.
    """
    order = list(files)
    if strategy == "random":
        random.Random(seed).shuffle(order)  # noqa: S311 - spreads files, hides nothing
    return [order[partition::partitions] for partition in range(partitions)]
