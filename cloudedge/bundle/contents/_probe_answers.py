"""The comparison of an answer with the recorded one. Every part of cloudedge that asks probes uses it.

The entrypoint of edge containers is a file of its own without cloudedge, and has the same rule for plain lists.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloudedge.bundle.contents._parts import ProbeRequest
from cloudedge.errors import InputError

__all__ = ["compare_answer", "largest_difference"]


def compare_answer(
    probe: ProbeRequest, name: str, found: Any, *, read: Callable[[str, Any], NDArray[Any]] | None = None
) -> None:
    """Compare one output of a model with a probe's.

    Args:
        probe: The recorded request with its expected answer.
        name: The output's name in the probe.
        found: The answer, an array or a text; None if there is none.
        read: Reads an array from the answer, where it is not one yet.

    Raises:
        InputError: the answer differs; the message says how.
    """
    expected = probe.expect[name]
    if found is None:
        raise InputError(f"{name} is not among what it answers")
    if isinstance(expected, str):
        if found != expected:
            raise InputError(f"{name} is {str(found)[:100]!r}, expected {expected[:100]!r}")
        return
    wanted, answer = np.asarray(expected), np.asarray(found) if read is None else read(name, found)
    if answer.shape != wanted.shape:
        raise InputError(f"{name} has shape {list(answer.shape)}, expected {list(wanted.shape)}")
    difference = largest_difference(answer, wanted)
    if not difference <= probe.tolerance:  # not "greater": what is not a number is not near either
        raise InputError(f"{name} is off by {difference:g}, allowed are {probe.tolerance:g}")


def largest_difference(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Return the largest absolute difference between two arrays of one shape; not a number if one has none."""
    return float(np.max(np.abs(one.astype(np.float64) - other.astype(np.float64)), initial=0.0))
