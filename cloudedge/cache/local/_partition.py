"""Which partition caches which file: dealt in turn, or at random, as the runtime of a cluster deals them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

__all__ = ["deal"]


def deal(
    files: Sequence[str], partitions: int, strategy: Literal["sequence", "random"], *, seed: int = 0
) -> list[list[str]]:
    """Deal files to partitions: every file to exactly one, as many to each as can be.

    Args:
        files: In the order in which they are read.
        partitions: How many.
        strategy: ``sequence`` fits readers that go through in order, ``random`` readers that draw batches at random.
        seed: Makes a random deal the same every time.
    """
    order = list(files)
    if strategy == "random":
        random.Random(seed).shuffle(order)  # noqa: S311 - spreads files, hides nothing
    return [order[partition::partitions] for partition in range(partitions)]
