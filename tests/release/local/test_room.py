"""Where there is no room for three versions: what came before the live one goes first, on real servers too."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cloudedge.release.places._servers import ShardPlace

pytestmark = pytest.mark.parts


def held(world):
    return {place.name: set(place.versions) for place in world.target.status().places}


def trimmed(plan, pin):
    return {step.place for step in plan.steps if step.stage.endswith(".trim") and step.pin == pin}


def test_what_came_before_the_live_one_makes_room(world, monkeypatch):
    before = world.live
    live = world.fresh()
    world.release(live)
    coming, observe, free = world.fresh(), ShardPlace.observe, 0
    monkeypatch.setattr(ShardPlace, "observe", lambda self: replace(observe(self), free_memory_bytes=free))
    too_little, enough = 0, 2**40
    while enough - too_little > 1:  # what a version needs depends on what it is a delta of
        free = (too_little + enough) // 2
        plan = world.target.plan(coming.bundle)
        is_enough = not plan.refusals and not trimmed(plan, before.pin)
        too_little, enough = (too_little, free) if is_enough else (free, enough)
    free = too_little
    plan = world.target.plan(coming.bundle)
    assert trimmed(plan, before.pin) == set(held(world))
    with world.load() as load:
        outcome = world.target.apply(plan).wait()
        load.until(20, coming.pin)
        assert outcome.owed == {}
        assert set(map(frozenset, held(world).values())) == {frozenset({live.pin, coming.pin})}
        back = world.target.rollback()
        load.until(20, live.pin)
    assert load.broken == ([], [])
    assert (back.state, back.bytes) == ("done", 0)
