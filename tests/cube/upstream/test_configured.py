"""Transfers as cloudedge.yaml describes them: to our servers and to upstream's, by name."""

from __future__ import annotations

import hashlib
import json

import pytest
import yaml
from typer.testing import CliRunner

from cloudedge import seqfile
from cloudedge.cli import app
from cloudedge.config import load
from cloudedge.cube import DoneEntry, append_donefile
from cloudedge.cube.upstream import ConfiguredTransfer
from cloudedge.errors import ConfigError
from cloudedge.testing.upstream_cube import UpstreamCluster
from tests.cube.delivery.fleet import TOKEN, Fleet
from tests.cube.delivery.server_kinds import SCALE, SHARDS, running
from tests.cube.delivery.tables import Tables

pytestmark = pytest.mark.parts


@pytest.fixture
def run(monkeypatch, tmp_path):
    monkeypatch.setenv("FLEET", TOKEN)
    monkeypatch.chdir(tmp_path)

    def call(*arguments, ok=True):
        done = CliRunner().invoke(app, ["cube", *map(str, arguments)], catch_exceptions=True)
        assert (done.exit_code == 0) is ok, done.output + repr(done.exception)
        return json.loads(done.stdout) if "--json" in arguments and ok else done.output + str(done.exception)

    return call


def write_config(folder, **transfer):
    (folder / "cloudedge.yaml").write_text(yaml.safe_dump({"transfers": {"ctr": transfer}}))


def own(servers, **more):
    shards = [[] for _ in range(SHARDS)]
    for replica in servers.replicas():
        shards[replica.shard].append({"address": replica.address, "admin": replica.admin})
    return {"emb": {"shards": shards, **more}}


def trained(folder, number, rows, key=None, **more):
    """Write rows, and say so in a donefile."""
    part = folder / "trained" / str(number) / "part-0"
    part.parent.mkdir(parents=True)
    with seqfile.Writer(part) as out:
        for each, value in rows.items():
            out.append(each, value.tobytes())
    append_donefile(
        folder / "done" / ("base.txt" if key is None else "patch.txt"),
        DoneEntry(number, key or number, str(part.parent)),
    )
    return part


def test_bundles_and_donefiles_to_our_servers(run, tmp_path):
    tables = Tables(tmp_path / "t")
    (tmp_path / "done").mkdir()
    with running("cube", tmp_path / "fleet") as servers:
        write_config(
            tmp_path, tables=own(servers, donefiles=str(tmp_path / "done")), work=str(tmp_path / "work"),
            token="env:FLEET", keep=3, bandwidth="50MB", jobs=2, poll="30s", deadline="10m",
        )  # fmt: skip
        first = tables.fresh()
        done = run("deliver", "model:1", "--to", "ctr", "--hub", tables.folder, "--json")
        assert done["versions"] == {"emb": first.version}
        assert servers.serves(tables.rows[first.version], first.version)
        assert run("status", "--of", "ctr")

        rows = tables.rows[first.version]
        trained(tmp_path, 10, rows)
        assert run("transfer", "ctr", "--dry-run", "--json")["deliver"] == "10"
        whole = run("transfer", "ctr", "--once", "--json")
        assert (whole["version"], whole["delivered"]) == ("10", True)
        key = next(iter(rows))
        trained(tmp_path, 11, {key: rows[key] + 1}, key=10)
        patched = run("transfer", "ctr", "--once", "--json")
        assert patched["version"] == "10_11"
        assert patched["shipped_bytes"] < whole["shipped_bytes"] / 4  # the row that changed, to two replicas
        assert servers.serves({**rows, key: rows[key] + 1}, "10_11")
        run("transfer", "ctr", "--rollback")
        assert servers.serves(rows, "10")


def test_reshard_between_two_entries(run, tmp_path):
    tables = Tables(tmp_path / "t")
    with running("cube", tmp_path / "fleet") as servers, Fleet(tmp_path / "new", 3, 1) as new:
        shards = [[{"address": each.address, "admin": each.admin}] for each in new.replicas()]
        common = {"token": "env:FLEET", "bandwidth": "50MB"}
        entries = {
            "two": {"tables": own(servers), "work": str(tmp_path / "w2"), **common},
            "three": {"tables": {"emb": {"shards": shards}}, "work": str(tmp_path / "w3"), **common},
        }
        (tmp_path / "cloudedge.yaml").write_text(yaml.safe_dump({"transfers": entries}))
        version = tables.fresh()
        run("deliver", "model:1", "--to", "two", "--hub", tables.folder)
        moved = run("reshard", "model:1", "--old", "two", "--new", "three", "--conf", tmp_path / "cube.conf",
                    "--hub", tables.folder, "--json")  # fmt: skip
        assert moved["tables"] == [{"table": "emb", "from": SHARDS, "to": 3}]
        assert {each.status().active for each in new.replicas()} == {version.version}
        assert (tmp_path / "w3" / "journal.db").exists()


def test_donefiles_to_upstreams_servers(run, tmp_path):
    tables = Tables(tmp_path / "t")
    rows = tables.rows[tables.fresh().version]
    (tmp_path / "done").mkdir()
    with UpstreamCluster(tmp_path / "cluster", shards=SHARDS, copies=2, time_scale=SCALE) as cluster:
        shards = [[] for _ in range(SHARDS)]
        for each in cluster.instances:
            agent, address = (f"127.0.0.1:{port}" for port in (each.agent.port, each.server.port))
            shards[each.shard].append({"address": address, "agent": agent, "folder": str(each.server.deploy_path)})
        table = {"shards": shards, "donefiles": str(tmp_path / "done"), "patches": False}
        write_config(tmp_path, servers="upstream", tables={"emb": table}, work=str(tmp_path / "work"))
        trained(tmp_path, 10, rows)
        trained(tmp_path, 11, {1: next(iter(rows.values()))}, key=10)
        assert run("transfer", "ctr", "--once", "--json")["version"] == "10"  # without what patch.txt says
        assert len(set(cluster.versions())) == 1
        key = next(iter(rows))
        assert {each.server.seek([key])[0][0] for each in cluster.instances if each.shard == key % SHARDS} == {
            rows[key].tobytes()
        }
        assert "upstream's" in run("deliver", "model:1", "--to", "ctr", ok=False)
        found = run("status", "--of", "ctr", f"--key={key}", "--json")["replicas"]
        assert [(each["active"], each["probe"]) for each in found] == [("10", "ok")] * (2 * SHARDS)
        cluster.instances[0].server.kill()
        assert "emb/0/0: away" in run("status", "--of", "ctr", ok=False)


def test_an_md5_beside_a_file_is_compared(run, tmp_path):
    rows = Tables(tmp_path / "t")
    rows = rows.rows[rows.fresh().version]
    (tmp_path / "done").mkdir()
    with running("cube", tmp_path / "fleet") as servers:
        write_config(
            tmp_path, tables=own(servers, donefiles=str(tmp_path / "done")), work=str(tmp_path / "w"), token="env:FLEET"
        )
        part = trained(tmp_path, 10, rows)
        note = part.with_name("part-0.md5")
        note.write_text(f"{hashlib.md5(b'something else', usedforsecurity=False).hexdigest()}  {part}\n")
        said = run("transfer", "ctr", "--once", ok=False)
        assert "part-0 is not what part-0.md5 beside it says" in said
        assert servers.actives() == {None}
        note.write_text(f"{hashlib.md5(part.read_bytes(), usedforsecurity=False).hexdigest()}  {part}\n")
        run("transfer", "ctr", "--once")
        assert servers.serves(rows, "10")


@pytest.mark.parametrize("kind", ["cube", "upstream"])
def test_the_deadline_holds_for_every_step(tmp_path, kind):
    """A server that hangs is not waited for any longer than the whole delivery may take."""
    server = {"address": "127.0.0.1:1"} | ({"agent": "127.0.0.1:2", "folder": "/f"} if kind == "upstream" else {})
    table = {"shards": [[server]], "donefiles": str(tmp_path)}
    write_config(tmp_path, servers=kind, tables={"emb": table}, work=str(tmp_path / "w"), deadline="2m")
    configured = ConfiguredTransfer("ctr", load(tmp_path / "cloudedge.yaml"))
    with configured.transfer() as transfer:
        (replica,) = transfer.replicas
    steps = [replica._deadline_s] if kind == "cube" else [replica._times.stage_s, replica._times.load_s]
    assert steps == [120] * len(steps)
    if kind == "cube":
        with configured.delivery() as delivery:
            assert [each._deadline_s for each in delivery.replicas.values()] == [120]


def test_what_is_missing_is_named(run, tmp_path):
    a, b, c = ({"shards": [[{"address": f"127.0.0.1:{port}"}]]} for port in (1, 3, 5))
    write_config(tmp_path, tables={"a": a | {"donefiles": "/d"}, "b": b | {"donefiles": "/e"}, "c": c})
    config = load(tmp_path / "cloudedge.yaml")
    with pytest.raises(ConfigError, match="there is no transfer 'x'") as found:
        ConfiguredTransfer("x", config)
    assert "ctr" in found.value.hint
    with pytest.raises(ConfigError, match="several tables have donefiles") as found:
        ConfiguredTransfer("ctr", config).transfer()
    assert "--table" in found.value.hint
    with pytest.raises(ConfigError, match="no table with donefiles and the name 'c'"):
        ConfiguredTransfer("ctr", config).transfer("c")
    assert "transfer.conf" in run("transfer", "ctr", "--config", "x", ok=False)
    assert "go with --config" in run("transfer", "ctr", "--table", "a", "--through-agent", ok=False)
    assert "once" in run("deliver", "m:1", "--to", "ctr", "--layout", "x", ok=False)
    write_config(tmp_path, tables={"a": a, "b": a})
    assert "127.0.0.1:1 is named twice" in run("status", "--of", "ctr", ok=False)
