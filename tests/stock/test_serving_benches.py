"""The benchmarks of serving measure answers, and see what they are there to see."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import serving_wire  # found through the line above


@pytest.mark.parametrize("rows", [1, 3])
def test_every_codec_answers_what_its_reader_reads(rows):
    for way in serving_wire.ways(rows).values():
        assert asyncio.run(serving_wire.measure(way, rows, 2)) >= 0


def test_a_codec_that_answers_with_errors_is_not_measured(monkeypatch):
    monkeypatch.delattr(serving_wire.Constant, "hold")
    for way in serving_wire.ways(1).values():
        with pytest.raises((AssertionError, LookupError)):
            asyncio.run(serving_wire.measure(way, 1, 2))
