"""One rule decides whether an answer is the recorded one."""

from __future__ import annotations

import numpy as np
import pytest

from cloudedge.bundle import ProbeRequest
from cloudedge.bundle.contents import compare_answer, largest_difference
from cloudedge.errors import InputError

pytestmark = pytest.mark.rules

PROBE = ProbeRequest(feed={}, expect={"y": [[1.0, 2.0]], "text": "yes"}, tolerance=0.1)


@pytest.mark.parametrize("found", [[[1.0, 2.0]], [[1.05, 1.95]], np.array([[1, 2]])])
def test_an_answer_within_the_tolerance(found):
    compare_answer(PROBE, "y", found)


@pytest.mark.parametrize(
    ("name", "found", "why"),
    [
        ("y", None, "y is not among what it answers"),
        ("y", [1.0, 2.0], r"y has shape \[2\], expected \[1, 2\]"),
        ("y", [[1.0, 2.5]], "y is off by 0.5, allowed are 0.1"),
        ("y", [[1.0, np.nan]], "y is off by nan"),
        ("text", "no", "text is 'no', expected 'yes'"),
    ],
)
def test_another_answer_is_refused(name, found, why):
    with pytest.raises(InputError, match=why):
        compare_answer(PROBE, name, found)


def test_the_caller_may_read_the_array():
    compare_answer(PROBE, "y", "1 2", read=lambda _, text: np.array([[float(each) for each in text.split()]]))
    compare_answer(PROBE, "text", "yes", read=pytest.fail)


def test_nothing_does_not_differ():
    assert largest_difference(np.empty(0, np.float32), np.empty(0, np.int64)) == 0.0
