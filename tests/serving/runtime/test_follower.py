"""A replica that follows a document: from a file, from the admin API, and after its process was started again."""

from __future__ import annotations

import time

import pytest
import requests

from cloudedge.bundle import Bundle
from cloudedge.errors import Conflict, NotFound
from cloudedge.hub import LocalHub
from cloudedge.serving import AdminClient, AdminServer, Desired, DesiredVersion, Follower, Runtime, Server, ServerConfig
from cloudedge.serving.runtime import _follower as follower_module

pytestmark = pytest.mark.parts

TOKEN = "a token"


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(follower_module, "_POLL_S", 0.02)
    monkeypatch.setattr(follower_module, "_RETRY_S", 0.05)


class Replica:
    """A pod's worth of serving: an empty hub of its own, and one to pull from."""

    def __init__(self, folder, models):
        self.folder, self.models = folder, models
        self.file, self.kept = folder / "state.json", folder / "kept" / "desired.json"
        self.hub = LocalHub(folder / "hub")
        self.pulled = []

    def fetch(self, ref, tables):
        self.pulled.append((ref, tables))
        Bundle.pull(ref, self.models.hub, hub=self.hub, tables=tables)

    def __enter__(self):
        self.runtime = Runtime(hub=self.hub)
        self.follower = Follower(self.runtime, self.file, kept=self.kept, fetch=self.fetch).start()
        self.server = Server(self.runtime, ServerConfig(port=0)).start()
        self.admin = AdminServer(self.server, token=TOKEN, follower=self.follower)
        self.client = AdminClient(f"127.0.0.1:{self.admin.port}", token=TOKEN)
        return self

    def __exit__(self, *_):
        self.client.close()
        self.admin.close()
        self.server.close()
        self.follower.close()
        self.runtime.close()

    def until(self, order):
        end = time.monotonic() + 60
        while (status := self.client.desired())["reached"] < order:
            assert time.monotonic() < end, status
            time.sleep(0.01)

    @property
    def shares(self):
        return self.runtime.routing.shares

    @property
    def loaded(self):
        return [version.pin for version in self.runtime.versions()]


@pytest.fixture
def replica(tmp_path, models):
    return Replica(tmp_path, models)


def document(models, order, numbers, shares):
    versions = tuple(
        DesiredVersion(pin=models.marked[each].pin, bundle=models.ref(models.marked[each])) for each in numbers
    )
    return Desired(order=order, versions=versions, shares={models.marked[each].pin: s for each, s in shares.items()})


def test_it_starts_from_the_file_and_is_ready_only_then(replica, models):
    zero, one, two = (each.pin for each in models.marked)
    with replica:
        replica.until(0)
        assert not replica.client.is_ready()
        replica.file.write_text(document(models, 3, [0, 1], {0: 1.0}).model_dump_json())
        replica.until(3)
        assert (replica.loaded, replica.shares, replica.client.is_ready()) == ([zero, one], {zero: 1.0}, True)
        replica.client.set_desired(document(models, 5, [0, 1, 2], {1: 0.75, 2: 0.25}))
        replica.until(5)
        assert (replica.loaded, replica.shares) == ([zero, one, two], {one: 0.75, two: 0.25})
        replica.client.set_desired(document(models, 6, [2], {2: 1.0}))
        replica.until(6)
        assert (replica.loaded, replica.shares) == ([two], {two: 1.0})
    with replica:  # started again beside a file that is older than what it was told
        assert replica.follower.desired.order == 6
        replica.until(6)
        assert (replica.loaded, replica.shares) == ([two], {two: 1.0})


def test_an_older_document_is_refused_and_so_are_other_orders(replica, models):
    with replica:
        replica.client.set_desired(document(models, 5, [0], {0: 1.0}))
        replica.until(5)
        for late in (document(models, 4, [1], {1: 1.0}), document(models, 5, [1], {1: 1.0})):
            with pytest.raises(Conflict):
                replica.client.set_desired(late)
        replica.client.set_desired(document(models, 5, [0], {0: 1.0}))  # the same again is fine
        for refused in (
            lambda: replica.client.activate(models.marked[0].pin),
            lambda: replica.client.load(models.ref(models.marked[1])),
            lambda: replica.client.unload(models.marked[0].pin),
            replica.client.deactivate,
            lambda: replica.client.set_weights([]),
        ):
            with pytest.raises(Conflict, match="follows a document"):
                refused()
        bad = requests.put(
            f"{replica.client.url}/desired",
            json={"order": "x"},
            headers={"Authorization": f"Bearer {TOKEN}"},
            timeout=5,
        )
        assert bad.status_code == 400
        replica.client.set_desired(document(models, 9, [0], {}))
        replica.until(9)
        assert (replica.shares, replica.client.is_ready()) == ({}, False)


def test_what_cannot_be_had_is_told_and_tried_again(replica, models):
    """A version that is missing keeps nobody from answering with the others."""
    missing = DesiredVersion(pin="0" * 12, bundle=f"marked@sha256:{'0' * 64}")
    wanted = document(models, 1, [0], {0: 1.0})
    with replica:
        replica.client.set_desired(wanted.model_copy(update={"versions": (*wanted.versions, missing)}))
        end = time.monotonic() + 30
        while not (failures := replica.client.desired()["failures"]):
            assert time.monotonic() < end
            time.sleep(0.01)
        assert failures[missing.pin]["kind"] == NotFound.__name__
        assert replica.client.is_ready()
        assert replica.client.desired()["reached"] < 1
        replica.client.set_desired(document(models, 2, [0], {0: 1.0}))
        replica.until(2)


def test_tables_stay_where_they_are(replica, models):
    """With shards to read rows from, a replica pulls everything but the tables."""
    bundle = models.rows
    Bundle.pull(models.ref(bundle), models.hub, hub=replica.hub, tables=False)
    here = Bundle.open(models.ref(bundle), hub=replica.hub)
    tables = {layer.digest for layers in here.table_layers.values() for layer in layers}
    assert tables
    there = {blob.digest for blob in here.manifest.blobs if replica.hub.has_blob(here.name, blob)}
    assert there == {blob.digest for blob in here.manifest.blobs} - tables
    assert here.signature == bundle.signature
    Bundle.pull(models.ref(bundle), models.hub, hub=replica.hub)
    assert all(replica.hub.has_blob(here.name, blob) for blob in here.manifest.blobs)
