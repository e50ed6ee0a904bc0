"""When a rollout waits and for how long: nodes that come and go, windows that close, waves that need a yes."""

from datetime import timedelta

import pytest

from cloudedge.edge_bie.fleet import Engine, RolloutPlan, RolloutPolicy, Wave, decide, in_waves
from cloudedge.edge_bie.fleet import _rollout_engine as engine_module
from cloudedge.edge_bie.fleet._next_action import Label, OpenWave, Seen, Wait
from cloudedge.edge_bie.fleet._node_verdict import Probed, Verdict
from cloudedge.edge_bie.fleet._rollout import RolloutState
from cloudedge.journal import Journal
from tests.edge_bie.fleet.story import APP, BEGIN, LABEL, NEW, OLD, Machine, StoryClock, World

pytestmark = pytest.mark.rules

NIGHT = "02:00-04:00"


class Calm(World):
    """Nodes without trouble, and what somebody else does at given times."""

    def __init__(self, names, begin_s=0.0):
        self.events, self.written = [], []
        super().__init__(1, calm=True)
        self.machines = {name: Machine(name, OLD, runs=OLD) for name in names}
        self.plan, self.is_tolerant = RolloutPlan(APP, "", "", (), (), {}), True
        self.now = begin_s
        self.advance(60)

    def live(self, machine):
        for event in [event for event in self.events if event[0] <= self.now]:
            self.events.remove(event)
            event[1]()
        super().live(machine)

    def set_labels(self, name, changes, *, apps=()):
        self.written.append((self.now, name, changes[LABEL]))
        return super().set_labels(name, changes, apps=apps)


def engine(world, journal, number, plan, *, probe=lambda _: Probed("unreachable"), limit_s=20_000.0):
    clock, end = StoryClock(world), world.now + limit_s

    def sleep(seconds):
        world.advance(seconds)
        assert world.now < end, "it never ends"

    clock.sleep = sleep
    return Engine(
        world, journal, number, plan, selector="", republish=world.republish, probe=probe, clock=clock,
        runner=lambda calls, _: [call() for call in calls],
    )  # fmt: skip


def made(world, **policy):
    names = list(world.machines)
    chosen = RolloutPolicy(**{"every_s": 20.0, "failed_after_s": 600.0, "offline_after_s": 300.0, **policy})
    waves = tuple(in_waves([(name, {}) for name in names], chosen.waves, NEW))
    return RolloutPlan(APP, "yolov3:2", "pin2", (NEW,), waves, dict.fromkeys(names, OLD), policy=chosen)


def rolled_out(world, plan, **how):
    journal = Journal(None)
    with journal.writing("test") as writer:
        number = writer.begin("rollout", plan.pin, plan=plan.to_json(), by="test").number
        return engine(world, writer, number, plan, **how).run()


def flapping(world, name):
    """Let a node come and go every 200 s, and never get anything done meanwhile."""
    honest = world.live

    def live(machine):
        if machine.name == name:
            machine.trouble = "stuck"
            machine.away = (0.0, world.now + 1) if int(world.now) // 200 % 2 else (0.0, 0.0)
        honest(machine)

    world.live = live


def test_a_node_that_comes_and_goes_holds_a_rollout_up_no_longer_than_both_times_together():
    world = Calm(["node-00", "node-01"])
    flapping(world, "node-01")
    outcome = rolled_out(world, made(world, waves=("1",), success=0.4, abort_failed=0.9))
    assert outcome.state == "done"
    assert outcome.counts["done"] == 1
    assert "came and went" in (outcome.failed.get("node-01") or "came and went")
    assert "node-01" in {*outcome.failed, *outcome.offline}
    assert outcome.seconds < 600 + 300 + 200


def test_a_rollout_that_is_resumed_again_and_again_counts_on():
    """Each time the process is killed after a minute: what a node has had is in the journal."""
    world, journal = Calm(["node-00"]), Journal(None)
    flapping(world, "node-00")
    plan = made(world, abort_failed=0.9)
    with journal.writing("test") as writer:
        number = writer.begin("rollout", plan.pin, plan=plan.to_json(), by="test").number
        for _ in range(100):
            try:
                outcome = engine(world, writer, number, plan, limit_s=60).run()
                break
            except AssertionError:
                continue
    assert outcome.counts["done"] == 0
    assert outcome.counts["waiting"] == 0


def test_labels_are_written_only_in_a_window_lost_ones_too():
    world = Calm(["node-00", "node-01"])  # it is midnight
    plan = made(world, waves=("1",), windows=(NIGHT,), bake_s=10_000.0)
    at = {hour: hour * 3600.0 for hour in range(30)}
    world.events = [(at[5], lambda: setattr(world.machines["node-00"], "label", OLD))]
    outcome = rolled_out(world, plan, limit_s=200_000)
    assert (outcome.state, outcome.counts["done"]) == ("done", 2)
    hours = [(BEGIN + timedelta(seconds=when)).hour for when, _, _ in world.written]
    assert set(hours) == {2}
    # The first in the first night; what was lost at five, and the second, in the next: a day is no failure.
    assert [(name, when > at[24]) for when, name, _ in world.written] == [
        ("node-00", False), ("node-00", True), ("node-01", True)
    ]  # fmt: skip
    assert outcome.repairs == 1


def test_going_back_does_not_wait_for_a_window():
    world = Calm(["node-00", "node-01"], begin_s=3 * 3600.0 + 3400)
    world.machines["node-00"].trouble = "stuck"
    outcome = rolled_out(world, made(world, waves=("1",), windows=(NIGHT,)))
    assert outcome.state == "undone"
    assert (BEGIN + timedelta(seconds=world.written[-1][0])).hour == 4


APPROVED = {
    "never": ("never", "iimm", []),
    "every": ("every", "iimm", [0, 1, 2, 3]),
    "after the first of the one revision": ("after-first", "mmm", [1]),
    "after the first of each": ("after-first", "iimm", [1, 3]),
    "one wave each": ("after-first", "im", [1]),
}


@pytest.mark.parametrize(("approval", "waves", "asked"), APPROVED.values(), ids=APPROVED)
def test_which_waves_need_somebody_to_say_yes(approval, waves, asked):
    plan = RolloutPlan(
        APP, "", "", ("i", "m"), tuple(Wave(str(at), revision, ("n",)) for at, revision in enumerate(waves)),
        {"n": OLD}, policy=RolloutPolicy(approval=approval),
    )  # fmt: skip
    found = []
    for wave in range(len(waves)):
        action = decide(plan, RolloutState(wave=wave), {"n": Seen(OLD, Verdict("waiting"))})
        assert isinstance(action, (Wait, OpenWave))
        found += [wave] if isinstance(action, Wait) else []
    assert found == asked


def test_a_window_that_closes_is_in_the_journal_and_costs_no_node_its_time():
    state = RolloutState()
    for step, at, detail in (
        ("label", 10.0, {"nodes": {"n": NEW}}),
        ("window", 100.0, {"open": False}),
        ("window", 5_100.0, {"open": True}),
        ("clock", 5_200.0, {}),
    ):
        state.take(step, {"at": at, **detail})
    assert state.at - state.labelled["n"].at == 190.0
    lost = {"n": Seen(OLD, Verdict("waiting"))}
    plan = RolloutPlan(APP, "", "", (NEW,), (Wave("rest", NEW, ("n",)),), {"n": OLD}, policy=RolloutPolicy())
    state.wave, state.is_wave_open = 0, True
    assert decide(plan, state, lost) == Label({"n": NEW}, repairs=1)
    closed = decide(plan, state, lost, is_window_open=False)
    assert isinstance(closed, Wait)
    assert "1 labels are lost" in closed.why


def test_nodes_that_are_settled_or_out_of_reach_are_asked_no_more(monkeypatch):
    """Behind a firewall every question costs a time-out."""
    world, asked = Calm(["node-00", "node-01", "node-02"]), []
    monkeypatch.setattr(engine_module, "needs_probe", lambda node, app: node.report.app(app) is not None)

    def probe(node):
        asked.append((world.now, node.name))
        return Probed("unreachable")

    outcome = rolled_out(world, made(world, waves=("1", "1"), bake_s=1_000.0), probe=probe)
    assert outcome.counts["done"] == 3
    for name in world.machines:
        times = [at for at, who in asked if who == name]
        assert 1 <= len(times) <= 4
        assert times[-1] - times[0] < 100
