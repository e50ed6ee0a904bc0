"""The promises as invariants over thousands of seeds, and proof that the harness would notice if they were broken."""

from __future__ import annotations

import dataclasses
from contextlib import contextmanager

import pytest

from cloudedge.cube import Client
from cloudedge.errors import Conflict, InputError
from cloudedge.journal import Journal, Writer
from cloudedge.release import Limits, Options, Plan
from cloudedge.release.core import Operations, _apply, _canary, _context, _plan
from cloudedge.testing import (
    FAULTS,
    SimBundleSource,
    SimJournal,
    SimPlace,
    SimulatedWorld,
    _scenario,
    run_seed,
    sim_target,
    sim_version,
    simulate,
)
from cloudedge.testing._copies import Stored
from cloudedge.testing._simulated_cube import Readers

pytestmark = pytest.mark.rules

SEEDS, CASES = 10_000, 8


@pytest.mark.parametrize("case", range(CASES))
def test_no_seed_breaks_a_promise(case):
    count = SEEDS // CASES
    report = simulate(count, first_seed=case * count, jobs=1)
    assert report.violations == 0, [(r.seed, str(r.violations[0])) for r in report.failing]
    # A harness in which nothing happens proves nothing.
    assert set(report.faults) == set(FAULTS)
    assert report.answers > 20 * count
    assert report.points > 100 * count
    for outcome in (
        "release: done",
        "release: undone",
        "release: killed",
        "rollback: done",
        "resume: done",
        "layout: changed",
        "first release: done",
    ):
        assert report.outcomes[outcome] > count / 200, outcome
    # Others come in between: they are turned away while somebody is at work, or are first.
    for outcome in ("rival release: Conflict", "rival abort: None", "rival promote: None"):
        assert report.outcomes[outcome] > count / 400, outcome
    assert report.outcomes["trimmed"] > count / 200


def test_a_seed_replays_exactly():
    for seed in (3, 17, 213):
        first, again = run_seed(seed, traced=True), run_seed(seed, traced=True)
        assert first == again
        assert first.trace
        assert dataclasses.replace(first, trace=()) == run_seed(seed)  # looking does not change it


def test_without_faults_every_release_is_done():
    report = simulate(100, faults=(), jobs=1)
    assert report.violations == 0
    assert report.faults == {}
    # A canary that answers nonsense still pauses or is taken back; nothing else stops a release.
    assert report.outcomes["release: done"] > 50
    own = [outcome for outcome in report.outcomes if not outcome.startswith("rival")]  # a rival may find no room
    assert not any(bad in outcome for outcome in own for bad in ("killed", "StorageError", "Refused"))


def test_an_unknown_fault_is_refused():
    with pytest.raises(InputError, match="no such fault: rain"):
        simulate(1, faults=["rain"])


@pytest.mark.parametrize("promise", ["mixed", "zeros"])
def test_the_stock_delivery_breaks_the_promises_that_ours_keeps(promise):
    broken = [v.promise for seed in range(100) for v in run_seed(seed, stock=True).violations]
    assert promise in broken


def test_the_stock_delivery_mixes_versions_even_on_a_good_day():
    report = simulate(100, stock=True, faults=(), jobs=1)
    assert report.violations > 50
    assert {v.promise for result in report.failing for v in result.violations} == {"mixed"}


# Each of these breaks the release on purpose; a harness that does not notice is worth nothing.


def noticed(*promises, seeds=300, faults=FAULTS):
    """Tell whether some seed finds one of these promises broken."""
    kinds = frozenset(faults)
    return any(v.promise in promises for seed in range(seeds) for v in run_seed(seed, faults=kinds).violations)


def test_a_server_that_ignores_the_pin_is_noticed(monkeypatch):
    """It answers with what is active, under the name that was asked for."""

    def ignoring(self, pin):
        active = next(iter(self.active), None)
        return (pin, self.copies[active].bytes) if active else None

    monkeypatch.setattr(SimPlace, "seek", ignoring)
    assert noticed("mixed", faults=())


def test_the_client_refuses_a_server_that_ignores_the_pin_and_says_so(monkeypatch):
    """As upstream's servers do: nobody gets a wrong answer, and requests fail."""

    def honest(self, pin):
        active = next(iter(self.active), None)
        return (active, self.copies[active].bytes) if active else None

    monkeypatch.setattr(SimPlace, "seek", honest)
    assert noticed("failed", faults=())
    assert not noticed("mixed", "zeros", "wrong", seeds=60, faults=())


def test_a_client_that_does_not_compare_versions_is_noticed(monkeypatch):
    """Then nothing stands between such a server and a mixed answer."""
    monkeypatch.setattr(
        SimPlace, "seek", lambda self, pin: next(((p, self.copies[p].bytes) for p in self.active), None)
    )
    monkeypatch.setattr(Client, "_require_one_version", lambda self, answer, pin: None)
    assert noticed("mixed", faults=())


@pytest.mark.parametrize("faults", [["split"], FAULTS])
def test_defaults_for_a_missing_shard_are_noticed(monkeypatch, faults):
    begin = Readers.__init__

    def forgiving(self):
        begin(self)
        self.config = dataclasses.replace(self.config, on_missing_shard="default", value_bytes=1)

    monkeypatch.setattr(Readers, "__init__", forgiving)
    assert noticed("zeros", faults=faults)


def test_a_delta_on_whatever_is_there_is_noticed(monkeypatch):
    """Two keep that from happening: the server compares what a delta was made for, and a release checks every place."""

    def anyhow(self, pin, made_for):
        there = next((copy.bytes for copy in reversed(self.copies.values()) if copy.is_ready), made_for)
        return pin if there == made_for else f"{there}+{pin}"

    monkeypatch.setattr(SimPlace, "verify", lambda self, version: None)
    assert not noticed("mixed", seeds=60, faults=())
    monkeypatch.setattr(SimPlace, "_apply_delta", anyhow)
    assert noticed("mixed", seeds=200, faults=())


@pytest.mark.parametrize("promise", ["wrong", "mixed"])
def test_a_release_without_checks_is_noticed(monkeypatch, promise):
    """Bytes arrived damaged, or were another version's under this one's name."""
    monkeypatch.setattr(SimPlace, "verify", lambda self, version: None)
    assert noticed(promise, faults=["corrupt"])


@pytest.mark.parametrize("promise", ["wrong", "mixed"])
def test_a_server_that_starts_without_looking_at_its_files_is_noticed(monkeypatch, promise):
    monkeypatch.setattr(Stored, "keep_sound", lambda self: True)
    assert noticed(promise, faults=["rot"])


def test_two_who_write_at_once_are_noticed(monkeypatch):
    """The journal's lock is what keeps a second cloudedge from acting in the middle of the first one's release."""

    @contextmanager
    def anybody(self, owner):
        yield Writer(self)

    monkeypatch.setattr(Journal, "writing", anybody)
    assert noticed("unexplained", "not whole", "failed", "deleted", "wrong", seeds=600)


def test_a_plan_that_somebody_overtook_while_it_looked_is_refused():
    """Else it would find places in two states and what is live in the second, and call that done."""
    world = SimulatedWorld(1, frozenset())
    SimPlace(world, "dense/0", "dense")
    SimPlace(world, "dense/1", "dense")
    versions = [sim_version(1), sim_version(2)]
    shelf, journal = SimBundleSource(world, versions), SimJournal(world)
    ann, bob = (sim_target(world, bundles=shelf, journal=journal, by=by) for by in ("ann", "bob"))
    for version in versions:
        ann.run(ann.plan(version))
    world.meet(2, bob.rollback)  # ann has asked one of the places by then
    plan = ann.plan(versions[1])
    assert bob.status().live.pin == "v1"
    with pytest.raises(Conflict, match="changed since this was planned"):
        ann.run(plan)
    assert [dict(place.active) for place in world.places.values()] == [{"v1": 1.0}] * 2


def test_a_plan_that_does_not_count_memory_is_noticed(monkeypatch):
    """Without trimming, a target whose memory holds two versions takes one release and no other."""
    monkeypatch.setattr(_plan, "_trim", lambda *args: [])
    report = simulate(150, faults=(), jobs=1)
    assert "trimmed" not in report.outcomes
    assert report.outcomes["release: Refused"] > 0


def test_switching_before_all_are_ready_is_noticed(monkeypatch):
    planned = _plan._steps

    def hasty(*args):
        steps = list(planned(*args))
        first = [s for stage in ("dense.prepare", "dense.switch") for s in steps if s.stage == stage]
        return first + [s for s in steps if s not in first]

    monkeypatch.setattr(_plan, "_steps", hasty)
    assert noticed("failed")


def test_undoing_in_the_wrong_order_is_noticed(monkeypatch):
    undo = _apply.plan_undo
    monkeypatch.setattr(_apply, "plan_undo", lambda *args: list(reversed(undo(*args))))
    assert noticed("failed", "deleted")


def test_unloading_rows_that_requests_under_way_still_need_is_noticed(monkeypatch):
    every_canary_fails(monkeypatch)
    assert not noticed("failed", "deleted", seeds=40, faults=())
    monkeypatch.setattr(_plan, "_UNLOADS", ("sparse", "dense", "edge"))
    assert noticed("failed", "deleted", seeds=100, faults=())


def every_canary_fails(monkeypatch):
    begin = _scenario._Scenario.__init__

    def bad(self, *args, **how):
        begin(self, *args, **how)
        self.clients.scores["v2"] = self.clients.scores["v3"] = 9.0

    monkeypatch.setattr(_scenario._Scenario, "__init__", bad)
    limits = Limits(min_requests=3, score_drift=3.0)
    options = Options(canary=0.5, bake_s=4.0, limits=limits)
    monkeypatch.setattr(_scenario._Scenario, "_options", lambda self: options)


def test_a_resume_that_believes_the_journal_and_does_not_look_is_noticed(monkeypatch):
    """A place that restarted may have lost what was done."""

    def believing(self, writer, operation):
        plan = Plan.from_json(operation.plan)
        done = {e.step for e in self._context.journal.entries(operation.number) if e.what == "done"}
        left = dataclasses.replace(plan, steps=tuple(s for s in plan.steps if s.id not in done))
        version = self._context.bundles.version(plan.ref)
        return _apply.Run(self._context, writer, operation.number, left, version).forward()

    monkeypatch.setattr(Operations, "resume", believing)
    assert noticed("not whole", "failed", "unexplained", faults=["kill", "amnesia"])


def test_acting_under_another_name_than_was_written_is_noticed(monkeypatch):
    acted = _apply.Run._act
    monkeypatch.setattr(_apply.Run, "_act", lambda self, step, order, **how: acted(self, step, order + 1, **how))
    assert noticed("unexplained")


def test_not_marking_what_is_live_is_noticed(monkeypatch):
    monkeypatch.setattr(
        _apply.Run, "_tag", lambda self, lives, *, undo: self._writer.remember("lives", [vars(x) for x in lives])
    )
    assert noticed("deleted", "unexplained")


def test_calling_it_undone_without_undoing_is_noticed(monkeypatch):
    monkeypatch.setattr(_apply.Run, "back", lambda self, why: self._end("undone", why=why, owed={}))
    assert noticed("unexplained")


def test_a_place_that_obeys_late_calls_is_noticed(monkeypatch):
    """The order that every change carries keeps a late call from changing what came after it."""
    monkeypatch.setattr(SimPlace, "_fence", lambda self, order, what: None)
    assert noticed("unexplained", "failed", seeds=600, faults=["late"])


def test_a_version_that_reads_another_layout_than_its_own_is_noticed(monkeypatch):
    """As if everybody read the cube.conf of the day."""
    begin = _scenario._Scenario.__init__

    def cut_anew(self, *args, **how):
        begin(self, *args, **how)
        self.is_cut_anew = True

    monkeypatch.setattr(_scenario._Scenario, "__init__", cut_anew)
    monkeypatch.setattr(_context, "at_home", lambda desired, *_: desired)
    assert noticed("not whole", "failed", "unexplained")


def test_ending_a_layout_that_is_still_read_is_noticed(monkeypatch):
    idle = _plan.is_idle
    monkeypatch.setattr(_plan, "is_idle", lambda place, now, kept: idle(place, now, ()))
    assert noticed("deleted", "failed", faults=())


# The stories that a campaign of removed guards found missing; tests/mutants removes the guards themselves.


def test_bytes_that_the_hub_damaged_are_noticed(monkeypatch):
    """Every place gets the same damage, so none can tell: only the releasing machine compares them with the digest."""
    monkeypatch.setattr(SimBundleSource, "verify", lambda self, version: None)
    assert noticed("wrong", faults=["corrupt"])


def test_a_bad_canary_that_passes_is_noticed(monkeypatch):
    monkeypatch.setattr(_canary, "breach", lambda *_: "")
    assert noticed("bad canary", faults=())


def test_a_version_lost_between_check_and_switch_is_noticed(monkeypatch):
    monkeypatch.setattr(_apply.Run, "_confirm", lambda self, *, answering: None)
    assert noticed("failed", faults=["lost"])


def test_a_release_that_does_not_settle_is_noticed(monkeypatch):
    """A place restarts with its pointer where it was, and the release calls itself done everywhere."""
    monkeypatch.setattr(_apply, "same_shares", lambda one, other: True)
    assert noticed("unexplained", faults=["amnesia"])


def test_a_collection_between_two_tags_is_noticed(monkeypatch):
    """The version to go back to has no tag for a moment."""
    roles = _apply.Run._tag

    def hasty(self, lives, *, undo):
        self._set_tags({"previous": None})
        self._set_tags({"live": lives[0].ref})
        roles(self, lives, undo=undo)

    monkeypatch.setattr(_apply.Run, "_tag", hasty)
    assert noticed("deleted", faults=["gc"])


def test_a_collection_while_a_place_is_away_is_noticed(monkeypatch):
    """It answers with a version that has no tag any more."""
    monkeypatch.setattr(_apply.Run, "_set_tags", lambda self, roles: None)
    assert noticed("deleted", "unexplained", faults=["gc", "cut"])


def test_a_client_that_accepts_other_versions_is_noticed(monkeypatch):
    """A server that does not understand pins answers with what is active, and says so."""
    monkeypatch.setattr(Client, "_require_one_version", lambda self, answer, pin: None)
    assert noticed("mixed", faults=["stray"])


def test_a_mixture_without_a_pin_is_noticed(monkeypatch):
    """Readers without a pin meet shards that switch one after the other."""
    pinned = Client._require_one_version
    monkeypatch.setattr(
        Client, "_require_one_version", lambda self, answer, pin: pinned(self, answer, pin) if pin else None
    )
    monkeypatch.setattr(Client, "_settle", lambda self, keys, answer, pin, deadline: answer)
    assert noticed("mixed", faults=())


def test_a_step_written_as_done_that_no_place_did_is_noticed(monkeypatch):
    failed = _apply.Run._one_place

    def hopeful(self, steps, failures, *, undo):
        failed(self, steps, {}, undo=undo)

    monkeypatch.setattr(_apply.Run, "_one_place", hopeful)
    assert noticed("unexplained", faults=["full"])
