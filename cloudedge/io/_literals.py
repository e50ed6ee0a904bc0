"""Python literals, read by one thread at a time.

CPython up to 3.11.7 counts the depth of the syntax tree it makes once for all threads. If another thread makes one in
between, which takes a garbage collection at the wrong moment, the first raises SystemError. numpy reads the header of
every array that way.
"""

from __future__ import annotations

import ast
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["parse_literal", "read_npz"]

_one_at_a_time = threading.Lock()


def parse_literal(text: str) -> Any:
    """Read what Python writes for numbers, texts and lists; never evaluates code.

    Raises:
        ValueError, TypeError, SyntaxError, RecursionError, MemoryError: as `ast.literal_eval` does.
    """
    with _one_at_a_time:
        return ast.literal_eval(text)


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Read all arrays of an ``.npz`` file into memory."""
    import numpy as np  # noqa: PLC0415 - slow to import

    with _one_at_a_time, np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)
