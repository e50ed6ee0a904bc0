"""Files that are sent to a server through its admin port: whole, resumed, checked, refused where they do not fit."""

from __future__ import annotations

import os

import pytest
import requests

from cloudedge.admin import ordered, piece_header
from cloudedge.clock import ManualClock
from cloudedge.cube import AdminServer, Server, ServerConfig
from cloudedge.cube.delivery import CubeReplica, ReplicaDelivery
from cloudedge.cube.delivery import _cube_replica as replica_module
from cloudedge.cube.server._version_store import VersionStore
from cloudedge.errors import Conflict, IntegrityError, Unavailable
from tests.cube.delivery.tables import changed

pytestmark = pytest.mark.parts

TOKEN = "for tests"


class Shard:
    def __init__(self, folder):
        self.server = Server(ServerConfig(port=0, threads=1))
        self.server.start()
        self.held = VersionStore(self.server, folder)
        self.admin = AdminServer(self.server, token=TOKEN, holdings=self.held)
        self.url = f"http://127.0.0.1:{self.admin.port}"
        self.replica = CubeReplica(
            "emb", 0, address=self.server.address, admin=self.url[7:], token=TOKEN, push=True, deadline_s=30
        )

    def ask(self, method, path, **more):
        headers = {"Authorization": f"Bearer {TOKEN}"} | more.pop("headers", {})
        return requests.request(method, self.url + path, headers=headers, timeout=10, **more)

    def begin(self, name, artifact):
        return self.ask("POST", "/staged", json={"name": name, "artifact": artifact.as_json(), "sources": []})

    def send(self, name, file, content, offset):
        return self.ask("PUT", f"/staged/{name}/{file}", data=content, headers=piece_header(offset))


@pytest.fixture
def shard(tmp_path):
    shard = Shard(tmp_path / "state")
    yield shard
    shard.admin.close()
    shard.server.close()


def test_a_base_and_a_delta_are_sent(shard, tables, workshop, monkeypatch):
    monkeypatch.setattr(replica_module, "_PIECE", 1000)
    base = tables.fresh()
    later = tables.version(changed(tables.rows[base.version], 1), base)
    with ReplicaDelivery([shard.replica], workshop) as courier:
        whole = courier.prepare(shard.replica, base)
        changes = courier.prepare(shard.replica, later, [base])
        assert courier.prepare(shard.replica, later, [base]) == 0
        courier.verify(shard.replica, later)
    assert 0 < changes < whole == workshop.base(base, 1)[0].size
    assert [each.name for each in shard.server.versions()] == [base.version, later.version]


def test_what_is_sent_keeps_to_the_limit_of_who_delivers(shard, tables, workshop, monkeypatch):
    monkeypatch.setattr(replica_module, "_PIECE", 1000)
    clock, version = ManualClock(), tables.fresh()
    with ReplicaDelivery([shard.replica], workshop, limit_bytes_per_s=1000, clock=clock) as courier:
        begun = clock.monotonic()
        sent = courier.prepare(shard.replica, version)
    assert sent > 3000
    assert clock.monotonic() - begun >= (sent - 1000) / 1000  # a clock that only its sleepers move


def test_it_goes_on_where_it_stopped(shard, tables, workshop, monkeypatch):
    version = tables.fresh()
    artifact = workshop.base(version, 1)[0]
    first = max(artifact.files, key=lambda file: file.size)
    content = (artifact.directory / first.name).read_bytes()
    there = shard.begin("v", artifact).json()
    assert there["state"] == "partial"
    assert set(there["there"].values()) == {0}
    assert shard.send("v", first.name, content[:100], 0).json()["there"] == 100
    late = shard.send("v", first.name, content[:100], 0)  # its answer was lost, so it comes again
    assert (late.status_code, late.json()["kind"]) == (409, "Conflict")
    assert shard.begin("v", artifact).json()["there"][first.name] == 100
    assert shard.replica.stage("v", artifact) == artifact.size - 100
    assert shard.begin("v", artifact).json()["state"] == "staged"
    assert shard.replica.stage("v", artifact) == 0


def test_what_is_damaged_on_its_way_is_thrown_away(shard, tables, workshop):
    artifact = workshop.base(tables.fresh(), 1)[0]
    file = max(artifact.files, key=lambda each: each.size)
    content = bytearray((artifact.directory / file.name).read_bytes())
    content[-1] ^= 1
    shard.begin("v", artifact)
    answer = shard.send("v", file.name, bytes(content), 0)
    assert (answer.status_code, answer.json()["kind"]) == (500, IntegrityError.__name__)
    assert shard.begin("v", artifact).json()["there"][file.name] == 0
    assert shard.replica.stage("v", artifact) == artifact.size


def test_what_was_not_announced_is_refused(shard, tables, workshop):
    artifact = workshop.base(tables.fresh(), 1)[0]
    file = artifact.files[0]
    assert shard.send("v", file.name, b"x", 0).status_code == 404
    shard.begin("v", artifact)
    assert shard.send("v", "../state.json", b"x", 0).status_code == 404
    assert shard.send("v", "other", b"x", 0).status_code == 404
    assert shard.send("v", file.name, b"x" * (file.size + 1), 0).status_code == 409
    assert shard.ask("PUT", f"/staged/v/{file.name}", json={"offset": 0}).status_code == 400
    assert shard.ask("PUT", f"/staged/v/{file.name}", data=b"x", headers={"Content-Type": "text/x"}).status_code == 415
    bad = shard.ask("PUT", f"/staged/v/{file.name}", data=b"x", headers=piece_header(0) | {"Cloudedge-Offset": "-1"})
    assert bad.status_code == 400
    too_long = shard.send("v", file.name, bytes(AdminServer.max_piece_bytes + 1), 0)
    assert (too_long.status_code, too_long.json()["kind"]) == (400, "InputError")
    stranger = requests.put(f"{shard.url}/staged/v/{file.name}", data=b"x", headers=piece_header(0), timeout=10)
    assert stranger.status_code == 401


def test_a_late_piece_is_not_obeyed(shard, tables, workshop):
    artifact = workshop.base(tables.fresh(), 1)[0]
    with ordered(7):
        shard.replica.stage("v", artifact)
    with ordered(6), pytest.raises(Conflict):
        shard.replica.stage("w", artifact)


@pytest.mark.parametrize(("change", "error"), [(1, Conflict), (-1, Unavailable)])
def test_a_file_that_is_not_as_announced_is_not_sent_for_ever(shard, tables, workshop, change, error):
    artifact = workshop.base(tables.fresh(), 1)[0]
    path = artifact.directory / max(artifact.files, key=lambda each: each.size).name
    path.chmod(0o600)
    os.truncate(path, path.stat().st_size + change)
    with pytest.raises(error, match="v"):
        shard.replica.stage("v", artifact)
    assert shard.begin("v", artifact).json()["state"] == "partial"
