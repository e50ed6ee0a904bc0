"""Releases on real processes, under a load that compares every answer with the whole model's."""

from __future__ import annotations

import os
import resource
from datetime import timedelta

import pytest

from cloudedge.errors import Conflict, StorageError
from cloudedge.release import Limits, ReleaseUndone, Unfinished
from tests.faults import proves_fault
from tests.release.local.world import DIM, ROWS, wait

pytestmark = pytest.mark.parts

PATIENT = Limits(latency_slack_ms=1e9)  # how busy this machine is decides no test

ENOUGH = Limits().latency_requests + 100

WHOLE_BYTES = ROWS * (20 + 4 * DIM) * 2
"""Of the table's rows as cube keeps them, at both replicas."""


def test_the_next_version_and_back_under_load(world):
    before, after = world.live, world.fresh()
    with world.load() as load:
        outcome = world.release(after)
        load.until(20, after.pin)
        assert world.target.status().is_whole
        back = world.target.rollback()
        load.until(20, before.pin)
    assert load.broken == ([], [])
    assert {pin for *_, pin in load.answered} == {before.pin, after.pin}
    assert 0 < outcome.bytes < WHOLE_BYTES / 10  # one row in a hundred, and a small program
    assert (back.state, back.bytes) == ("done", 0)
    assert world.live.pin == before.pin
    newest = world.target.history(limit=2)
    assert [(each.kind, each.pin, each.state) for each in newest] == [
        ("rollback", before.pin, "done"),
        ("release", after.pin, "done"),
    ]


@proves_fault(
    area="release",
    fault="a version does not answer its probes as recorded",
    happens="it is loaded nowhere, and the live version stays live",
    cure="find out why; `cloudedge bundle verify --deep REF`",
)
def test_a_version_that_answers_its_probes_differently_vanishes(world):
    before = world.live
    with world.load() as load:
        with pytest.raises(ReleaseUndone, match="answers 1 of 1 probes differently"):
            world.release(world.spoiled)
        load.until(20)
    assert load.broken == ([], [])
    assert {pin for *_, pin in load.answered} == {before.pin}
    assert not any(world.spoiled.pin in place.versions for place in world.target.status().places)
    assert world.target.status().is_whole


def test_a_canary_gets_its_share_until_somebody_promotes_it(world):
    before, after = world.live, world.fresh()
    with world.load() as load:
        baking = world.intended("bake")
        release = world.target.apply(world.target.plan(after.bundle, canary=0.4, bake_s=600, limits=PATIENT))
        wait(baking, "the bake")
        load.until(30, after.pin)
        start = len(load.answered)
        load.until(300)
        share = sum(pin == after.pin for *_, pin in load.answered[start:]) / len(load.answered[start:])
        assert world.target.status().unfinished
        release.promote()
        assert release.wait().state == "done"
        load.until(20, after.pin)
    assert load.broken == ([], [])
    assert 0.2 < share < 0.6
    assert before.pin != world.live.pin == after.pin


def test_a_good_canary_passes_by_the_limits_that_everybody_has(world):
    before, after = world.live, world.fresh()
    with world.load() as load:
        baking = world.intended("bake")
        release = world.target.apply(world.target.plan(after.bundle, canary=0.5, bake_s=600))
        wait(baking, "the bake")
        for pin in (before.pin, after.pin):
            load.until(ENOUGH, pin)  # so that latency is judged too
        looks = world.intended("bake", what="note")
        wait(looks, "a look at these")
        release.promote()
        assert release.wait().state == "done"
    assert load.broken == ([], [])
    assert world.live.pin == after.pin


@proves_fault(
    area="release",
    fault="a canary answers otherwise than its limits allow",
    happens="it is taken back by itself",
    cure="`cloudedge history TARGET` shows which limit",
)
def test_a_canary_that_drifts_is_taken_back(world):
    before = world.live
    with world.load() as load:
        with pytest.raises(ReleaseUndone, match="the canary did badly: a mean score of") as undone:
            world.release(world.drifting, canary=0.3, bake_s=120, limits=PATIENT)
        load.until(20)
    assert load.broken == ([], [])
    assert world.drifting.pin in {pin for *_, pin in load.answered}
    assert (undone.value.facts["number"], world.live.pin) == (world.target.history(limit=1)[0].number, before.pin)


def test_a_canary_that_drifts_may_rest_until_somebody_decides(world):
    before = world.live
    with world.load() as load:
        with pytest.raises(Unfinished, match="Its canary stays"):
            world.release(world.drifting, canary=0.3, bake_s=120, limits=PATIENT, on_breach="pause")
        assert world.target.status().unfinished
        load.until(10, world.drifting.pin)  # its share goes on
        load.until(10, before.pin)
        assert world.target.abort().state == "undone"
        load.until(20, before.pin)
    assert load.broken == ([], [])
    assert world.target.status().is_whole
    assert world.live.pin == before.pin


def test_back_by_two_where_two_are_retained(world):
    first = world.live
    with world.load() as load:
        for _ in range(2):
            newest = world.fresh()
            world.release(newest, retain=2)
        assert all(first.pin in place.versions for place in world.target.status().places)
        number = next(each.number for each in world.target.history(limit=50) if each.pin == first.pin)
        back = world.target.rollback(to=number)
        load.until(20, first.pin)
    assert load.broken == ([], [])
    assert (back.state, back.bytes) == ("done", 0)
    assert world.live.pin == first.pin != newest.pin


def test_of_two_releases_one_waits_its_turn(world):
    before, after = world.live, world.fresh()
    with world.load() as load:
        baking = world.intended("bake")
        release = world.target.apply(world.target.plan(after.bundle, canary=0.1, bake_s=600, limits=PATIENT))
        wait(baking, "the bake")
        other = next(made for made in world.good if made.pin not in (before.pin, after.pin))
        command = world.command("release", other.ref, "--to", "local", "--yes")
        out, err = command.communicate(timeout=240)
        assert command.returncode == 1
        assert f"process {os.getpid()}" in out + err
        release.abort()
        with pytest.raises(ReleaseUndone, match="asked for it"):
            release.wait()
        load.until(20)
    assert load.broken == ([], [])
    assert world.live.pin == before.pin


def test_two_releases_planned_at_once(world):
    first, second = [made for made in world.good if made.pin != world.live.pin][:2]
    plans = [world.target.plan(made.bundle) for made in (first, second)]
    with world.load() as load:
        came = []
        for release in [world.target.apply(plan) for plan in plans]:
            try:
                came.append(release.wait().state)
            except Conflict as conflict:
                came.append(conflict.hint)
    assert sorted(came)[1] == "done"
    assert "Plan again." in came or any("Wait until it ends" in each for each in came)
    assert load.broken == ([], [])


@proves_fault(
    area="journal",
    fault="the disk under the journal is full during a release",
    happens="the release stops where it is, and the live version stays live",
    cure="make room, then `cloudedge resume TARGET`",
)
def test_a_full_disk_under_the_journal(world):
    before, after = world.live, world.fresh()
    journal = world.journal
    pages = journal._db.execute("PRAGMA page_count").fetchone()[0]

    def back_and_forth():
        for _ in range(50):  # what is left of the last pages is used up first
            world.target.run(world.target.plan(after.bundle))
            world.target.rollback()

    with world.load() as load:
        journal._db.execute(f"PRAGMA max_page_count = {pages}")
        try:
            with pytest.raises(StorageError, match="full") as full:
                back_and_forth()
        finally:
            journal._db.execute("PRAGMA max_page_count = 1000000")
        load.until(20)
        assert "Free space" in full.value.hint
        world.target.resume()
        assert world.target.status().is_whole
    assert load.broken == ([], [])
    assert {pin for *_, pin in load.answered} <= {before.pin, after.pin}


@proves_fault(
    area="release",
    fault="a place has no room for the new version",
    happens="the release is undone, and the live version stays live",
    cure="make room, then release again",
)
def test_no_room_for_what_is_shipped(world):
    before, after = world.live, world.fresh()
    with world.load() as load:
        command = world.command(
            *("release", after.ref, "--to", "local", "--yes"),
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64)),
        )
        out, err = command.communicate(timeout=240)
        load.until(20)
    assert command.returncode in {1, 3}, out + err
    assert "Traceback" not in err
    assert "File too large" in out + err or "disk I/O" in out + err
    assert load.broken == ([], [])
    assert {pin for *_, pin in load.answered} == {before.pin}


class SetBack:
    """A clock that somebody set back by an hour."""

    def __init__(self, clock):
        self._clock = clock

    def now(self):
        return self._clock.now() - timedelta(hours=1)

    def __getattr__(self, name):
        return getattr(self._clock, name)


@proves_fault(
    area="release",
    fault="the clock of the releasing machine is set back",
    happens="nothing: orders are numbered and not dated",
    cure="nothing",
)
def test_a_clock_set_back_an_hour_changes_no_order(world):
    before, after = world.live, world.fresh()
    ground = world.target._context
    slow = SetBack(ground.clock)
    ground.clock = ground.journal._clock = ground.bundles._clock = slow
    try:
        with world.load() as load:
            number = world.release(after).number
            load.until(20, after.pin)
            assert world.live.pin == after.pin
            world.target.rollback()
            load.until(20, before.pin)
    finally:
        ground.clock = ground.journal._clock = ground.bundles._clock = slow._clock
    assert load.broken == ([], [])
    newest, earlier, *_ = world.target.history()
    assert (newest.number, earlier.number) == (number + 1, number)
    assert world.target.status().is_whole
    assert world.live.pin == before.pin


def test_a_place_refuses_the_last_words_of_a_release_that_was_killed(world):
    before, after = world.live, world.fresh()
    early = world.journal.newest(["tag"], "done").id
    world.release(after)
    for place in world.target._context.places.values():
        for late in (
            lambda place=place: place.activate({before.pin: 1.0}, order=early),
            lambda place=place: place.unload(before.pin, order=early),
        ):
            with pytest.raises(Conflict, match=f"order {early} comes after order"):
                late()
    assert world.target.status().is_whole
    assert world.target.rollback().state == "done"  # everything that is needed is still there
