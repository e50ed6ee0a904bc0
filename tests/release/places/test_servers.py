"""What the places of a local target read from the admin APIs; tests/release/local has them with real servers."""

from __future__ import annotations

import numpy as np
import pytest

from cloudedge.bundle import Bundle
from cloudedge.config import TargetConfig
from cloudedge.cube.delivery import ArtifactCache, DeliveryPolicy, TableVersion
from cloudedge.hub import LocalHub
from cloudedge.release.local import places
from cloudedge.release.local._processes import ServerProcess
from cloudedge.release.places._servers import Dispatch
from cloudedge.serving import AdminClient

pytestmark = pytest.mark.parts

COUNTED = {"answered": 100, "failed": 0, "p50_ms": 900.0, "p99_ms": 900.0}
COUNTED |= dict.fromkeys(("keys", "missing_keys", "defaulted_keys", "scores", "score_sum", "score_squares"), 0)


@pytest.fixture
def replica():
    (place,) = places("small", TargetConfig.model_validate({"kind": "local", "dense": {"replicas": 1}}))
    return place


@pytest.fixture
def answers(monkeypatch):
    """Let the admin API answer what a test says."""

    def say(what, told):
        monkeypatch.setattr(AdminClient, what, lambda self: told)

    return say


def test_a_slow_minute_before_the_bake_is_not_the_canary_s(replica, answers):
    answers("stats", {"versions": {"v2": COUNTED | {"latency_buckets": [[4.0, 0], [1000.0, 100], [None, 0]]}}})
    assert replica.watch().traffic["v2"].latency_p99_ms == 1000.0
    later = COUNTED | {"answered": 300, "latency_buckets": [[4.0, 200], [1000.0, 100], [None, 0]]}
    answers("stats", {"versions": {"v2": later}})
    since = replica.watch().traffic["v2"]
    assert (since.requests, since.latency_p50_ms, since.latency_p99_ms) == (200, 4.0, 4.0)


def test_a_replica_that_counts_no_latencies_says_what_it_knows(replica, answers):
    answers("stats", {"versions": {"v2": COUNTED}})
    replica.watch()
    assert replica.watch().traffic["v2"].latency_p99_ms == 900.0


def test_the_memory_of_a_serving_replica(replica, answers):
    loaded = {"pin": "v1", "bundle": "ctr:1", "state": "ready", "error": "", "tables": {}}
    told = {"versions": [loaded | {"memory_bytes": 700}], "variants": [], "active": None}
    answers("versions", told | {"free_memory_bytes": 1000})
    seen = replica.observe()
    assert (seen.versions["v1"].memory_bytes, seen.free_memory_bytes) == (700, 1000)
    answers("versions", told | {"versions": [loaded]})  # one that does not measure
    seen = replica.observe()
    assert (seen.versions["v1"].memory_bytes, seen.free_memory_bytes) == (0, None)


def test_what_another_shard_is_still_fetching_is_not_cleaned_away(tmp_path):
    """Many tables at once name more artifacts than are kept afterwards."""
    kept = DeliveryPolicy().artifacts_kept
    workshop = ArtifactCache(tmp_path / "artifacts")
    seat = ServerProcess("sparse/emb/0of1/0", 1, 2, "emb", 0, 1)
    dispatch = Dispatch([seat], token="t", artifacts=workshop, hub=LocalHub(tmp_path / "hub"))
    tables = [table(tmp_path, number) for number in range(kept + 2)]
    with dispatch.delivering():
        (slow,) = workshop.base(tables[0], 1)
        for each in tables[1:]:
            with dispatch.delivering():
                workshop.base(each, 1)
        assert slow.directory.exists()
    left = {path.name for path in workshop.artifacts.iterdir()}
    assert left == {f"base-{each.checksum}-1" for each in tables[-kept:]}


def table(folder, number):
    keys = np.arange(4, dtype=np.uint64)
    model = folder / f"model-{number}"
    model.mkdir()
    (model / "model").write_text(str(number))
    rows = {"keys": keys, "values": np.full((4, 2), number, np.float32)}
    bundle = Bundle.pack(model, name="ctr", sparse={"emb": rows}, hub=LocalHub(folder / "hub"))
    return TableVersion("emb", bundle.pin, bundle.sparse["emb"])
