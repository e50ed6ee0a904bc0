"""Canaries: judged, taken back, paused, promoted by somebody else, and watched on after a crash."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cloudedge.clock import ManualClock
from cloudedge.errors import Unavailable
from cloudedge.release import Health, Limits, Options, Traffic, Unfinished
from cloudedge.testing import FolderPlace
from tests.release.parts import active, all_on, folder_places, folder_target

pytestmark = pytest.mark.rules

OPTIONS = Options(canary=0.1, bake_s=60, limits=Limits(score_drift=1.0))


class Watched(FolderPlace):
    """A serving replica whose canary does as it is told."""

    canary = Traffic(requests=100, scores=100, score_sum=50, score_squares=26)
    live = Traffic(requests=1000, scores=1000, score_sum=500, score_squares=260)

    def watch(self):
        pins = list(self.observe().active)
        return Health(dict(zip(pins, (self.live, self.canary), strict=False)))


def watched(tmp_path, **traffic):
    kind = type("Watched", (Watched,), {"canary": replace(Watched.canary, **traffic)})
    return [
        kind(tmp_path / "places", p.name, p.leg) if p.leg == "dense" else p for p in folder_places(tmp_path / "places")
    ]


def test_a_good_canary_becomes_the_release(tmp_path, hub, made):
    clock = ManualClock()
    target = folder_target(tmp_path, hub, places=watched(tmp_path), clock=clock)
    target.run(target.plan(made[0]))
    began = clock.elapsed
    assert target.run(target.plan(made[1], OPTIONS)).state == "done"
    assert clock.elapsed - began >= 60
    entries = target._context.journal.entries(2)
    canary = next(e for e in entries if e.step == "dense.canary:dense/0" and e.what == "intent")
    assert canary.detail["shares"] == {made[0].pin: 0.9, made[1].pin: 0.1}
    baked = next(e for e in entries if e.step == "bake" and e.what == "done")
    assert baked.detail["requests"][made[1].pin] > 1000


@pytest.mark.parametrize(
    "bad", [{"errors": 50}, {"score_sum": 95}, {"latency_p99_ms": 900}, {"lookups": 9, "misses": 9}]
)
def test_a_bad_canary_is_taken_back(tmp_path, hub, made, bad):
    target = folder_target(tmp_path, hub, places=watched(tmp_path, **bad))
    target.run(target.plan(made[0]))
    outcome = target.run(target.plan(made[1], OPTIONS))
    assert outcome.state == "undone"
    assert "the canary did badly" in outcome.why
    assert active(target) == all_on(made[0].pin)


def test_a_bad_canary_may_pause_and_somebody_decides(tmp_path, hub, made):
    target = folder_target(tmp_path, hub, places=watched(tmp_path, errors=50))
    target.run(target.plan(made[0]))
    careful = replace(OPTIONS, on_breach="pause")
    with pytest.raises(Unfinished, match="of requests fail"):
        target.run(target.plan(made[1], careful))
    assert target.history(1)[0].state == "paused"
    assert {place.state for place in target.status().places if place.leg == "dense"} == {"canary"}
    with pytest.raises(Unfinished):
        target.resume()  # it is as bad as before
    assert target.promote().state == "done"  # somebody knows better
    assert active(target) == all_on(made[1].pin)
    with pytest.raises(Unfinished):
        target.run(target.plan(made[2], careful))
    assert target.rollback().state == "undone"
    assert active(target) == all_on(made[1].pin)


@pytest.mark.parametrize(("wish", "state"), [("promote", "done"), ("abort", "undone")])
def test_another_process_ends_the_bake(tmp_path, hub, made, wish, state):
    clock, target = ManualClock(), None

    class Asking(ManualClock):
        def sleep(self, seconds):
            super().sleep(seconds)
            if seconds == 5.0 and self.elapsed > 20:  # in the bake, as a thread of another process would
                getattr(folder_target(tmp_path, hub), wish)()

    clock = Asking()
    target = folder_target(tmp_path, hub, places=watched(tmp_path), clock=clock)
    target.run(target.plan(made[0]))
    assert target.run(target.plan(made[1], replace(OPTIONS, bake_s=10_000))).state == state
    assert clock.elapsed < 100


def test_an_interrupted_bake_goes_on_where_it_was(tmp_path, hub, made):
    class Dying(ManualClock):
        def sleep(self, seconds):
            super().sleep(seconds)
            if self.elapsed > 45:
                raise KeyboardInterrupt

    target = folder_target(tmp_path, hub, places=watched(tmp_path), clock=Dying())
    target.run(target.plan(made[0]))
    with pytest.raises(KeyboardInterrupt):
        target.run(target.plan(made[1], OPTIONS))
    clock = ManualClock()
    again = folder_target(tmp_path, hub, places=watched(tmp_path), clock=clock)
    assert again.resume().state == "done"
    assert 10 <= clock.elapsed < 45


def test_what_would_be_done_after_the_commit_point(tmp_path, hub, made):
    target = folder_target(tmp_path, hub, places=watched(tmp_path))
    target.run(target.plan(made[0]))
    place = target._context.places["dense/1"]
    switch = place.activate

    def stuck(shares, *, order):
        if len(shares) == 1:  # it took its canary
            raise Unavailable("dense/1 does not answer")
        switch(shares, order=order)

    place.activate = stuck
    with pytest.raises(Unfinished):
        target.run(target.plan(made[1], OPTIONS))
    ahead = {(step.stage, step.place) for step in target.plan_resume().steps}
    assert {("dense.switch", "dense/1"), ("settle", "")} < ahead
    assert not {"dense.canary", "bake"} & {stage for stage, _ in ahead}  # it is past these
    assert target.plan_promote() == target.plan_resume()
    back = target.plan_abort()
    assert {(step.stage, step.place) for step in back.steps} > {
        ("dense.switch", "dense/0"),
        ("dense.switch", "dense/1"),
    }
    place.activate = switch
    assert target.abort().state == "undone"
    assert active(target) == all_on(made[0].pin)


def test_errors_from_before_the_canary_say_nothing_about_it(tmp_path, hub, made):
    class Stale(Watched):
        """Its first report counts what happened before it was asked."""

        looks = 0

        def watch(self):
            self.looks += 1
            found = super().watch()
            bad = {pin: replace(traffic, errors=traffic.requests) for pin, traffic in found.traffic.items()}
            return Health({**found.traffic, **dict(list(bad.items())[1:])}) if self.looks == 1 else found

    places = [
        Stale(tmp_path / "places", p.name, p.leg) if p.leg == "dense" else p for p in folder_places(tmp_path / "places")
    ]
    target = folder_target(tmp_path, hub, places=places)
    target.run(target.plan(made[0]))
    assert target.run(target.plan(made[1], OPTIONS)).state == "done"


def test_a_canary_that_paused_is_watched_anew(tmp_path, hub, made):
    class Souring(Watched):
        """It does well for half of its time."""

        looks = 0

        def watch(self):
            self.looks += 1
            found = super().watch()
            bad = {pin: replace(traffic, errors=traffic.requests) for pin, traffic in found.traffic.items()}
            return Health({**found.traffic, **dict(list(bad.items())[1:])}) if self.looks > 10 else found

    places = [
        Souring(tmp_path / "places", p.name, p.leg) if p.leg == "dense" else p
        for p in folder_places(tmp_path / "places")
    ]
    target = folder_target(tmp_path, hub, places=places)
    target.run(target.plan(made[0]))
    with pytest.raises(Unfinished, match="of requests fail"):
        target.run(target.plan(made[1], replace(OPTIONS, on_breach="pause")))
    clock = ManualClock()
    again = folder_target(tmp_path, hub, places=watched(tmp_path), clock=clock)
    assert again.resume().state == "done"
    assert clock.elapsed >= 60


def test_after_the_commit_point_no_request_goes_back_for_a_canary(tmp_path, hub, made):
    target = folder_target(tmp_path, hub, places=watched(tmp_path))
    target.run(target.plan(made[0]))
    place = target._context.places["dense/1"]
    activate = place.activate

    def refuses(shares, *, order):
        if shares == {made[1].pin: 1.0}:
            raise Unavailable("dense/1 does not answer")
        activate(shares, order=order)

    place.activate = refuses
    with pytest.raises(Unfinished):
        target.run(target.plan(made[1], OPTIONS))
    place.activate = activate
    last = target._context.journal.entries(2)[-1].id
    assert target.resume().state == "done"
    again = {entry.step for entry in target._context.journal.entries(2, after=last)}
    assert "dense.switch:dense/1" in again
    assert not [step for step in again if step.startswith(("dense.canary", "bake"))]
