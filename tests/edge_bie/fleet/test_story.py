"""Rollouts from seeds: whatever fails, leaves, lies or is killed, promises hold; broken planners are noticed."""

import os
from collections import Counter
from dataclasses import replace

import pytest

from cloudedge.edge_bie.fleet import _next_action as _decide
from cloudedge.edge_bie.fleet import _rollout_engine as _engine
from cloudedge.edge_bie.fleet._next_action import Finish, OpenWave, Wait
from cloudedge.edge_bie.fleet._node_verdict import Verdict
from cloudedge.edge_bie.fleet._rollout import RolloutState
from tests.edge_bie.fleet.story import World, tell_story

pytestmark = pytest.mark.rules

SEEDS = int(os.environ.get("CLOUDEDGE_FLEET_SEEDS", "600"))


def test_promises_hold_whatever_happens():
    ends = Counter()
    for seed in range(SEEDS):
        broken, outcome = tell_story(seed)
        assert not broken, f"seed {seed}: {broken}"
        ends[outcome.state] += 1
    assert min(ends["done"], ends["undone"]) > SEEDS / 10


def test_on_a_calm_day_nodes_go_back_in_the_opposite_order_of_their_coming():
    ends = Counter()
    for seed in range(60):
        broken, outcome = tell_story(seed, calm=True)
        assert not broken, f"seed {seed}: {broken}"
        assert outcome.repairs == 0
        ends[outcome.state] += 1
    assert ends["undone"] > 5


# Each of these breaks rollouts on purpose; a story that does not notice is worth nothing.


def noticed(*words, seeds=400, **how):
    for seed in range(seeds):
        try:
            broken, _ = tell_story(seed, **how)
        except AssertionError as error:
            broken = [str(error)]
        if any(word in line for line in broken for word in words):
            return True
    return False


def test_believing_the_word_running_is_noticed(monkeypatch):
    def trusting(node, app, since=None, **_):
        if node.ready != "online":
            return Verdict("offline")
        stats = node.report.app(app)
        return Verdict("done" if stats is not None and stats.status == "Running" else "waiting")

    monkeypatch.setattr(_engine, "judge", trusting)
    assert noticed("do not work", "done and broken")


def test_going_on_whatever_share_failed_is_noticed(monkeypatch):
    monkeypatch.setattr(_decide, "_missed", lambda *_: "")
    monkeypatch.setattr(_decide, "_trouble", lambda *_: "")
    assert noticed("do not work")


def test_not_waiting_for_a_wave_is_noticed(monkeypatch):
    honest = _decide._wave

    def hasty(plan, state, seen, **how):
        action = honest(plan, state, seen, **how)
        waiting = isinstance(action, Wait) and "waiting" in action.why
        return OpenWave(state.wave + 1, is_open=False) if waiting else action

    monkeypatch.setattr(_decide, "_wave", hasty)
    assert noticed("do not work")


def test_calling_it_undone_without_going_back_is_noticed(monkeypatch):
    monkeypatch.setattr(_decide, "_back", lambda plan, state, seen: Finish("undone", {}))
    assert noticed("undone, and")


def test_going_back_to_an_old_number_is_noticed(monkeypatch):
    monkeypatch.setattr(World, "republish", lambda self, old: old)
    assert noticed("undone, and")


def test_not_writing_lost_labels_again_is_noticed(monkeypatch):
    monkeypatch.setattr(_decide, "_lost", lambda state, seen: {})
    assert noticed("is labelled", "did not catch up")


def test_acting_before_writing_it_down_is_noticed(monkeypatch):
    def rash(self, action):
        for node, revision in action.nodes.items():
            self._write_label(node, revision)
        self._record("label", nodes=dict(action.nodes), back=action.is_back, repairs=action.repairs)

    monkeypatch.setattr(_engine.Engine, "_write_labels", rash)
    assert noticed("undone, and", seeds=600)


def test_going_back_oldest_first_is_noticed(monkeypatch):
    honest = _decide._back

    def wrong(plan, state, seen):
        turned = replace(state, touched=dict.fromkeys(reversed(state.touched)))
        return honest(plan, turned, seen)

    monkeypatch.setattr(_decide, "_back", wrong)
    assert noticed("went back in the order", calm=True)


def test_forgetting_who_was_touched_is_noticed(monkeypatch):
    honest = RolloutState.replay.__func__

    def forgetful(cls, entries, wishes):
        state = honest(cls, entries, wishes)
        state.touched = {}
        return state

    monkeypatch.setattr(RolloutState, "replay", classmethod(forgetful))
    assert noticed("undone, and")
