"""`cloudedge cube deliver` and `reshard` on real servers, as somebody at a terminal would use them."""

from __future__ import annotations

import contextlib
import json
import time

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from cloudedge.bundle import Bundle
from cloudedge.cli import app
from cloudedge.cube import Client, CubeConf
from cloudedge.cube.delivery import ArtifactCache, Delivery, ServerLayout, reshard, write_conf
from cloudedge.hub import LocalHub
from tests.cube.delivery.fleet import TOKEN, Fleet
from tests.cube.delivery.tables import DIM, Tables, arrays, changed

pytestmark = pytest.mark.parts


@pytest.fixture
def run(monkeypatch, tmp_path):
    monkeypatch.setenv("CLOUDEDGE_CUBE_TOKEN", TOKEN)

    def call(*arguments, ok=True):
        done = CliRunner().invoke(app, ["cube", *map(str, arguments)], catch_exceptions=True)
        assert (done.exit_code == 0) is ok, done.output + repr(done.exception)
        return done

    return call


def layout_file(path, *fleets):
    tables = {
        fleet.table: [
            [{"address": s.address, "admin": f"127.0.0.1:{s.admin_port}"} for s in fleet.servers if s.shard == shard]
            for shard in range(fleet.shards)
        ]
        for fleet in fleets
    }
    path.write_text(yaml.safe_dump({"tables": tables}))
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
        plan = json.loads(run("deliver", *where, "--rollback", "--dry-run", "--json").stdout)
        assert {step["version"] for step in plan["steps"]} == {first.version}
        assert {each.status().active for each in fleet.replicas()} == {second.version}
        run("deliver", *where, "--rollback")
        assert {each.status().active for each in fleet.replicas()} == {first.version}
        assert json.loads(run("deliver", *where, "--abort", "--json").stdout) == {"given_up": False}


def test_what_was_cut_short_is_shown_and_left_alone_by_a_dry_run(run, tmp_path, monkeypatch):
    tables = Tables(tmp_path / "t")
    with Fleet(tmp_path / "fleet", 1, 2) as fleet:
        where = ("--layout", layout_file(tmp_path / "layout.yaml", fleet), "--work", tmp_path / "w")
        hub = ("--hub", tables.folder)
        versions = [tables.fresh().version for _ in range(3)]
        for number in (1, 2):
            run("deliver", f"model:{number}", *where, *hub)

        def cut(*_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:  # killed before it activates
            patched.setattr(Delivery, "_activate_all", cut)
            run("deliver", "model:3", *where, *hub, ok=False)
        for _ in range(2):  # a dry run of --abort gives nothing up
            plan = json.loads(run("deliver", *where, "--abort", "--dry-run", "--json").stdout)
            assert {(step["kind"], step["version"]) for step in plan["steps"]} == {("forget", versions[2])}
        with monkeypatch.context() as patched:  # and between two pointers
            patched.setattr(Delivery, "_verify_active", cut)
            run("deliver", "model:3", *where, *hub, ok=False)
        plan = json.loads(run("deliver", *where, "--rollback", "--dry-run", "--json").stdout)
        assert {step["version"] for step in plan["steps"]} == {versions[1]}
        run("deliver", *where, "--rollback")
        assert {each.status().active for each in fleet.replicas()} == {versions[1]}


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
        tables.fresh()  # model:2, which is in the hub and nowhere live
        for more in ((), ("--dry-run",)):
            wrong = run("reshard", "model:2", *where, *hub, *more, ok=False)
            assert f"answers from {version.version}, not from" in str(wrong.exception)
        assert not conf.exists()
        assert {each.status().active for each in new.replicas()} == {None}
        (moved,) = json.loads(run("reshard", "model:1", *where, *hub, "--json").stdout)["tables"]
        assert (moved["from"], moved["to"]) == (2, 3)
        with Client.from_conf(conf, "emb") as client:
            found = client.seek(list(tables.rows[version.version]), pin=version.version)
        assert found.found.all()
        free = ("reshard", "--free", "--old", files[0], "--conf", conf, "--rest-s", 0.3)
        assert json.loads(run(*free, "--dry-run", "--json").stdout)["would_free"] == [
            each.name for each in layout_replicas(files[0])
        ]
        done = run("reshard", "--free", "--old", files[1], "--conf", conf, ok=False)
        assert "sends readers of table 'emb' to" in str(done.exception)
        freed = json.loads(run(*free, "--json").stdout)
        assert (len(freed["freed"]), freed["away"]) == (2, [])
        deadline = time.monotonic() + 60
        while len(json.loads(run(*free, "--json").stdout)["away"]) < 2:
            assert time.monotonic() < deadline


def layout_replicas(path):
    return ServerLayout.from_file(path).replicas()


def test_tables_of_a_bundle_are_resharded_together_and_can_go_back(run, tmp_path):
    """Readers find both tables at every moment, and the version before is there too."""
    hub, conf = tmp_path / "hub", tmp_path / "cube.conf"
    pins = pack_two_tables(hub, tmp_path / "dense")
    names = ("ads", "emb")
    with contextlib.ExitStack() as stack:
        old, new = (
            {name: stack.enter_context(Fleet(tmp_path / which / name, shards, 1, table=name)) for name in names}
            for which, shards in (("old", 1), ("new", 2))
        )
        files = [layout_file(tmp_path / f"{w}.yaml", *each.values()) for w, each in (("old", old), ("new", new))]
        one = layout_file(tmp_path / "one.yaml", new["ads"])
        for number in (1, 2):
            run("deliver", f"model:{number}", "--layout", files[0], "--work", tmp_path / "w1", "--hub", hub)
        where = ("--conf", conf, "--work", tmp_path / "w2", "--hub", hub)
        done = run("reshard", "model:2", "--old", files[0], "--new", one, *where, ok=False)
        assert "the new layout has no table 'emb'" in str(done.exception)
        seen = []

        def watch(path, text):
            seen.append({each["dict_name"]: each["shard"] for each in json.loads(text.to_text())})
            write_conf(path, text)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("cloudedge.cube.delivery._reshard.write_conf", watch)
            moved = json.loads(run("reshard", "model:2", "--old", files[0], "--new", files[1], *where, "--json").stdout)
        assert seen == [{"ads": 2, "emb": 2}]  # once, when both are there
        assert moved["previous"] == dict.fromkeys(names, pins[0])
        for name in names:
            with Client.from_conf(conf, name) as client:
                assert [client.seek([1], pin=pin).values[0, 0] for pin in pins] == [1.0, 2.0]
        run("deliver", "--rollback", "--layout", files[1], "--work", tmp_path / "w2")
        assert {each.status().active for fleet in new.values() for each in fleet.replicas()} == {pins[0]}


def test_only_the_tables_that_move_are_written(tmp_path):
    """cube.conf may name tables of other bundles, and a new layout servers that have nothing yet."""
    tables, conf = Tables(tmp_path / "t"), tmp_path / "cube.conf"
    with Fleet(tmp_path / "old", 1, 1) as old, Fleet(tmp_path / "new", 2, 1) as new:
        before = ServerLayout.from_file(layout_file(tmp_path / "old.yaml", old))
        after = ServerLayout.from_file(layout_file(tmp_path / "new.yaml", new))
        elsewhere = {"other": [[{"address": "10.0.0.1:1"}]]}
        before = ServerLayout.model_validate({"tables": {**before.model_dump()["tables"], **elsewhere}})
        after = ServerLayout.model_validate(
            {"tables": {**after.model_dump()["tables"], "other": [[{"address": "10.0.0.2:1"}]]}}
        )
        write_conf(conf, before.to_conf())
        version = tables.fresh()
        with Delivery(old.replicas(), ArtifactCache(tmp_path / "o")) as delivery:
            delivery.deliver([version])
        with Delivery(new.replicas(), ArtifactCache(tmp_path / "w")) as delivery:
            reshard([version], old=before, new=after, delivery=delivery, conf=conf, token=TOKEN)
        assert CubeConf.from_file(conf)["other"].replicas(0) == (("10.0.0.1", 1),)
        assert CubeConf.from_file(conf)["emb"].shards == 2


def pack_two_tables(hub, dense):
    dense.mkdir()
    pins = []
    for number in (1, 2):
        (dense / "model").write_text(f"dense {number}")
        table = arrays({key: np.full(DIM, number, np.float32) for key in range(1, 50)})
        sparse = {"ads": table, "emb": table}
        pins.append(Bundle.pack(dense, name="model", sparse=sparse, hub=LocalHub(hub), copy=True).pin)
    return pins
