"""Where there is no room for three versions: what came before the live one goes first, on real servers too."""

from __future__ import annotations

from dataclasses import replace

from cloudedge.release._servers import ShardPlace


def held(world):
    return {place.name: set(place.versions) for place in world.target.status().places}


def test_what_came_before_the_live_one_makes_room(world, monkeypatch):
    before = world.live
    live = world.fresh()
    world.release(live)
    observe = ShardPlace.observe
    monkeypatch.setattr(ShardPlace, "observe", lambda self: replace(observe(self), memory_free_bytes=0))
    coming = world.fresh()
    plan = world.target.plan(coming.bundle)
    trimmed = {step.place for step in plan.steps if step.stage.endswith(".trim") and step.pin == before.pin}
    assert trimmed == set(held(world))
    with world.load() as load:
        outcome = world.target.apply(plan).wait(120)
        load.until(20, coming.pin)
        assert outcome.owed == {}
        assert set(map(frozenset, held(world).values())) == {frozenset({live.pin, coming.pin})}
        back = world.target.rollback()
        load.until(20, live.pin)
    assert load.broken == ([], [])
    assert (back.state, back.bytes) == ("done", 0)
