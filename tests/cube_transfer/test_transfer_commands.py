"""`cloudedge cube deliver` and `reshard` on real servers, as somebody at a terminal would use them."""

from __future__ import annotations

import json

import pytest
import yaml
from transfer_fleet import TOKEN, Fleet
from transfer_tables import Tables, changed
from typer.testing import CliRunner

from cloudedge.cli import app
from cloudedge.cube import Client


@pytest.fixture
def run(monkeypatch, tmp_path):
    monkeypatch.setenv("CLOUDEDGE_CUBE_TOKEN", TOKEN)

    def call(*arguments, ok=True):
        done = CliRunner().invoke(app, ["cube", *map(str, arguments)], catch_exceptions=True)
        assert (done.exit_code == 0) is ok, done.output + repr(done.exception)
        return done

    return call


def layout_file(path, fleet):
    shards = [
        [{"address": s.address, "admin": f"127.0.0.1:{s.admin_port}"} for s in fleet.servers if s.shard == shard]
        for shard in range(fleet.shards)
    ]
    path.write_text(yaml.safe_dump({"tables": {fleet.table: shards}}))
    return path


def test_deliver_a_base_a_delta_and_back(run, tmp_path):
    tables = Tables(tmp_path / "t")
    with Fleet(tmp_path / "fleet", 2, 2) as fleet:
        where = ("--layout", layout_file(tmp_path / "layout.yaml", fleet), "--work", tmp_path / "w")
        first = tables.fresh()
        second = tables.version(changed(tables.rows[first.version], 1), first)
        hub = ("--hub", tables.folder)

        plan = run("deliver", "model:1", *where, *hub, "--dry-run").stdout
        assert "stage" in plan
        assert "activate" in plan
        assert all(each.status().active is None for each in fleet.replicas())

        shipped = [json.loads(run("deliver", f"model:{n}", *where, *hub, "--json").stdout) for n in (1, 2)]
        assert [each["versions"]["emb"] for each in shipped] == [first.version, second.version]
        assert shipped[1]["shipped_bytes"] < shipped[0]["shipped_bytes"] / 3  # rows that changed, not the table

        again = json.loads(run("deliver", "model:2", *where, *hub, "--json").stdout)
        assert again["shipped_bytes"] == 0
        run("deliver", *where, "--rollback")
        assert {each.status().active for each in fleet.replicas()} == {first.version}
        run("deliver", *where, "--abort")


def test_one_thing_at_a_time(run, tmp_path):
    done = run("deliver", "model:1", "--rollback", "--layout", tmp_path / "none.yaml", ok=False)
    assert "one thing to do" in str(done.exception)


def test_reshard(run, tmp_path):
    tables, conf = Tables(tmp_path / "t"), tmp_path / "cube.conf"
    with Fleet(tmp_path / "old", 2, 1) as old, Fleet(tmp_path / "new", 3, 1) as new:
        files = layout_file(tmp_path / "old.yaml", old), layout_file(tmp_path / "new.yaml", new)
        version = tables.fresh()
        hub = ("--hub", tables.folder)
        run("deliver", "model:1", "--layout", files[0], "--work", tmp_path / "w2", *hub)
        where = ("--old", files[0], "--new", files[1], "--conf", conf, "--work", tmp_path / "w3")
        run("reshard", "model:1", *where, *hub, "--dry-run")
        assert not conf.exists()
        (moved,) = json.loads(run("reshard", "model:1", *where, *hub, "--json").stdout)["tables"]
        assert (moved["from"], moved["to"]) == (2, 3)
        with Client.from_conf(conf, "emb") as client:
            found = client.seek(list(tables.rows[version.version]), pin=version.version)
        assert found.found.all()
