"""Encoding of 8-bit rows: a minimum and a maximum as float32, then one byte per element.

Encoding divides by 255, and upstream's serving op decodes by 256: the maximum of a row never comes back exactly
(2.0 between -1 and 2 becomes 1.98828). Both sides are reproduced, so that answers agree with upstream's.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloudedge import _core
from cloudedge.errors import InputError

__all__ = ["HEAD_BYTES", "dequantise", "quantise"]

HEAD_BYTES = 8
"""Bytes in front of the codes."""

_CODES = np.float32(256)


def quantise(values: NDArray[Any], *, threads: int | None = None) -> NDArray[np.uint8]:
    """Encode rows (n x dim, finite floats) as n x (8 + dim) bytes.

    Raises:
        InputError: the array is not two-dimensional, or not finite.
    """
    rows = np.ascontiguousarray(values, np.float32)
    if rows.ndim != 2:  # noqa: PLR2004 - rows x dim
        raise InputError(f"rows to quantise are two-dimensional, not {list(rows.shape)}")
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        raise InputError(f"row {int(np.argmin(finite))} holds an infinity or no number; it has no range of codes")
    return _core.quantise(rows, threads or os.cpu_count() or 1)


def dequantise(rows: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode n x (8 + dim) bytes the way upstream's serving op does.

    Raises:
        InputError: the rows are shorter than their head.
    """
    if rows.ndim != 2 or rows.shape[1] < HEAD_BYTES:  # noqa: PLR2004 - rows x bytes
        raise InputError(f"quantised rows are n x (8 + dim) bytes, not {list(rows.shape)}")
    low, high = np.ascontiguousarray(rows[:, :HEAD_BYTES]).view(np.float32).T[:, :, None]
    step: NDArray[np.float32] = (high - low) / _CODES
    decoded: NDArray[np.float32] = step * rows[:, HEAD_BYTES:].astype(np.float32) + low
    return decoded
