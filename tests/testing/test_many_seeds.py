"""Very many seeds: stopped and continued, none twice and none left out."""

from __future__ import annotations

import pytest

from cloudedge.testing import Report, Result, Violation
from tests.testing.many_seeds import run, source_digest

pytestmark = pytest.mark.rules


def report(count, *, first_seed, jobs):
    failing = [Result(seed, (Violation("mixed", "two versions", 1.0),), 1, 1) for seed in (25,)]
    mine = tuple(each for each in failing if first_seed <= each.seed < first_seed + count)
    return Report(count, first_seed, len(mine), mine, 10, 10, {}, {}, 1.0)


def test_what_was_done_is_not_done_again(tmp_path, capsys):
    asked = []

    def stopping(count, **how):
        asked.append((how["first_seed"], count))
        if len(asked) == 3:
            raise KeyboardInterrupt
        return report(count, **how)

    state = tmp_path / "out" / "seeds.jsonl"
    with pytest.raises(KeyboardInterrupt):
        run(45, state, chunk=10, run_chunk=stopping)
    assert run(45, state, chunk=10, run_chunk=stopping) == [25]
    assert asked == [(0, 10), (10, 10), (20, 10), (20, 10), (30, 10), (40, 5)]
    assert run(45, state, chunk=10, run_chunk=stopping) == [25]
    assert len(asked) == 6
    assert "20 of 45 seeds, 10 a second" in capsys.readouterr().err


def test_other_source_is_counted_anew(tmp_path):
    (tmp_path / "a.py").write_text("1")
    before = source_digest(tmp_path)
    (tmp_path / "a.py").write_text("2")
    assert source_digest(tmp_path) != before
