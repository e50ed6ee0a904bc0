"""Places that do not answer, hubs that are down, and two who act at once: the way back stays open."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cloudedge.bundle import Bundle, Signature, Variable
from cloudedge.clock import ManualClock
from cloudedge.errors import Conflict, InputError, NotFound, Rejected, Unavailable
from cloudedge.hub import current, release_tag
from cloudedge.journal import Journal
from cloudedge.release import HubBundleSource, Options, Refused, ReleaseContext, ReleaseUndone, Target, Unfinished, plan
from cloudedge.testing import FolderPlace
from tests.models import make_table
from tests.release.parts import NAMES, SHARDS, SIGNATURE, bundles, folder_places, folder_target, place, version, world

pytestmark = pytest.mark.rules


class Cut(FolderPlace):
    """A place that can be cut off from whoever releases; what it answers with stays."""

    is_cut = False

    def __init__(self, root, name, leg, *, shards):
        super().__init__(root, name, leg, shards=shards)
        self.table, self.shard, self.shards = self._table, self._shard, shards

    def _require(self):
        if self.is_cut:
            raise Unavailable(f"{self.name} does not answer")

    def observe(self):
        self._require()
        return super().observe()

    def _fence(self, order):
        self._require()
        super()._fence(order)


def cuttable(tmp_path):
    return [Cut(tmp_path / "places", name, name.split("/")[0], shards=SHARDS) for name in NAMES]


@pytest.fixture
def target(tmp_path, hub, made):
    """Version 2 is live, version 1 was."""
    found = folder_target(tmp_path, hub, places=cuttable(tmp_path))
    for bundle in made[:2]:
        found.run(found.plan(bundle))
    return found


def cut(target, *names):
    for name in names:
        target._context.places[name].is_cut = True


def mend(target):
    for name in NAMES:
        target._context.places[name].is_cut = False


def answers(target):
    return {name: list(FolderPlace.observe(target._context.places[name]).active) for name in NAMES}


@pytest.mark.parametrize("name", ["dense/1", "sparse/emb/0/1", "edge/a"])
def test_a_rollback_goes_on_without_a_replica_that_is_down(target, made, hub, name):
    one, two, _ = made
    cut(target, name)
    planned = target.plan_rollback()
    assert not planned.refusals
    assert name in planned.summary()
    outcome = target.rollback()
    assert (outcome.state, list(outcome.away)) == ("done", [name])
    assert answers(target) == {each: [two.pin if each == name else one.pin] for each in NAMES}
    status = target.status()
    assert (status.live.pin, status.lagging) == (one.pin, (name,))
    # It may be serving with what it had: that is neither unloaded elsewhere nor collected.
    assert all(two.pin in FolderPlace.observe(target._context.places[each]).versions for each in NAMES)
    assert current(hub.tags("ctr"), release_tag("prod", "behind-1")).target.digest == two.digest
    with pytest.raises(Refused, match="cannot be observed"):
        target.run(target.plan(made[2]))  # a release needs them all
    with pytest.raises(Unavailable, match=f"{name} cannot be observed"):
        target.resume()
    mend(target)
    assert target.resume().state == "done"
    assert target.status().is_whole
    assert answers(target) == {each: [one.pin] for each in NAMES}
    assert current(hub.tags("ctr"), release_tag("prod", "behind-1")) is None


def test_a_replica_that_comes_back_in_time_is_brought_along(tmp_path, hub, made):
    target = None

    class Returning(ManualClock):
        def sleep(self, seconds):
            super().sleep(seconds)
            if self.elapsed > 60 and target is not None:
                mend(target)

    found = folder_target(tmp_path, hub, places=cuttable(tmp_path), clock=Returning())
    for bundle in made[:2]:
        found.run(found.plan(bundle))
    target = found
    cut(target, "dense/1", "sparse/emb/1/0")
    outcome = target.rollback()
    assert (outcome.state, outcome.away) == ("done", {})
    assert target.status().is_whole


@pytest.mark.parametrize("names", [("dense/0", "dense/1"), ("sparse/emb/1/0", "sparse/emb/1/1")])
def test_what_nothing_stands_in_for_is_waited_for(target, made, names):
    cut(target, *names)
    before, clock = answers(target), target._context.clock
    began = clock.elapsed
    with pytest.raises(Refused, match="cannot be observed"):
        target.rollback()
    assert clock.elapsed - began >= Options().patience_s
    assert answers(target) == before
    mend(target)
    assert target.rollback().state == "done"


def test_a_replica_that_dies_while_a_rollback_prepares_does_not_stop_it(target, made):
    place = target._context.places["dense/1"]
    prepare = place.load

    def dying(version, *, order):
        place.is_cut = True
        return prepare(version, order=order)

    place.load = dying
    outcome = target.rollback()
    assert (outcome.state, list(outcome.away)) == ("done", ["dense/1"])
    assert target.status().live.pin == made[0].pin


def test_a_release_waits_for_a_replica_that_is_started_again_after_the_commit_point(tmp_path, hub, made):
    """As slow as a supervisor that has started it a few times already."""
    target = folder_target(tmp_path, hub, places=cuttable(tmp_path))
    target.run(target.plan(made[0]))
    dead = target._context.places["dense/1"]
    switch, clock, begun = dead.activate, target._context.clock, []

    def dying(shares, *, order):
        dead.is_cut = True
        begun.append(clock.elapsed)
        dead.activate = switch
        raise Unavailable("dense/1 died")

    def sleep(seconds, sleep=clock.sleep):
        sleep(seconds)
        if begun and clock.elapsed > begun[0] + 60:
            dead.is_cut = False

    dead.activate, clock.sleep = dying, sleep
    said = []
    target._context.tell = said.append
    assert target.run(target.plan(made[1])).state == "done"
    assert target.status().is_whole
    assert any("dense/1" in line for line in said)


def test_a_release_that_a_dead_replica_stops_can_be_finished_or_taken_back_without_it(target, made):
    place = target._context.places["dense/1"]
    switch = place.activate

    def dying(shares, *, order):
        place.is_cut = True
        return switch(shares, order=order)

    for way, live in (("resume", made[2]), ("abort", made[2])):
        goal = made[2] if way == "resume" else made[1]
        place.activate = dying
        with pytest.raises(Unfinished, match="dense/1"):
            target.run(target.plan(goal, retain=5))
        outcome = getattr(target, way)()
        assert outcome.state == ("done" if way == "resume" else "undone")
        assert list(outcome.away) == ["dense/1"]
        assert target.status().live.pin == live.pin
        others = {name: pins for name, pins in answers(target).items() if name != "dense/1"}
        assert others == {name: [live.pin] for name in others}
        # Whatever it answers with, its rows are there.
        mine = answers(target)["dense/1"][0]
        shards = [name for name in NAMES if "sparse" in name]
        assert all(mine in FolderPlace.observe(target._context.places[name]).versions for name in shards)
        mend(target)
        place.activate = switch
        target.resume()
        assert target.status().is_whole


def test_rows_stay_for_a_replica_that_cannot_be_told_to_go_back(target, made):
    """Its canary took some requests when it was cut off: it is left as it is, and so are the rows it reads."""
    place = target._context.places["dense/1"]
    switch = place.activate

    def cut_off(shares, *, order):
        switch(shares, order=order)
        place.is_cut = True
        raise Unavailable("dense/1 does not answer any more")

    place.activate = cut_off
    release = target.apply(target.plan(made[2], canary=0.5))
    with pytest.raises(ReleaseUndone, match=r"dense/1 does not answer") as undone:
        release.wait()
    assert "Left to `cloudedge resume`: dense/1" in undone.value.hint
    assert set(answers(target)["dense/1"]) == {made[1].pin, made[2].pin}
    shards = [name for name in NAMES if "sparse" in name]
    assert all(made[2].pin in FolderPlace.observe(target._context.places[name]).versions for name in shards)
    place.activate = switch
    mend(target)
    target.resume()
    assert target.status().is_whole
    target.run(target.plan(made[2]))
    assert target.status().is_whole


def test_the_last_replica_that_answers_is_not_silenced(target, made):
    """One replica is away with what was live, the other came back without it: it goes on with the canary."""
    here, gone = (target._context.places[name] for name in ("dense/0", "dense/1"))
    switch, observe = gone.activate, here.observe

    def cut_off(shares, *, order):
        switch(shares, order=order)
        gone.is_cut = True
        here.observe = lambda: replace(
            observe(), versions={made[2].pin: observe().versions[made[2].pin]}, active={made[2].pin: 1.0}
        )
        raise Unavailable("dense/1 does not answer any more")

    gone.activate = cut_off
    with pytest.raises(Unfinished, match="it lost what was live"):
        target.run(target.plan(made[2], canary=0.5))
    assert made[2].pin in answers(target)["dense/0"]
    gone.activate, here.observe = switch, observe
    mend(target)
    target.resume()
    assert target.status().is_whole


OTHER = Signature(feed=(*SIGNATURE.feed, Variable(name="age")), fetch=SIGNATURE.fetch)


def test_what_changed_the_signature_can_be_rolled_back(tmp_path, hub, made):
    """Clients knew what was live before."""
    both = [
        place(name, active="v2", pins=("v1", "v2"), signature=None if "sparse" in name else OTHER) for name in NAMES
    ]
    there = world(both, lives=(2, 1), was=version(2, signature=OTHER))
    assert {refusal.rule for refusal in plan(version(1), there, kind="rollback").refusals} == {"clients"}

    class Signed(FolderPlace):
        def observe(self):
            seen = super().observe()
            pins = {made[0].pin: SIGNATURE, changed.pin: OTHER}
            return replace(seen, signature=next((pins[pin] for pin in seen.active), None))

    changed = Bundle.pack(tmp_path / "model2", name="ctr", sparse={"emb": make_table(200)}, signature=OTHER, hub=hub)
    places = [
        Signed(tmp_path / "places", p.name, p.leg) if p.leg != "sparse" else p
        for p in folder_places(tmp_path / "places")
    ]
    target = folder_target(tmp_path, hub, places=places)
    target.run(target.plan(made[0]))
    with pytest.raises(Refused, match="would notice"):
        target.run(target.plan(changed))
    target.run(target.plan(changed, allow_signature_change=True))
    assert target.rollback().state == "done"
    assert target.rollback(2).state == "done"  # it was live too
    assert target.status().live.pin == changed.pin


class Down:
    """A hub that nobody reaches."""

    url = "oci://far/away"

    def __getattr__(self, name):
        raise Unavailable("oci://far/away does not answer")


def far_target(tmp_path, hub, far, source):
    clock = ManualClock()
    shelf = HubBundleSource("prod", hub, source=source, shards={"emb": SHARDS}, clock=clock)
    places = {place.name: place for place in folder_places(tmp_path / "places")}
    return Target(ReleaseContext("prod", places, Journal(tmp_path / "prod.db", clock=clock), shelf, clock))


def test_a_hub_that_is_down_stops_no_rollback_and_is_told_later(tmp_path, hub, far):
    one, two = bundles(tmp_path, far, 2)
    target = far_target(tmp_path, hub, far, far)
    for bundle in (one, two):
        target.run(target.plan(f"ctr:{bundle.version}"))
    alone = far_target(tmp_path, hub, far, Down())
    outcome = alone.rollback()
    assert outcome.state == "done"
    assert "does not answer" in outcome.owed["tag"]
    assert alone.status().live.pin == one.pin
    assert current(hub.tags("ctr"), release_tag("prod", "live")).target.digest == one.digest
    assert current(far.tags("ctr"), release_tag("prod", "live")).target.digest == two.digest
    assert alone.resume() is None
    again = far_target(tmp_path, hub, far, far)
    again.resume()
    assert current(far.tags("ctr"), release_tag("prod", "live")).target.digest == one.digest
    assert current(far.tags("ctr"), release_tag("prod", "next")) is None


def test_a_registry_that_lists_no_names_is_good_enough(tmp_path, hub, far, monkeypatch):
    one, two = bundles(tmp_path, far, 2)

    def rejected():
        raise Rejected("it does not list its repositories")

    monkeypatch.setattr(far, "names", rejected, raising=False)
    target = far_target(tmp_path, hub, far, far)
    for bundle in (one, two):
        outcome = target.run(target.plan(f"ctr:{bundle.version}"))
        assert (outcome.state, outcome.owed) == ("done", {})
    assert target.rollback().state == "done"
    assert current(far.tags("ctr"), release_tag("prod", "live")).target.digest == one.digest


def test_a_registry_that_says_no_leaves_nothing_open(tmp_path, hub, far, monkeypatch):
    (one,) = bundles(tmp_path, far, 1)

    def rejected(*_, **__):
        raise Rejected("you may not move tags here")

    target = far_target(tmp_path, hub, far, far)
    monkeypatch.setattr(far, "move_tag", rejected, raising=False)
    outcome = target.run(target.plan(f"ctr:{one.version}"))
    assert outcome.state == "done"
    assert "you may not move tags here" in outcome.owed["tag"]
    assert target.unfinished is None


def racing(target, operation):
    """Let whoever holds the lock end its operation between two looks of somebody else."""
    writing = target._context.journal.writing

    def late(owner):
        target._context.journal.writing = writing
        operation()
        return writing(owner)

    target._context.journal.writing = late


def unfinished(tmp_path, hub, made):
    target = folder_target(tmp_path, hub, places=cuttable(tmp_path))
    target.run(target.plan(made[0]))
    place = target._context.places["dense/1"]
    switch = place.activate

    def stuck(shares, *, order):
        raise Unavailable("dense/1 does not answer")

    place.activate = stuck
    with pytest.raises(Unfinished):
        target.run(target.plan(made[1], patience_s=0))
    place.activate = switch
    return target


@pytest.mark.parametrize("act", ["abort", "promote"])
def test_what_ended_meanwhile_is_not_undone_or_opened_again(tmp_path, hub, made, act):
    target = unfinished(tmp_path, hub, made)
    racing(target, lambda: folder_target(tmp_path, hub).resume())
    with pytest.raises(Conflict, match="ended in the meantime: it is done"):
        getattr(target, act)()
    assert target.unfinished is None
    assert answers(target) == {name: [made[1].pin] for name in NAMES}


@pytest.mark.parametrize("how", ["resume", "abort"])
def test_a_rollback_of_what_ended_meanwhile(tmp_path, hub, made, how):
    """If it was finished it is rolled back; if it was taken back there is nothing left to do, and N stays."""
    target = unfinished(tmp_path, hub, made)
    other = folder_target(tmp_path, hub)
    racing(target, other.resume if how == "resume" else other.abort)
    if how == "resume":
        assert target.rollback().state == "done"
    else:
        with pytest.raises(Conflict, match="ended in the meantime: it is undone"):
            target.rollback()
    assert answers(target) == {name: [made[0].pin] for name in NAMES}


def test_a_release_takes_itself_back_and_nothing_else(target, made):
    place = target._context.places["dense/0"]
    check = place.verify
    place.verify = lambda version: place.unload("x", order=-1)
    failed = target.apply(target.plan(made[2]))
    with pytest.raises(ReleaseUndone):
        failed.wait()
    with pytest.raises(Conflict, match="is not live"):
        failed.rollback()
    place.verify = check
    done = target.apply(target.plan(made[2]))
    done.wait()
    target.run(target.plan(made[0]))
    with pytest.raises(Conflict, match="no longer what is live"):
        done.rollback()
    assert target.status().live.pin == made[0].pin


def test_only_what_was_live_is_gone_back_to(target, made):
    place = target._context.places["dense/0"]
    check = place.verify
    place.verify = lambda version: place.unload("x", order=-1)
    number = target.run(target.plan(made[2])).number
    place.verify = check
    with pytest.raises(InputError, match="was never live: it is undone"):
        target.rollback(number)
    with pytest.raises(InputError, match="was never live on prod"):
        target.rollback("ctr:3")
    with pytest.raises(NotFound):
        target.rollback(99)
    assert target.rollback(1).state == "done"


def test_a_wish_that_comes_too_late_is_told(target, made):
    said = {}

    def meanwhile(step):
        def act(*args, **how):
            other = Target(replace(target._context, by="bob"))
            try:
                said[step] = other.abort()
            except Conflict as error:
                said[step] = error.message
            return real(*args, **how)

        real = getattr(target._context.places["sparse/emb/0/0"], step)
        return act

    shard = target._context.places["sparse/emb/0/0"]
    forget = shard.unload
    shard.unload = meanwhile("unload")
    outcome = target.run(target.plan(made[2]))
    assert outcome.state == "done"
    assert "too far to be taken back" in said["unload"]
    shard.unload = forget
    shard.activate = meanwhile("activate")  # requests have moved, and it is not marked as live yet
    outcome = target.run(target.plan(made[0]))
    assert (outcome.state, outcome.why) == ("undone", "bob asked for it")
    assert answers(target) == {name: [made[2].pin] for name in NAMES}
