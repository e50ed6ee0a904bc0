"""Planning: the order that keeps the promises, in every combination; and each refusal, with what would help."""

from __future__ import annotations

import ast
import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudedge.bundle import Lookup, Signature, Variable
from cloudedge.errors import InputError
from cloudedge.release import Estimate, Health, Limits, Observed, Options, Plan, Traffic, plan
from cloudedge.release.core import _preconditions
from cloudedge.release.core._canary import add_up, breach
from cloudedge.release.core._plan import plan_undo
from cloudedge.release.core._preconditions import signature_changes
from cloudedge.release.core._steps import STAGES
from cloudedge.release.core._table_layouts import at_home
from tests.release.parts import NAMES, SIGNATURE, facts, life, place, version, world

pytestmark = pytest.mark.rules

ORDER = list(STAGES)


def rules(planned):
    return {refusal.rule for refusal in planned.refusals}


def test_a_release_brings_rows_first_and_takes_them_away_last():
    planned = plan(version(2), world(), Options(canary=0.05, bake_s=600))
    stages = [stage for stage, _ in planned.stages()]
    assert stages == [
        "fetch", "sparse.prepare", "sparse.check", "dense.prepare", "dense.check", "edge.prepare", "edge.check", "gate",
        "dense.canary", "bake", "edge.switch", "dense.switch", "sparse.switch", "settle", "tag",
    ]  # fmt: skip
    assert planned.seconds > 600
    text = planned.summary()
    assert "release of ctr:2 on prod (v1 → v2)" in text
    assert "[undo: unload v2]" in text
    assert "5% of requests try v2" in text
    assert "scores against v1, about 10 min" in text


def test_the_plan_of_what_is_done_is_empty():
    done = [place(name, active="v2", pins=("v1", "v2")) for name in NAMES]
    planned = plan(version(2), world(done, lives=(2, 1)))
    assert planned.is_empty
    assert "nothing to do" in planned.summary()


def test_a_rollback_moves_pointers_and_nothing_else():
    both = [place(name, active="v2", pins=("v1", "v2")) for name in NAMES]
    planned = plan(version(1), world(both, lives=(2, 1)), kind="rollback")
    assert {step.action for step in planned.steps} == {"fetch", "load", "gate", "activate", "settle", "tag"}
    assert planned.size_bytes == 0  # to prepare what is loaded only claims it


def test_what_is_older_than_the_rollback_goes_serving_replicas_first():
    three = [place(name, active="v2", pins=("v1", "v2")) for name in NAMES]
    planned = plan(version(3), world(three, lives=(2, 1)))
    gone = [(step.stage, step.pin) for step in planned.steps if step.action == "unload"]
    assert {pin for _, pin in gone} == {"v1"}
    assert [stage for stage, _ in itertools.groupby(stage for stage, _ in gone)] == [
        "dense.forget", "edge.forget", "sparse.forget",
    ]  # fmt: skip
    assert not [
        s for s in plan(version(3), world(three, lives=(2, 1)), Options(retain=2)).steps if s.action == "unload"
    ]


def test_what_somebody_else_loaded_is_left_alone():
    odd = [place(name, active="v2", pins=("v2", "by-hand")) for name in NAMES]
    planned = plan(version(3), world(odd, lives=(2, 1)))
    assert not [step for step in planned.steps if step.pin == "by-hand"]


def test_room_is_made_where_three_versions_do_not_fit():
    tight = [place(name, active="v2", pins=("v1", "v2"), free_memory_bytes=50) for name in NAMES]
    needs = {name: Estimate(memory_bytes=120) for name in NAMES}
    planned = plan(version(3), world(tight, lives=(2, 1), estimates=needs))
    assert not planned.refusals
    trimmed = [step for step in planned.steps if step.stage.endswith("trim")]
    assert {step.pin for step in trimmed} == {"v1"}
    assert planned.steps.index(trimmed[-1]) < min(i for i, s in enumerate(planned.steps) if s.action == "load")
    needs = {name: Estimate(memory_bytes=200) for name in NAMES}
    assert rules(plan(version(3), world(tight, lives=(2, 1), estimates=needs))) == {"memory"}


def test_the_old_names_of_free_memory_and_disk_work_and_warn():
    with pytest.deprecated_call(match="Observed: memory_free_bytes is now free_memory_bytes"):
        seen = Observed("dense/0", "dense", memory_free_bytes=5)
    assert seen == Observed("dense/0", "dense", free_memory_bytes=5)
    with pytest.deprecated_call(match=r"Observed\.memory_free_bytes is now Observed\.free_memory_bytes"):
        assert seen.memory_free_bytes == 5
    with pytest.deprecated_call(match="Observed: disk_free_bytes is now free_disk_bytes"):
        assert replace(seen, disk_free_bytes=6) == replace(seen, free_disk_bytes=6)


@pytest.mark.parametrize("what", ["memory", "disk"])
def test_places_of_one_machine_need_room_for_all_of_them(what):
    """Each of seven would fit alone."""
    free = {f"free_{what}_bytes": 500}
    needs = {name: Estimate(**{f"{what}_bytes": 100}) for name in NAMES}
    apart = world([place(name, **free) for name in NAMES], estimates=needs)
    assert not plan(version(2), apart).refusals
    together = world([place(name, host="here", **free) for name in NAMES], estimates=needs)
    planned = plan(version(2), together)
    assert rules(planned) == {what}
    assert "7 places of one host" in planned.summary()


def test_memory_that_is_freed_is_no_room_on_a_disk():
    tight = [place(name, active="v2", pins=("v1", "v2"), free_disk_bytes=50) for name in NAMES]
    needs = {name: Estimate(disk_bytes=120) for name in NAMES}
    assert rules(plan(version(3), world(tight, lives=(2, 1), estimates=needs))) == {"disk"}


FEEDS = {
    "gone": Signature(feed=(), fetch=SIGNATURE.fetch),
    "new": Signature(feed=(*SIGNATURE.feed, Variable(name="age")), fetch=SIGNATURE.fetch),
    "renamed": Signature(feed=(Variable(name="ids", alias="keys", dtype="int64", shape=(-1,)),), fetch=SIGNATURE.fetch),
    "dtype": Signature(feed=(Variable(name="ids", dtype="int32", shape=(-1,)),), fetch=SIGNATURE.fetch),
    "shape": Signature(feed=(Variable(name="ids", dtype="int64", shape=(3,)),), fetch=SIGNATURE.fetch),
    "fetch": Signature(feed=SIGNATURE.feed, fetch=()),
    "fetch dtype": Signature(feed=SIGNATURE.feed, fetch=(Variable(name="score", dtype="float64"),)),
}


@pytest.mark.parametrize("name", FEEDS)
def test_clients_that_would_trip_are_not_surprised(name):
    seen = world([place(each, signature=None if "sparse" in each else SIGNATURE) for each in NAMES])
    assert rules(plan(version(2, signature=FEEDS[name]), seen)) == {"clients"}
    allowed = plan(version(2, signature=FEEDS[name]), seen, Options(allow_signature_change=True))
    assert not allowed.refusals
    assert signature_changes(SIGNATURE, FEEDS[name])


def test_one_more_answer_hurts_nobody():
    more = Signature(feed=SIGNATURE.feed, fetch=(*SIGNATURE.fetch, Variable(name="why")))
    assert signature_changes(SIGNATURE, more) == []


def padded(padding_id, feed="ids"):
    ids = Variable(name="x0", alias="ids", dtype="int64", shape=(-1,))
    lookup = Lookup(feed=feed, input="rows", table="emb", padding_id=padding_id)
    return Signature(feed=(ids,), fetch=SIGNATURE.fetch, lookups=(lookup,))


@pytest.mark.parametrize(
    ("before", "after", "words"), [(0, 7, "0 and is now with 7"), (-1, 0, "nothing and"), (3, -1, "3")]
)
def test_ids_that_clients_fill_up_with_are_part_of_the_signature(before, after, words):
    seen = world([place(each, signature=None if "sparse" in each else padded(before)) for each in NAMES])
    planned = plan(version(2, signature=padded(after)), seen)
    assert rules(planned) == {"clients"}
    assert f"'ids' was padded with {words}" in planned.summary()
    assert not plan(version(2, signature=padded(after)), seen, Options(allow_signature_change=True)).refusals
    assert signature_changes(padded(before), padded(before, feed="x0")) == []  # called by its name or its alias


LOOKS_UP = Signature(lookups=(Lookup(feed="ids", input="rows", table="emb"),))
CASES = {
    "signature": (version(2, untrusted="it is not signed"), {}),
    "empty-shard": (version(2, tables={"emb": facts((10, 0))}), {}),
    "value-size": (version(2, tables={"emb": facts(dim=512, row_bytes=2048)}), {}),
    "no-shards": (version(2, tables={"emb": facts(), "other": facts()}), {}),
    "tables": (version(2, tables={}, signature=LOOKS_UP), {}),
    "tables ": (version(2, tables={"emb": facts(dim=8, row_bytes=32)}), {"was": version(1)}),
    "shards": (version(2), {"places": [place(name, shards=3) if "sparse" in name else place(name) for name in NAMES]}),
    "memory": (
        version(2),
        {
            "places": [place(name, free_memory_bytes=10) for name in NAMES],
            "estimates": {name: Estimate(memory_bytes=11) for name in NAMES},
        },
    ),
    "memory ": (  # a serving replica alone
        version(2),
        {
            "places": [place(name, free_memory_bytes=10 if "dense" in name else None) for name in NAMES],
            "estimates": {name: Estimate(memory_bytes=11) for name in NAMES},
        },
    ),
    "disk": (
        version(2),
        {
            "places": [place(name, free_disk_bytes=10) for name in NAMES],
            "estimates": {name: Estimate(disk_bytes=11) for name in NAMES},
        },
    ),
    "unreachable": (version(2), {"places": [place(NAMES[0], error="connection refused"), *map(place, NAMES[1:])]}),
}


@pytest.mark.parametrize("name", CASES)
def test_what_cannot_work_is_refused_before_anything_is_touched(name):
    desired, how = CASES[name]
    seen = world(**how)
    planned = plan(desired, seen)
    assert name.strip() in rules(planned)
    assert planned.steps == ()
    assert all(refusal.hint or refusal.rule == "shards" for refusal in planned.refusals)
    assert "refused:" in planned.summary()


def test_without_a_sparse_leg_serving_replicas_read_the_rows_themselves():
    seen = world([place("dense/0"), place("dense/1")])
    planned = plan(version(2), seen)
    assert not planned.refusals
    assert [step.place for step in planned.steps if step.stage == "dense.prepare"] == ["dense/0", "dense/1"]
    assert "has no sparse leg: each serving replica reads emb from the bundle" in planned.warnings[0]
    half = version(2, tables={"emb": facts(), "other": facts()})
    assert rules(plan(half, world())) == {"no-shards"}  # with shards for one table only


def test_every_reason_is_told_at_once():
    desired = version(2, untrusted="not signed", tables={"emb": facts((10, 0), row_bytes=2048)})
    assert rules(plan(desired, world())) == {"signature", "empty-shard", "value-size"}


STATES = st.tuples(
    st.sampled_from([(), ("v1",), ("v1", "v2"), ("v2",), ("v1", "v2", "v3"), ("v3",)]), st.integers(0, 3)
)


@given(
    states=st.lists(STATES, min_size=len(NAMES), max_size=len(NAMES)),
    lives=st.sampled_from([(), (1,), (2, 1), (3, 2, 1)]),
    canary=st.sampled_from([0.0, 0.1]),
    kind=st.sampled_from(["release", "rollback", "repair"]),
    retain=st.integers(1, 2),
)
def test_in_every_combination_the_plan_holds_together(states, lives, canary, kind, retain):
    places = [
        place(name, pins=pins, active=pins[at % len(pins)] if pins and at else "")
        for name, (pins, at) in zip(NAMES, states, strict=True)
    ]
    options = Options(canary=canary, retain=retain)
    planned = plan(version(2), world(places, lives=lives), options, kind=kind)
    assert not planned.refusals
    ids = [step.id for step in planned.steps]
    assert len(set(ids)) == len(ids)
    stages = [ORDER.index(step.stage) for step in planned.steps]
    assert stages == sorted(stages)
    by_name = {each.name: each for each in places}
    for step in planned.steps:
        if step.action == "unload":
            assert step.pin not in ("v2", lives[0] if lives else "")
            assert step.pin not in by_name[step.place].active
    # Carried out, the plan leads where it should, and its second edition is empty.
    after = [_carried_out(each, planned) for each in places]
    assert all(each.active == {"v2": 1.0} for each in after)
    now = [2, *(n for n in lives if n != 2)]
    second = plan(version(2), world(after, lives=now), options)
    assert {step.action for step in second.steps} <= {"fetch", "tag", "unload"}
    again = Plan.from_json(json.loads(json.dumps(planned.to_json())))
    assert again == replace(planned, before={k: replace(v, active=dict(v.active)) for k, v in planned.before.items()})


def _carried_out(each, planned):
    for step in planned.steps:
        if step.place == each.name:
            if step.action == "load":
                each = replace(
                    each, versions={**each.versions, step.pin: next(iter(place("dense/0").versions.values()))}
                )
            elif step.action == "activate":
                each = replace(each, active=dict(step.shares))
            elif step.action == "unload":
                each = replace(each, versions={k: v for k, v in each.versions.items() if k != step.pin})
    return each


@given(done=st.lists(st.integers(0, 60), min_size=1, max_size=1), canary=st.sampled_from([0.0, 0.3]))
def test_from_anywhere_the_undo_leads_back(done, canary):
    places = [place(name) for name in NAMES]
    planned = plan(version(2), world(places), Options(canary=canary))
    part = replace(planned, steps=planned.steps[: done[0]])
    after = [_carried_out(each, part) for each in places]
    stages = plan_undo(planned, after, {step.id for step in part.steps})
    for steps in stages:
        for step in steps:
            if step.action == "unload":  # pointers went back before
                assert all("v2" not in each.active for each in after)
        after = [_carried_out(each, replace(planned, steps=steps)) for each in after]
    assert [(each.active, set(each.versions)) for each in after] == [({"v1": 1.0}, {"v1"})] * len(NAMES)


def test_a_place_that_cannot_be_seen_is_asked_if_it_was_touched():
    planned = plan(version(2), world(), Options(canary=0.1))
    away = [place(name, error="away", active="", pins=()) if name == "dense/0" else place(name) for name in NAMES]
    assert plan_undo(planned, away, set()) == []
    touched = {"dense.canary:dense/0", "dense.prepare:dense/0"}
    assert [step.id for steps in plan_undo(planned, away, touched) for step in steps] == [
        "dense.switch:dense/0",
        "dense.forget:dense/0@v2",
    ]


@pytest.mark.parametrize("bad", [{"canary": 1.0}, {"canary": -0.1}, {"bake_s": 5}, {"retain": 0}, {"attempts": 0}])
def test_choices_that_make_no_sense_are_refused(bad):
    with pytest.raises(InputError):
        Options(**bad)


LIVE = Traffic(
    requests=1000, errors=1, latency_p99_ms=10, lookups=1000, misses=10, scores=1000, score_sum=500, score_squares=260
)
GOOD = replace(LIVE, requests=100, errors=0, lookups=100, misses=1, scores=100, score_sum=50, score_squares=26)


@pytest.mark.parametrize(
    ("canary", "why"),
    [
        (GOOD, ""),
        (Traffic(), ""),
        (replace(GOOD, requests=10, errors=10), ""),
        (replace(GOOD, errors=5), "of requests fail"),
        (replace(GOOD, requests=600, latency_p99_ms=26), "99th percentile"),
        (replace(GOOD, requests=400, latency_p99_ms=26), ""),
        (replace(GOOD, misses=10), "rows are missing"),
        (replace(GOOD, score_sum=90), "a mean score of 0.9"),
    ],
)
def test_a_canary_is_judged_by_what_it_does(canary, why):
    assert why in breach(LIVE, canary, Limits())
    assert bool(breach(LIVE, canary, Limits())) == bool(why)


def scored(count, mean, deviation):
    squares = count * (mean * mean + deviation * deviation)
    return replace(GOOD, requests=count, scores=count, score_sum=count * mean, score_squares=squares)


@pytest.mark.parametrize(
    ("canary", "has_moved"),
    [
        (scored(25, 0.15, 0.15), False),  # of twenty-five answers the mean may be there by chance
        (scored(2000, 0.15, 0.15), True),
        (scored(25, 0.9, 0.01), True),
        (scored(2000, 0.22, 0.15), False),
    ],
)
def test_scores_that_moved_are_told_from_a_few_that_differ(canary, has_moved):
    assert ("a mean score" in breach(scored(1000, 0.29, 0.1), canary, Limits())) is has_moved


def timed(counts):
    bounds = [2.0**n for n in range(10)] + [math.inf]
    return replace(GOOD, requests=sum(counts.values()), latencies=dict.fromkeys(bounds, 0) | counts)


@pytest.mark.parametrize(
    ("canary", "is_slow"),
    [
        ({4.0: 30, 512.0: 1}, False),  # one of thirty is all there is to a 99th percentile
        ({4.0: 590, 512.0: 10}, False),  # a stall hit ten of these and eight of those
        ({4.0: 540, 512.0: 60}, True),
        ({16.0: 600}, False),  # perhaps 9 ms
        ({32.0: 600}, True),
        ({4.0: 500, math.inf: 100}, True),
    ],
)
def test_a_slow_canary_is_told_from_a_slow_moment(canary, is_slow):
    live = timed({4.0: 992, 512.0: 8})
    assert live.latency_p99_ms == 4.0
    assert ("99th percentile" in breach(live, timed(canary), Limits())) is is_slow


def test_latencies_of_several_places_and_moments_add_up():
    """One slow replica of many is not the whole of them."""
    quick, slow = (Traffic(requests=n, latencies={4.0: n, 500.0: 0, 1000.0: m}) for n, m in ((200, 0), (0, 1)))
    both = add_up([Health({"v1": quick}), Health({"v1": slow})])["v1"]
    assert (both.requests, both.latency_p50_ms, both.latency_p99_ms, both.slower_than(500.0)) == (200, 4.0, 4.0, 1)
    known = add_up([Health({"v1": Traffic(latency_p99_ms=p99)}) for p99 in (3.0, 9.0)])["v1"]
    assert known.latency_p99_ms == 9.0  # where nobody counts


def test_lives_are_plain_data():
    assert life(1).pin == "v1"


# Another number of shards. Version 1 lives in two, and the target's file now says three.

NEW = [f"sparse/emb/{shard}/{replica}" for shard in range(3) for replica in range(2)]
CUT = {2: version(1), 3: version(1, tables={"emb": facts((7, 7, 6))})}


def in_three(name, **how):
    made = place(name, **how)
    loaded = {pin: replace(each, shards=3) for pin, each in made.versions.items()}
    return replace(made, name=f"{name}of3", shards=3, versions=loaded)


def cut_life(number, shards):
    return replace(life(number), shards={"emb": shards})


def both(*, old=None, new=None):
    """A target with both layouts."""
    return [
        *(place(name, **(old or {}) if "sparse" in name else {}) for name in NAMES),
        *(in_three(name, **(new or {"active": "", "pins": ()})) for name in NEW),
    ]


def test_the_next_version_goes_to_the_new_shards_and_what_is_live_stays():
    seen = replace(world(both()), lives=[cut_life(1, 2)], shards={"emb": 3})
    planned = plan(version(2, tables={"emb": facts((7, 7, 6))}), seen)
    assert not planned.refusals
    sparse = {step.place for step in planned.steps if step.stage.startswith("sparse.")}
    assert sparse == {f"{name}of3" for name in NEW}
    assert not [step for step in planned.steps if step.action in ("unload", "retire")]
    assert planned.warnings == ("emb: cut anew, from 2 to 3 shards; the old ones stay as long as v1",)
    assert Plan.from_json(json.loads(json.dumps(planned.to_json()))).shards == {"emb": 3}


def test_a_version_goes_back_to_the_layout_it_was_live_in():
    lives = [cut_life(2, 3), cut_life(1, 2)]
    places = both(new={"active": "v2", "pins": ("v2",)})
    home = at_home(CUT[3], lives, places)
    assert home.shards == {"emb": 2}
    assert at_home(CUT[3], lives, [each for each in places if each.shards == 3]).shards == {"emb": 3}  # that one ended
    assert at_home(CUT[3], lives, both(old={"active": "v2", "pins": ("v2",)})).shards == {"emb": 3}  # or it went
    assert at_home(CUT[3], lives[1:], both(old={"active": "", "pins": ()})).shards == {"emb": 2}  # it is live, and lost
    planned = plan(home, replace(world(places), lives=lives, shards={"emb": 3}), kind="rollback")
    assert not [step for step in planned.steps if step.stage == "sparse.switch"]  # readers there still get it


def test_a_layout_ends_with_the_last_version_that_is_kept_in_it():
    shards = [p for p in both(new={"active": "v2", "pins": ("v2",)}) if p.leg == "sparse"]
    others = [place(name, active="v2", pins=("v1", "v2")) for name in NAMES if "sparse" not in name]
    seen = replace(world([*shards, *others]), lives=[cut_life(2, 3), cut_life(1, 2)], shards={"emb": 3})
    three = version(3, tables={"emb": facts((7, 7, 6))})
    old = {name for name in NAMES if "sparse" in name}
    kept = plan(three, seen, Options(retain=2))
    assert not [step for step in kept.steps if step.place in old or step.stage == "retire"]
    planned = plan(three, seen)
    assert {(s.stage, s.pin) for s in planned.steps if s.place in old} == {("sparse.idle", ""), ("sparse.forget", "v1")}
    assert planned.steps[-1].stage == "retire"
    before = replace(seen, lives=[life(2), life(1)])  # of a journal that does not say how they were cut
    assert not [step for step in plan(three, before).steps if step.stage in ("sparse.idle", "retire")]


def test_shards_that_do_not_run_yet():
    seen = replace(world(), lives=[cut_life(1, 2)], shards={"emb": 3})
    planned = plan(version(2, tables={"emb": facts((7, 7, 6))}), seen)
    assert rules(planned) == {"shards"}
    assert "goes into 3 shards and prod has servers for 2" in planned.summary()


def test_a_replica_that_was_given_another_layout_forgets_it_before_the_rows_go():
    """Version 2 was rolled back from and is still loaded; released again into new shards, it is taken back."""
    old = [place(name, pins=("v1", "v2")) for name in NAMES]
    new = [in_three(name, active="", pins=()) for name in NEW]
    seen = replace(world([*old, *new]), lives=[cut_life(1, 2)], shards={"emb": 3})
    planned = plan(version(2, tables={"emb": facts((7, 7, 6))}), seen)
    after = [*old, *(in_three(name, active="", pins=("v2",)) for name in NEW)]
    undone = [steps for steps in plan_undo(planned, after, {step.id for step in planned.steps}) if steps]
    forgets = [steps[0].stage for steps in undone if steps[0].action == "unload"]
    assert forgets == ["dense.forget", "sparse.forget"]
    assert {step.place for step in undone[-1]} == {f"{name}of3" for name in NEW}
    assert not [step for steps in plan_undo(planned, after, set()) for step in steps if step.stage == "dense.forget"]


def test_a_bundle_with_the_pin_of_another_is_refused():
    digests = ["sha256:" + letter * 64 for letter in "ab"]
    desired = replace(version(2), digest=digests[0])
    lived = replace(life(2), ref=f"ctr@{digests[1]}")
    assert rules(plan(desired, replace(world(), lives=[life(1), lived]))) == {"pin"}
    holder = place(NAMES[-3], pins=("v1", "v2"))
    holder = replace(holder, versions={**holder.versions, "v2": replace(holder.versions["v2"], digest=digests[1])})
    others = [place(name) for name in NAMES if name != holder.name]
    assert rules(plan(desired, world([holder, *others]))) == {"pin"}
    same = replace(lived, ref=f"ctr@{digests[0]}")
    assert not plan(desired, replace(world(), lives=[life(1), same])).refusals


def away(name):
    return place(name, active="", pins=(), error="no answer")


def test_the_way_back_moves_serving_replicas_before_shards():
    planned = plan(version(2), world())
    after = [place(name, active="v2", pins=("v1", "v2")) for name in NAMES]
    undone = plan_undo(planned, after, {step.id for step in planned.steps})
    assert [steps[0].stage for steps in undone if steps[0].action == "activate"] == [
        "dense.switch", "edge.switch", "sparse.switch",
    ]  # fmt: skip


def test_the_way_back_asks_every_place_again_that_was_asked_before():
    """From then on it refuses a delayed call of what is undone, even where it answers as it should."""
    planned = plan(version(2), world())
    after = [place(name, pins=("v1", "v2")) for name in NAMES]
    undone = plan_undo(planned, after, {step.id for step in planned.steps})
    asked = {(step.place, *(step.shares or {})) for steps in undone for step in steps if step.action == "activate"}
    assert asked == {(name, "v1") for name in NAMES}


def test_a_place_that_lost_what_it_answered_with_stops_answering_with_what_is_undone():
    planned = plan(version(2), world())
    others = [place(name, active="v2", pins=("v1", "v2")) for name in NAMES if name != "dense/0"]
    undone = plan_undo(planned, [*others, place("dense/0", active="v2", pins=("v2",))], {s.id for s in planned.steps})
    (silenced,) = [step for steps in undone for step in steps if step.shares == {}]
    assert (silenced.place, silenced.stage) == ("dense/0", "dense.switch")
    stages = [{step.place for step in steps} for steps in undone if steps[0].action == "activate"]
    assert stages.index({"dense/1"}) < stages.index({"dense/0"})  # by then another one answers


def test_a_replica_that_lags_keeps_its_rows_and_goes_back_to_what_is_live():
    others = [place(name, active="v2", pins=("v1", "v2")) for name in NAMES if name != "dense/0"]
    planned = plan(version(3), world([*others, place("dense/0", pins=("v1", "v2"))], lives=(2, 1)))
    assert not [step for step in planned.steps if step.stage == "sparse.forget"]
    assert planned.before["dense/0"].active == {"v2": 1.0}


def test_what_was_there_before_survives_the_way_back():
    both_loaded = [place(name, pins=("v1", "v2")) for name in NAMES]
    planned = plan(version(2), world(both_loaded))
    undone = plan_undo(planned, both_loaded, {step.id for step in planned.steps})
    assert not [step for steps in undone for step in steps if step.action == "unload"]


def test_a_place_that_was_away_loses_nothing_on_the_way_back():
    """It may have had the version before the release that is taken back."""
    others = [place(name, active="v2", pins=("v2",)) for name in NAMES if name != "dense/1"]
    planned = plan(version(1), world([*others, away("dense/1")], lives=(2, 1)), kind="rollback")
    assert planned.away.keys() == {"dense/1"}
    back = [*others, place("dense/1", active="v2", pins=("v1", "v2"))]
    undone = plan_undo(planned, back, {step.id for step in planned.steps})
    assert "dense/1" not in {step.place for steps in undone for step in steps if step.action == "unload"}


def test_while_a_place_is_away_nothing_old_goes():
    """It may answer requests with any version that it had."""
    others = [place(name, active="v2", pins=("v1", "v2")) for name in NAMES if name != "dense/1"]
    planned = plan(version(3), world([*others, away("dense/1")], lives=(2, 1)), leave_away=True)
    assert not planned.refusals
    assert not [step for step in planned.steps if step.action in ("unload", "retire")]


def test_a_layout_stays_while_a_replica_that_lags_reads_it():
    shards = [p for p in both(new={"active": "v2", "pins": ("v2",)}) if p.leg == "sparse"]
    others = [place(name, active="v2", pins=("v1", "v2")) for name in NAMES if name in ("dense/1", "edge/a")]
    lags = place("dense/0", active="v1", pins=("v1",))
    seen = replace(world([*shards, *others, lags]), lives=[cut_life(2, 3), cut_life(1, 2)], shards={"emb": 3})
    planned = plan(version(3, tables={"emb": facts((7, 7, 6))}), seen)
    assert not [step for step in planned.steps if step.stage in ("sparse.idle", "sparse.forget", "retire")]


def test_room_is_not_made_of_what_is_live():
    """A replica that lags has the live version loaded, and goes back to it."""
    others = [place(name, active="v2", pins=("v1", "v2")) for name in NAMES if not name.startswith("dense")]
    tight = place("dense/1", active="v2", pins=("v1", "v2"), free_memory_bytes=50)
    lags = place("dense/0", active="v1", pins=("v1", "v2"))
    needs = {name: Estimate(memory_bytes=120) for name in NAMES}
    planned = plan(version(3), world([*others, tight, lags], lives=(2, 1), estimates=needs))
    trimmed = {(step.place, step.pin) for step in planned.steps if step.stage.endswith("trim")}
    assert trimmed == {("dense/1", "v1"), ("edge/a", "v1")}


def test_a_rollback_needs_a_replica_of_every_shard():
    gone = ("sparse/emb/0/0", "sparse/emb/0/1")
    both_loaded = [place(name, active="v2", pins=("v1", "v2")) for name in NAMES if name not in gone]
    one_left = [*both_loaded, away(gone[0]), place(gone[1], active="v2", pins=("v1", "v2"))]
    assert not plan(version(1), world(one_left, lives=(2, 1)), kind="rollback").refusals
    none_left = [*both_loaded, *map(away, gone)]
    assert rules(plan(version(1), world(none_left, lives=(2, 1)), kind="rollback")) == {"unreachable"}


def test_a_rule_is_one_function(monkeypatch):
    monkeypatch.setattr(_preconditions, "RULES", list(_preconditions.RULES))

    @_preconditions.rule("friday", "Release it on Monday.")
    def no_friday(proposal):
        """A release on a Friday is repaired on a Saturday."""
        yield f"{proposal.desired} would go to {proposal.world.target} on a Friday"

    planned = plan(version(2), world())
    assert [(each.rule, each.hint) for each in planned.refusals] == [("friday", "Release it on Monday.")]
    assert planned.refusals[0].what == "ctr:2 would go to prod on a Friday"


def test_every_rule_says_why():
    source = ast.parse(Path(_preconditions.__file__).read_text())
    rules = [each for each in source.body if isinstance(each, ast.FunctionDef) and each.decorator_list]
    assert len(rules) == len(_preconditions.RULES)
    assert all(ast.get_docstring(each) for each in rules)
