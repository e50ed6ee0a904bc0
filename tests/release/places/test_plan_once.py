"""A release plans each delivery once, and serves files only where a server is to fetch some."""

from __future__ import annotations

import numpy as np
import pytest

from cloudedge.bundle import Bundle
from cloudedge.cube import AdminServer, Server, ServerConfig
from cloudedge.cube.delivery import ArtifactCache, _replica_delivery
from cloudedge.cube.server._version_store import VersionStore
from cloudedge.hub import LocalHub
from cloudedge.journal import Journal
from cloudedge.release import HubBundleSource, ReleaseContext, Target
from cloudedge.release.local._processes import ServerProcess
from cloudedge.release.places import Dispatch, ShardPlace

pytestmark = pytest.mark.parts

TOKEN = "for tests"
PLACE = "sparse/emb/0of1/0"


@pytest.fixture
def counts(monkeypatch):
    """Count the deliveries that are planned and the file servers that are opened."""
    found = {"plans": 0, "file servers": 0}

    def counting(name, what):
        original = getattr(_replica_delivery, name)

        def count(*args, **kwargs):
            found[what] += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(_replica_delivery, name, count)

    counting("plan_delivery", "plans")
    counting("FileServer", "file servers")
    return found


@pytest.fixture
def open_target(tmp_path):
    """Return a function that opens a target of one cube server, as a new process would."""
    server = Server(ServerConfig(port=0, threads=1))
    server.start()
    admin = AdminServer(server, token=TOKEN, holdings=VersionStore(server, tmp_path / "state"))
    hub = LocalHub(tmp_path / "hub")
    listens = ServerProcess(PLACE, int(server.address.rpartition(":")[2]), admin.port, "emb", 0, 1)

    def open_it():
        artifacts = ArtifactCache(tmp_path / "artifacts")
        place = ShardPlace(listens, Dispatch([listens], token=TOKEN, artifacts=artifacts, hub=hub))
        source = HubBundleSource("t", hub, shards={"emb": 1})
        return Target(ReleaseContext("t", {place.name: place}, Journal(tmp_path / "t.db"), source, by="ann"))

    yield open_it
    admin.close()
    server.close()


@pytest.fixture
def pack(tmp_path):
    def make(number):
        model = tmp_path / f"model-{number}"
        model.mkdir()
        (model / "model").write_text(str(number))
        values = np.zeros((1000, 4), np.float32)
        values[:10] = number
        rows = {"keys": np.arange(1000, dtype=np.uint64), "values": values}
        return Bundle.pack(model, name="ctr", version=str(number), sparse={"emb": rows}, hub=LocalHub(tmp_path / "hub"))

    return make


def test_a_plan_opens_no_file_server(open_target, pack, counts):
    plan = open_target().plan(pack(1))
    assert plan.size_bytes > 0
    assert counts == {"plans": 1, "file servers": 0}


def test_a_release_carries_out_the_delivery_that_it_estimated(open_target, pack, counts):
    target = open_target()
    assert target.run(target.plan(pack(1))).state == "done"
    assert counts == {"plans": 1, "file servers": 1}
    plan = target.plan(pack(2))
    outcome = target.run(plan)
    assert 0 < outcome.bytes <= plan.size_bytes < 1000 * 24  # a delta, as it was estimated
    assert counts == {"plans": 2, "file servers": 2}


def test_a_rollback_to_what_is_loaded_plans_no_delivery(open_target, pack, counts):
    target = open_target()
    for number in (1, 2):
        target.run(target.plan(pack(number)))
    before = dict(counts)
    assert target.rollback().state == "done"
    assert counts == before


def test_a_delivery_is_planned_anew_where_the_server_changed(open_target, pack, counts):
    target, other = open_target(), open_target()
    first, second = pack(1), pack(2)
    target.run(target.plan(first))
    place, version = other._context.places[PLACE], other._context.bundles.version(f"ctr@{second.digest}")
    place.estimate(version)
    place.estimate(version)
    assert counts["plans"] == 2  # the second estimate found the server as the first did
    place.activate({}, order=10_000)
    place.unload(first.pin, order=10_001)
    shipped = place.load(version, order=10_002)
    assert (shipped.how, counts["plans"]) == ("base", 3)  # the delta that was planned has no base any more


def test_another_process_that_resumes_plans_anew(open_target, pack, counts, monkeypatch):
    target = open_target()
    plan = target.plan(pack(1))
    with monkeypatch.context() as patch:
        patch.setattr(ShardPlace, "load", killed)
        with pytest.raises(KeyboardInterrupt):
            target.run(plan)
    target._context.journal.close()
    assert counts == {"plans": 1, "file servers": 0}
    assert open_target().resume().state == "done"
    assert counts == {"plans": 2, "file servers": 1}


def killed(*_args, **_more):
    raise KeyboardInterrupt
