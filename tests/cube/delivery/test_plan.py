"""Plans: decided from plain data, in many combinations."""

from __future__ import annotations

import dataclasses
import random

import pytest

from cloudedge.cube.delivery import (
    DeliveryPolicy,
    ObservedReplica,
    ReplicaStatus,
    ShardRows,
    VersionState,
    WantedVersion,
    plan_delivery,
    plan_rollback,
)
from cloudedge.errors import InputError, IntegrityError, StorageError, Unavailable

pytestmark = pytest.mark.rules

SUM = "{:032x}".format


def wanted(version="v9", shards=2, rows=1000, deltas=(), changed=()):
    held = tuple(ShardRows(rows, SUM(900 + shard)) for shard in range(shards))
    return WantedVersion("emb", version, 64, held, (84_000,) * shards, dict(deltas), dict(changed))


@pytest.mark.parametrize(
    ("changed", "base", "needed"),
    [
        (100, {}, 3 * 100 * 96),
        (240, {"deltas": 1, "memory_bytes": 50 * 96}, 3 * 240 * 96 + 50 * 96 + 1000 * 96),
        (300, {}, 3 * 300 * 96 + 1000 * 96),
    ],
    ids=["a few rows", "with those it had, a table of its own", "a table of its own"],
)
def test_a_delta_that_compresses_well_still_needs_room_for_its_rows(changed, base, needed):
    """However small it travels; one of more than a quarter of the rows becomes a whole table there."""
    want = wanted(shards=1, deltas={SUM(100): 500}, changed={SUM(100): changed})
    for free, refused in ((needed, False), (needed - 1, True)):
        seen = [replica(versions={"v1": loaded(1, **base)}, active="v1", free_memory_bytes=free)]
        plan = plan_delivery([want], seen, DeliveryPolicy())
        assert {step.how for step in plan.of("stage")} == {"delta"}
        assert [str(needed) in each.message for each in plan.refusals] == ([True] if refused else [])


def loaded(number, shard=0, **more):
    return VersionState("loaded", 1000, SUM(number * 100 + shard), **more)


def replica(shard=0, number=0, **status):
    return ObservedReplica(f"emb/{shard}/{number}", "emb", shard, ReplicaStatus(**status))


def fleet(**status):
    return [replica(shard, number, **status) for shard in range(2) for number in range(2)]


def test_empty_servers_get_bases_and_everything_is_ready_before_anything_moves():
    plan = plan_delivery([wanted()], fleet(), DeliveryPolicy())
    kinds = [step.kind for step in plan.steps]
    assert kinds == ["stage", "load", "verify"] * 4 + ["activate"] * 4
    assert {step.how for step in plan.of("stage")} == {"base"}
    assert plan.bytes_to_ship == 4 * 84_000
    assert all(step.reason for step in plan.steps)
    assert "as base, 84000 bytes: it has none" in str(plan.steps[0])


def test_a_replica_that_has_everything_gets_nothing():
    done = [replica(s, versions={"v9": loaded(9, s)}, active="v9") for s in range(2)]
    plan = plan_delivery([wanted()], done, DeliveryPolicy())
    assert [step.kind for step in plan.steps] == ["verify", "verify"]
    assert plan.bytes_to_ship == 0


@pytest.mark.parametrize(
    ("version", "policy", "how", "why"),
    [
        (loaded(1), DeliveryPolicy(), "delta", "it has version v1"),
        (loaded(2), DeliveryPolicy(), "base", "none of the versions"),
        (loaded(1, deltas=8), DeliveryPolicy(), "base", "8 deltas already"),
        (loaded(1, deltas=2, delta_bytes=41_500), DeliveryPolicy(), "base", "too large a share"),
        (loaded(1), DeliveryPolicy(max_delta_share=0.001), "base", "too large a share"),
        (VersionState("staged", 1000, SUM(100)), DeliveryPolicy(), "base", "none of the versions"),
    ],
)
def test_delta_or_base_by_what_the_replica_has(version, policy, how, why):
    want = wanted(shards=1, deltas=[(SUM(100), 840)])
    (step,) = plan_delivery([want], [replica(versions={"v1": version}, active="v1")], policy).of("stage")
    assert (step.how, why in step.reason) == (how, True), step
    assert step.bytes == (840 if how == "delta" else 84_000)


def test_the_smallest_delta_wins():
    want = wanted(shards=1, deltas=[(SUM(100), 900), (SUM(200), 800), (SUM(300), 850)])
    has = {f"v{n}": loaded(n) for n in (1, 2, 3)}
    (step,) = plan_delivery([want], [replica(versions=has, active="v3")], DeliveryPolicy()).of("stage")
    assert (step.base, step.bytes) == (SUM(200), 800)


def test_servers_that_take_no_deltas_get_the_form_they_want():
    want = wanted(shards=1, deltas=[(SUM(100), 800)])
    status = {"versions": {"v1": loaded(1)}, "active": "v1", "can_delta": False, "form": "tar"}
    (step,) = plan_delivery([want], [replica(**status)], DeliveryPolicy()).of("stage")
    assert (step.how, step.form) == ("base", "tar")


@pytest.mark.parametrize(
    ("observed", "kind", "words"),
    [
        (replica(free_disk_bytes=10), StorageError, "emb/0/0 has 10 bytes of disk left"),
        (replica(free_memory_bytes=10), StorageError, "emb/0/0 has 10 bytes of memory left"),
        (replica(versions={"v9": loaded(1)}), IntegrityError, "emb/0/0 has a version v9 with rows"),
        (
            ObservedReplica("emb/0/0", "emb", 0, None, Unavailable("no answer")),
            Unavailable,
            "emb/0/0 is away: no answer",
        ),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_done(observed, kind, words):
    (refusal,) = plan_delivery([wanted(shards=1)], [observed], DeliveryPolicy()).refusals
    assert isinstance(refusal, kind)
    assert words in refusal.message
    assert (refusal.table, refusal.shard, refusal.replica) == ("emb", 0, "emb/0/0")
    assert refusal.hint


def test_a_shard_that_nobody_serves_is_refused():
    (refusal,) = plan_delivery([wanted(shards=2)], [replica(0)], DeliveryPolicy()).refusals
    assert isinstance(refusal, InputError)
    assert "no replica serves shard 1" in refusal.message


def test_what_is_forgotten():
    has = {f"v{n}": loaded(n) for n in (1, 2, 3)} | {"half": VersionState("staging")}
    plan = plan_delivery(
        [wanted(shards=1)], [replica(versions=has, active="v2", previous="v1")], DeliveryPolicy(keep=2)
    )
    assert [step.version for step in plan.of("forget")] == ["v1", "v3", "half"]
    plan = plan_delivery(
        [wanted(shards=1)], [replica(versions=has, active="v2", previous="v1")], DeliveryPolicy(keep=3)
    )
    assert [step.version for step in plan.of("forget")] == ["v1", "half"]


def test_rollback_moves_pointers_only_and_only_to_what_is_loaded():
    has = {"v1": loaded(1), "v2": loaded(2)}
    plan = plan_rollback({"emb": "v1"}, [replica(versions=has, active="v2"), replica(1, versions=has, active="v1")])
    assert [(step.kind, step.replica, step.bytes) for step in plan.steps] == [("activate", "emb/0/0", 0)]
    plan = plan_rollback({"emb": "v0"}, [replica(versions=has, active="v2")])
    assert "does not have version v0 loaded" in plan.refusals[0].message


def any_fleet(rng, shards):
    """Servers with any versions, one of them active or none, the wanted one perhaps there or half there."""
    for shard in range(shards):
        for number in range(rng.randint(1, 3)):
            names = [f"v{n}" for n in range(1, 9) if rng.random() < 0.4]
            has = {n: loaded(int(n[1:]), shard, deltas=rng.randint(0, 9)) for n in names}
            if rng.random() < 0.2:
                has["v9"] = loaded(9, shard) if rng.random() < 0.5 else VersionState("staged", 1000, SUM(900 + shard))
            ready = [n for n, v in has.items() if v.state == "loaded"]
            active = rng.choice(ready) if ready else None
            previous = rng.choice([n for n in ready if n != active] or [None])
            yield replica(shard, number, versions=has, active=active, previous=previous)


def do(steps, each):
    """Do steps on a model of a replica, and see that none does what may not be done."""
    status = each.status
    versions, active, previous = dict(status.versions), status.active, status.previous
    for step in steps:
        if step.kind == "stage" and step.how == "delta":
            assert step.base in {version.checksum for version in status.loaded().values()}
            assert step.bytes < 84_000
        elif step.kind == "load":
            versions["v9"] = loaded(9, each.shard)
        elif step.kind == "verify":
            assert versions["v9"].checksum == SUM(900 + each.shard)
        elif step.kind == "activate":
            active, previous = "v9", active
        elif step.kind == "forget":
            assert step.version not in (active, previous)
            del versions[step.version]
    now = dataclasses.replace(status, versions=versions, active=active, previous=previous)
    return dataclasses.replace(each, status=now)


@pytest.mark.parametrize("seed", range(300))
def test_any_fleet_gets_there_in_one_delivery(seed):
    rng = random.Random(seed)
    shards = rng.randint(1, 3)
    observed = list(any_fleet(rng, shards))
    offered = [(SUM(n * 100 + shard), rng.randint(1, 90_000)) for n in (3, 5) for shard in range(shards)]
    want, policy = wanted(shards=shards, deltas=offered), DeliveryPolicy(keep=rng.randint(1, 4))
    plan = plan_delivery([want], observed, policy)
    assert plan.refusals == ()
    after = [do([step for step in plan.steps if step.replica == each.replica], each) for each in observed]
    for each in after:
        assert each.status.active == "v9"
        assert len(each.status.versions) <= max(policy.keep, 2)
    assert {step.kind for step in plan_delivery([want], after, policy).steps} == {"verify"}
