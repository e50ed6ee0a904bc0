"""Tables of smaller numbers: shards hold them as they are, and answers are those of the whole model."""

from __future__ import annotations

import pytest

from tests.release.local.world import make

pytestmark = pytest.mark.parts


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_rows_of_smaller_numbers(world, tmp_path, dtype):
    usual = world.live
    first = make(tmp_path / "first", 40, dtype=dtype)
    second = make(tmp_path / "second", 41, dtype=dtype, parent=first)
    world.made += [first, second]
    with world.load() as load:
        refused = world.target.plan(first.bundle)
        assert {refusal.rule for refusal in refused.refusals} == {"tables"}
        world.release(first, allow_signature_change=True)
        load.until(50, first.pin)
        world.release(second)
        load.until(50, second.pin)
        assert world.target.rollback().bytes == 0
        load.until(20, first.pin)
        world.release(usual, allow_signature_change=True)
        load.until(20, usual.pin)
    assert load.broken == ([], [])
    assert {first.pin, second.pin} < {pin for *_, pin in load.answered}
