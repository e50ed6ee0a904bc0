"""Looking at replicas: what is shown, and that one which answers otherwise is found."""

from __future__ import annotations

import json

import pytest
import yaml
from typer.testing import CliRunner

from cloudedge.cli.cube_status import app
from cloudedge.clock import ManualClock
from cloudedge.cube import CubeConf
from cloudedge.cube.delivery import (
    ArtifactCache,
    Delivery,
    Expected,
    ObservedReplica,
    ReplicaStatus,
    ServerLayout,
    VersionState,
    look,
    look_twice,
    require_agreement,
)
from cloudedge.cube.delivery._replica_report import judge
from cloudedge.errors import ConfigError, IntegrityError, Unavailable
from tests.cube.delivery.fleet import TOKEN, Fleet
from tests.cube.delivery.tables import Tables, changed


def replica(shard, number, *names, checksum="0" * 32, **more):
    versions = {name: VersionState("loaded", 5, checksum, memory_bytes=100) for name in names}
    status = ReplicaStatus(versions=versions, **{"active": names[-1], "keys": 100, "misses": 5, **more})
    return ObservedReplica(f"emb/{shard}/{number}", "emb", shard, status)


@pytest.mark.rules
def test_lag_memory_and_misses():
    reports = judge([replica(0, 0, "v1", "v2", "v3"), replica(0, 1, "v1", "v2", active="v1")], {}, {})
    assert [(r.lag, r.memory_bytes, r.miss_rate) for r in reports] == [(0, 300, 0.05), (2, 200, 0.05)]


@pytest.mark.rules
@pytest.mark.parametrize(
    ("observed", "who", "kind", "words"),
    [
        ([replica(0, n, "v1") for n in range(3)], set(), None, ""),
        ([replica(0, 0, "v1", "v2", active="v1"), *(replica(0, n, "v1", "v2") for n in (1, 2))], {"emb/0/0"},
         IntegrityError, "it answers from v1, most from v2"),
        ([replica(0, 0, "v1", checksum="1" * 32), *(replica(0, n, "v1") for n in (1, 2))], {"emb/0/0"},
         IntegrityError, "other rows"),
        ([replica(0, 0, "v1", checksum="1" * 32), replica(0, 1, "v1")], {"emb/0/0", "emb/0/1"},
         IntegrityError, "other rows"),
        ([replica(0, 0, "v1"), ObservedReplica("emb/0/1", "emb", 0, None, Unavailable("gone"))], {"emb/0/1"},
         Unavailable, "away: gone"),
    ],
)  # fmt: skip
def test_who_differs_is_named(observed, who, kind, words):
    reports = judge(observed, {}, {})
    assert {each.replica for each in reports if each.problems} == who
    if kind is None:
        require_agreement(reports)
    else:
        with pytest.raises(kind, match=words):
            require_agreement(reports)


@pytest.mark.rules
def test_a_probe_is_held_against_what_is_known_or_what_most_answer():
    observed = [replica(0, n, "v1") for n in range(3)]
    probes = {"emb/0/0": (b"a", None), "emb/0/1": (b"a", None), "emb/0/2": (b"x", None)}
    most = judge(observed, probes, {"emb": Expected((2, 4), 2)})
    assert [each.probe for each in most] == ["ok", "ok", "key 2 reads otherwise than it should in v1"]
    known = judge(observed, probes, {"emb": Expected((2, 4), 2, "v1", {2: b"x", 4: None})})
    assert [each.probe == "ok" for each in known] == [False, False, True]
    failed = judge(observed, probes | {"emb/0/1": Unavailable("no answer")}, {"emb": Expected((2, 4), 2)})
    assert failed[1].probe == "probe failed: no answer"


@pytest.fixture
def served(tmp_path, monkeypatch):
    tables = Tables(tmp_path / "t")
    with (
        Fleet(tmp_path / "fleet", 2, 2) as fleet,
        Delivery(fleet.replicas(), ArtifactCache(tmp_path / "w")) as delivery,
    ):
        version = tables.fresh()
        delivery.deliver([version])
        monkeypatch.setenv("CLOUDEDGE_CUBE_TOKEN", TOKEN)
        layout = tmp_path / "layout.yaml"
        shards = [
            [{"address": s.address, "admin": f"127.0.0.1:{s.admin_port}"} for s in fleet.servers if s.shard == shard]
            for shard in range(2)
        ]
        layout.write_text(yaml.safe_dump({"tables": {"emb": shards}}))
        yield fleet, tables, delivery, version, layout


@pytest.mark.parts
def test_status_says_what_is_there_and_fails_when_one_differs(served, tmp_path):
    fleet, tables, delivery, version, layout = served
    keys = list(tables.rows[version.version])[:4]
    options = ["--layout", str(layout), "--json", *(f"--key=emb={key}" for key in keys)]
    run = CliRunner().invoke(app, options)
    assert run.exit_code == 0, run.output
    found = json.loads(run.stdout)["replicas"]
    assert [each["active"] for each in found] == [version.version] * 4
    assert {each["probe"] for each in found} == {"ok"}
    assert all(each["rows"] and each["memory_bytes"] and each["lag"] == 0 for each in found)
    shown = CliRunner().invoke(app, ["--layout", str(layout)], env={"COLUMNS": "400"}).stdout
    assert all(each["checksum"] in shown for each in found)

    other = tables.version(changed(tables.rows[version.version], 3))
    delivery.prepare(fleet.replicas()[0], other)
    fleet.replicas()[0].activate(other.version)
    run = CliRunner().invoke(app, ["--layout", str(layout), "--watch"])
    assert isinstance(run.exception, IntegrityError)
    assert f"it answers from {other.version}, most from {version.version}" in run.exception.message
    fleet.servers[1].kill()
    assert isinstance(CliRunner().invoke(app, ["--layout", str(layout)]).exception, IntegrityError)


@pytest.mark.parts
def test_a_switch_that_is_under_way_is_looked_at_again_and_a_lasting_difference_is_not_let_pass(served):
    fleet, tables, delivery, version, _ = served
    replicas, other = fleet.replicas(), tables.fresh()
    for replica in replicas:
        delivery.prepare(replica, other)
    replicas[0].activate(other.version)

    class Switching(ManualClock):
        def sleep(self, seconds):
            for replica in replicas:
                replica.activate(other.version)

    require_agreement(look_twice(replicas, clock=Switching()))
    replicas[1].activate(version.version)
    with pytest.raises(IntegrityError, match=f"it answers from {version.version}"):
        require_agreement(look_twice(replicas, clock=ManualClock()))


@pytest.mark.parts
def test_the_same_name_with_other_rows_is_found_by_its_rows(served):
    fleet, tables, _, version, _ = served
    keys = tuple(tables.rows[version.version])[:6]
    values = {key: tables.rows[version.version][key].tobytes() for key in keys}
    require_agreement(look(fleet.replicas(), {"emb": Expected(keys, 2, version.version, values)}))
    wrong = {"emb": Expected(keys, 2, version.version, {**values, keys[0]: b"other"})}
    with pytest.raises(IntegrityError, match=f"key {keys[0]} reads otherwise"):
        require_agreement(look(fleet.replicas(), wrong))


@pytest.mark.rules
def test_layouts_are_read_and_written(tmp_path):
    path = tmp_path / "layout.yaml"
    path.write_text('tables: {emb: [[{address: "10.0.0.1:8027"}, {address: "[::1]:1", admin: "10.0.0.9:5"}]]}')
    layout = ServerLayout.from_file(path)
    assert [(r.name, r.admin) for r in layout.replicas()] == [
        ("emb/0/10.0.0.1:8027", "10.0.0.1:8028"),
        ("emb/0/[::1]:1", "10.0.0.9:5"),
    ]
    conf = layout.to_conf()
    assert conf["emb"].replicas(0) == (("10.0.0.1", 8027), ("::1", 1))
    before = CubeConf.from_text(conf.to_text().replace('"timeout": 500', '"timeout": 77, "more": 1'))
    again = layout.to_conf(before)
    assert (again["emb"].timeout_ms, '"more": 1' in again.to_text()) == (77, True)
    assert ServerLayout.from_conf(conf).replicas()[0].admin == "10.0.0.1:8028"


@pytest.mark.rules
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tables: [", "not YAML"),
        ("tables: {emb: [[]]}", "tables.emb.0"),
        ("tables: {emb: [[{address: nowhere}]]}", "'nowhere' is not an address"),
        ("tables: {emb: [[{address: 'a:1', port: 5}]]}", "port"),
        ("{}", "tables"),
    ],
)
def test_what_is_no_layout_is_refused(tmp_path, text, words):
    path = tmp_path / "layout.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        ServerLayout.from_file(path)
