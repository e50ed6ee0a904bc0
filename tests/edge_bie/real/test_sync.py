"""The sync against the real baetyl-cloud: BIE's tutorial from nothing, twice, exported, drifted and back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cloudedge.edge_bie.client import Bie, Node, StoredObjects, Text
from cloudedge.edge_bie.sync import Sync, desired_state, export_documents, load_documents, write_documents
from cloudedge.hub.objects._directory import DirectoryStore
from tests.edge_bie.real.cloud import real_cloud
from tests.edge_bie.sync.samples import app, config, desired, example

pytestmark = pytest.mark.parts


@pytest.fixture(scope="module")
def baetyl(tmp_path_factory):
    with real_cloud(tmp_path_factory.mktemp("baetyl")) as running:
        yield running


def test_the_whole_walk(baetyl, tmp_path, monkeypatch):
    monkeypatch.setenv("TOKEN", "t0p-s3cret")
    lines = []
    objects = StoredObjects(DirectoryStore(tmp_path / "objects"), "http://files.example")
    wanted = desired_state(load_documents(example(tmp_path / "f")), objects)
    more = desired(
        config("greeting"),
        {"kind": "secret", "name": "keys", "values": {"token": "env:TOKEN"}, "description": "of ours"},
        {"kind": "registry", "name": "images", "address": "r.example", "username": "u", "password": "env:TOKEN"},
        app("second", "greeting", registries=["images"], replica=2, workload="daemonset"),
    )
    with (
        Bie.from_url(baetyl.admin_url, audit=lines.append) as bie,
        Sync(bie, objects=objects, folder=tmp_path / "state") as sync,
    ):
        bie.put_node(Node("paddle-serving-test"))
        assert len(sync.apply(wanted).plan.steps) == 4
        sync.apply(more)
        written = len(lines)
        assert sync.apply(wanted).plan.is_in_sync
        assert sync.apply(more).plan.is_in_sync
        assert len(lines) == written, "a second apply writes nothing"
        told = bie.node("paddle-serving-test").desire_apps
        assert told["paddle-serving"] == bie.app("paddle-serving").version
        write_documents(export_documents(bie), tmp_path / "exported")
        planned = sync.plan(desired_state(load_documents(tmp_path / "exported")))
        assert planned.is_in_sync, planned
        script = bie.config("paddle-yolov3-run-script")
        bie.put_config(replace(script, items={"run.sh": Text("echo drifted\n")}))
        assert [step.name for step in sync.drift("seed").steps] == ["paddle-yolov3-run-script"]
        sync.apply(wanted)
        assert sync.drift("seed").is_in_sync
        smaller = desired(config("greeting"), named="ours")
        sync.apply(smaller, delete=True)
        assert bie.app("second") is None
        assert bie.secret("keys") is None
        assert bie.registry("images") is not None, "what going back needs stays"
        sync.apply(sync.recall(sync.history.before("ours")))
        assert bie.app("second").registries == ("images",)
    assert "s3cret" not in repr(lines)
