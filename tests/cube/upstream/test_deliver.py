"""`cloudedge cube deliver` of bundles to upstream's servers, named by cloudedge.yaml and by transfer.conf."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack

import pytest
import yaml
from typer.testing import CliRunner

from cloudedge.bundle import Bundle
from cloudedge.cli import app
from cloudedge.cube.upstream import AtomicSwitch
from cloudedge.hub import LocalHub
from cloudedge.testing.upstream_cube import UpstreamCluster
from tests.cube.delivery.server_kinds import SCALE
from tests.cube.delivery.tables import arrays, rows_of

pytestmark = pytest.mark.parts

TABLES = {"emb": (2, 2), "ads": (1, 1)}  # shards, copies
ALL = 5


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLOUDEDGE_HOME", str(tmp_path / "home"))

    def call(*arguments, ok=True):
        done = CliRunner().invoke(app, ["cube", *map(str, arguments)], catch_exceptions=True)
        assert (done.exit_code == 0) is ok, done.output + repr(done.exception)
        return json.loads(done.stdout) if "--json" in arguments and ok else done.output + str(done.exception)

    return call


@pytest.fixture
def clusters(tmp_path):
    with ExitStack() as stack:
        yield {
            table: stack.enter_context(
                UpstreamCluster(tmp_path / table, shards=shards, copies=copies, time_scale=SCALE)
            )
            for table, (shards, copies) in TABLES.items()
        }


def shards_of(cluster):
    shards = [[] for _ in range(cluster.shards)]
    for each in cluster.instances:
        agent, address = (f"127.0.0.1:{port}" for port in (each.agent.port, each.server.port))
        shards[each.shard].append({"address": address, "agent": agent, "folder": str(each.server.deploy_path)})
    return shards


def write_config(folder, clusters, **more):
    tables = {name: {"shards": shards_of(cluster)} for name, cluster in clusters.items()}
    entry = {"servers": "upstream", "tables": tables, "work": str(folder / "work"), **more}
    (folder / "cloudedge.yaml").write_text(yaml.safe_dump({"transfers": {"ctr": entry}}))


def pack(folder, number, tables=tuple(TABLES)):
    """Pack a bundle whose tables have other rows than those of any other number."""
    dense = folder / "dense"
    dense.mkdir(exist_ok=True)
    (dense / "model").write_text(f"dense {number}")
    rows = {table: rows_of(10 * number + place, 50) for place, table in enumerate(tables)}
    sparse = {table: arrays(each) for table, each in rows.items()}
    bundle = Bundle.pack(dense, name="model", sparse=sparse, hub=LocalHub(folder / "hub"), copy=True)
    return bundle.pin, rows


def serve(clusters, rows):
    """Tell whether every server of every table answers with these rows."""
    return all(
        each.server.seek([key])[0] == [row.tobytes()]
        for table, cluster in clusters.items()
        for each in cluster.instances
        for key, row in rows[table].items()
        if key % cluster.shards == each.shard
    )


def test_all_tables_of_a_bundle_switch_together_and_back(run, tmp_path, clusters):
    write_config(tmp_path, clusters)
    where = ("--to", "ctr", "--hub", tmp_path / "hub")
    (first, old), (second, new) = (pack(tmp_path, number) for number in (1, 2))

    plan = run("deliver", "model:1", *where, "--dry-run", "--json")
    assert {(step["how"], step["form"]) for step in plan["steps"] if step["kind"] == "stage"} == {("base", "tar")}
    assert "mixture" in plan["guarantee"]
    assert {version for cluster in clusters.values() for version in cluster.versions()} == {""}

    run("deliver", "model:1", *where)
    assert serve(clusters, old)
    done = run("deliver", "model:2", *where, "--json")
    assert done["versions"] == dict.fromkeys(TABLES, second)
    assert (done["switch"]["version"], done["switch"]["changed"]) == (second, ALL)  # one switch for both tables
    assert 0 <= done["switch"]["mixed_at_least_s"] <= done["switch"]["mixed_at_most_s"]
    assert serve(clusters, new)

    found = run("status", "--of", "ctr", "--bundle", "model:2", "--hub", tmp_path / "hub", "--json")["replicas"]
    assert [(each["active"], each["rows"], each["probe"]) for each in found] == [(second, None, "ok")] * ALL
    instance = clusters["ads"].instances[0]
    asked, missed = instance.server.counts("total_key_num"), instance.server.counts("unfound_key_num")
    instance.server.seek([10**9] * 3)  # nobody has that key
    (ads,) = (each for each in run("status", "--of", "ctr", "--json")["replicas"] if each["table"] == "ads")
    assert ads["miss_rate"] == (missed + 3) / (asked + 3)  # looking itself counts for nothing
    again = run("deliver", "model:2", *where, "--json")
    assert (again["shipped_bytes"], again["switch"]) == (0, None)
    assert "mixed for at most" in run("deliver", "--to", "ctr", "--rollback")
    assert serve(clusters, old)
    assert {each["active"] for each in run("status", "--of", "ctr", "--json")["replicas"]} == {first}


def test_one_server_of_one_table_that_refuses_takes_all_tables_back(run, tmp_path, clusters):
    write_config(tmp_path, clusters)
    where = ("--to", "ctr", "--hub", tmp_path / "hub")
    (_, old), (_, new) = (pack(tmp_path, number) for number in (1, 2))
    run("deliver", "model:1", *where)
    clusters["ads"].instances[0].server.refuse["enable"] = 1000
    assert "ads/0/0 did not switch" in run("deliver", "model:2", *where, ok=False)
    assert serve(clusters, old)
    clusters["ads"].instances[0].server.refuse.clear()
    run("deliver", "model:2", *where)
    assert serve(clusters, new)


def test_tables_go_back_to_what_each_of_them_had(run, tmp_path, clusters):
    """The bundle in between has only one of them."""
    write_config(tmp_path, clusters)
    where = ("--to", "ctr", "--hub", tmp_path / "hub")
    (first, one), (second, two), _ = pack(tmp_path, 1), pack(tmp_path, 2, ["emb"]), pack(tmp_path, 3)
    for number in (1, 2, 3):
        run("deliver", f"model:{number}", *where)
    back = run("deliver", "--to", "ctr", "--rollback", "--json")
    assert back["versions"] == {"emb": second, "ads": first}
    assert back["switch"]["version"] == f"ads {first}, emb {second}"
    assert serve(clusters, {"emb": two["emb"], "ads": one["ads"]})


def test_a_switch_that_was_cut_short_goes_on_and_says_that_it_was(run, tmp_path, clusters, monkeypatch):
    write_config(tmp_path, clusters)
    where = ("--to", "ctr", "--hub", tmp_path / "hub")
    _, rows = pack(tmp_path, 1)

    def cut(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(AtomicSwitch, "switch", cut)
        run("deliver", "model:1", *where, ok=False)
    done = run("deliver", "model:1", *where, "--json")
    assert any("cut short before" in each for each in done["warnings"])
    assert serve(clusters, rows)


@pytest.mark.parametrize("more", [(), ("--through-agent",)])
def test_a_transfer_conf_names_the_servers(run, tmp_path, clusters, more):
    cluster = {"emb": clusters["emb"]}
    conf = tmp_path / "transfer.conf"
    (tmp_path / "donefile").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    made = clusters["emb"].conf(donefile_address=str(tmp_path / "donefile"), table="emb", wget_port=port)
    conf.write_text(made.to_text())
    where = ("--config", conf, "--hub", tmp_path / "hub", *more)
    (first, old), (second, new) = (pack(tmp_path, number, ["emb"]) for number in (1, 2))
    for rows, number in ((old, 1), (new, 2)):
        done = run("deliver", f"model:{number}", *where, "--json")
        assert (done["switch"]["replicas"], done["switch"]["changed"]) == (4, 4)
        assert done["switch"]["mixed_at_most_s"] > 0
        assert serve(cluster, rows)
    found = run("status", "--config", conf, "--json")["replicas"]
    assert [each["active"] for each in found] == [second] * 4
    if more:
        assert "does not have version" in run("deliver", "--config", conf, "--rollback", *more, ok=False)
    else:  # the journal is the one that a transfer of that file has
        plan = run("transfer", "--config", conf, "--rollback", "--dry-run", "--json")
        assert {(step["kind"], step["version"]) for step in plan["steps"]} == {("activate", first)}
        assert serve(cluster, new)
        assert run("transfer", "--config", conf, "--rollback", "--json")["version"] == first
        assert serve(cluster, old)
    pack(tmp_path, 3)
    said = run("deliver", "model:3", *where, ok=False)
    assert "no replica serves table 'ads'" in said


def test_what_does_not_fit_upstreams_servers_is_named(run, tmp_path, clusters):
    write_config(tmp_path, clusters)
    pack(tmp_path, 1)
    hub = ("--hub", tmp_path / "hub")
    for options, why in (
        (("--to", "ctr", "--limit-mb-s", 1), "cloudedge.yaml has them"),
        (("--config", "x", "--work", "y"), "output_address"),
        (("--layout", "x", "--through-agent"), "have no agents"),
        (("--config", "x", "--conf", "y"), "name the servers once"),
    ):
        assert why in run("deliver", "model:1", *options, *hub, ok=False)
    said = run("reshard", "model:1", "--old", "ctr", "--new", "ctr", "--conf", "c", *hub, ok=False)
    assert "upstream's" in said
    tables = {name: {"shards": shards_of(each), "donefiles": str(tmp_path)} for name, each in clusters.items()}
    write_config(tmp_path, clusters, tables=tables)
    assert "follows its donefiles" in run("deliver", "model:1", "--to", "ctr", *hub, ok=False)
