"""The page of faults is what the tests prove."""

from __future__ import annotations

import pytest

from tests.faults import AREAS, PAGE, collect, render

pytestmark = pytest.mark.rules


def test_the_page_is_made_of_the_tests():
    faults = collect()
    assert PAGE.read_text(encoding="utf-8") == render(faults), "run `python -m tests.faults`"
    assert {fault.area for fault in faults} == set(AREAS), "no area is left without a proof"
    assert len({fault.fault for fault in faults}) == len(faults), "a fault has one line"


def test_a_line_fits_into_a_table():
    for fault in collect():
        for text in (fault.fault, fault.happens, fault.cure):
            assert "|" not in text
            assert "\n" not in text
            assert not text.endswith(".")
