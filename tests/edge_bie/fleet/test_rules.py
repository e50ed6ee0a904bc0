"""The rules of rollouts, one by one: waves, windows, verdicts, fitness, names and bodies."""

import base64
from dataclasses import replace
from datetime import datetime, timezone

import pytest

from cloudedge.bundle import new_key_pair, sign_bundle
from cloudedge.config import EdgeLeg, EdgeNeeds, load
from cloudedge.edge_bie.client import AppStats, Config, Container, Instance, Node, Report, Text
from cloudedge.edge_bie.fleet import RolloutPlan, RolloutPolicy, Verdict, Window, in_waves, judge
from cloudedge.edge_bie.fleet._node_verdict import Probed
from cloudedge.edge_bie.fleet._preflight import preflight
from cloudedge.edge_bie.fleet._revision import (
    Revision,
    app_body,
    blob_body,
    bundle_statement,
    read_revisions,
    script_body,
    statement_body,
)
from cloudedge.edge_bie.model._statement import Statement
from cloudedge.errors import ConfigError, InputError
from cloudedge.hub import LocalHub
from tests.edge_bie.fleet.played_fleet import pack

pytestmark = pytest.mark.rules

APP = "paddle-serving-0123456789"
LEG = EdgeLeg(cloud="lab", app="paddle-serving", model="model", script="script", key="release.key", service="yolov3")

NODES = [(f"n{number}", {"ring": "canary"} if number in (3, 4) else {}) for number in range(10)]
WAVES = {
    "counts": (("1", "3"), [1, 3, 6]),
    "percentages are of all, and reach": (("10%", "50%", "100%"), [1, 4, 5]),
    "a count, then a percentage": (("2", "10%", "30%"), [2, 1, 7]),
    "labels": (("ring=canary", "50%"), [2, 3, 5]),
    "none": ((), [10]),
    "more than there are": (("50",), [10]),
}


@pytest.mark.parametrize(("cut", "sizes"), WAVES.values(), ids=WAVES)
def test_waves(cut, sizes):
    waves = in_waves(NODES, cut, "r")
    assert [len(wave.nodes) for wave in waves] == sizes
    assert sorted(node for wave in waves for node in wave.nodes) == sorted(name for name, _ in NODES)


WINDOWS = {
    "inside": ("02:00-04:00", (5, 3, 0), True),
    "its end is out": ("02:00-04:00", (5, 4, 0), False),
    "over midnight, before": ("Mon-Fri 22:00-06:00", (5, 23, 0), True),
    "over midnight, after: begun on Friday": ("Mon-Fri 22:00-06:00", (10, 5, 59), True),
    "over midnight, after: begun on Saturday": ("Mon-Fri 22:00-06:00", (11, 5, 59), False),
    "another zone": ("08:00-09:00 Asia/Shanghai", (5, 0, 30), True),
    "round the week": ("Sat-Mon 00:00-24:00", (11, 12, 0), True),
}


@pytest.mark.parametrize(("text", "at", "is_open"), WINDOWS.values(), ids=WINDOWS)
def test_windows(text, at, is_open):
    day, hour, minute = at  # January 2026: the 5th is a Monday
    assert Window.parse(text).is_open(datetime(2026, 1, day, hour, minute, tzinfo=timezone.utc)) is is_open


@pytest.mark.parametrize(
    "text", ["at night", "25:00-26:00", "Mon 02:00", "02:00-04:00 Mars/Olympus", "Foo 02:00-04:00"]
)
def test_what_is_no_window_is_refused(text):
    with pytest.raises(ConfigError, match="maintenance window"):
        RolloutPolicy(windows=(text,))


def node(*, ready="online", at="1", status="Running", containers=None, verify="Completed", cause="", apps=True):
    containers = (
        (Container("yolov3", "Running"), Container("cloudedge-probe", "Running", "ProbePassed"))
        if containers is None
        else containers
    )
    instance = Instance(
        "i", "Running", containers=containers, init_containers=(Container("cloudedge-verify", "Terminated", verify),)
    )
    stats = AppStats(APP, "7", status, cause, (instance,))
    return Node("n", ready=ready, report=Report(at, apps={APP: "7"} if apps else {}, app_stats=(stats,)))


RUNS = Container("yolov3", "Running")
JUDGED = {
    "all is well": ({}, "done"),
    "away": ({"ready": "offline"}, "offline"),
    "never seen": ({"ready": "never"}, "offline"),
    "not accepted": ({"apps": False}, "waiting"),
    "pending": ({"status": "Pending"}, "waiting"),
    "running, and crashing": ({"containers": (Container("yolov3", "Waiting", "CrashLoopBackOff"),)}, "failed"),
    "running, and no image": ({"containers": (Container("yolov3", "Waiting", "ErrImagePull"),)}, "failed"),
    "running, and out of memory": ({"containers": (Container("yolov3", "Terminated", "OOMKilled"),)}, "failed"),
    "running, and no container": ({"containers": ()}, "waiting"),
    "a pending probe": ({"containers": (RUNS, Container("cloudedge-probe", "Waiting", "ProbePending"))}, "waiting"),
    "the probe failed": ({"containers": (RUNS, Container("cloudedge-probe", "Waiting", "ProbeFailed"))}, "failed"),
    "refused, and the old one runs": ({"verify": "SignatureInvalid", "apps": False, "containers": ()}, "failed"),
    "its disk is full": ({"verify": "DiskFull", "apps": False, "containers": ()}, "failed"),
    "a cause that may go away": ({"cause": "download failed", "apps": False}, "waiting"),
    "nobody probed it": ({"containers": (RUNS,)}, "waiting"),
}  # fmt: skip


@pytest.mark.parametrize(("how", "state"), JUDGED.values(), ids=JUDGED)
def test_two_reports_decide_and_the_word_running_does_not(how, state):
    first = judge(node(**how), APP)
    assert first.state in ("waiting", "offline")
    same = judge(node(**how), APP, first)
    assert same.state in ("waiting", "offline")  # the same report again proves nothing
    assert judge(node(**(how | {"at": "2"})), APP, same).state == state


TRIED = {
    "it passed": (("Terminated", "Completed"), "done"),
    "under way": (("Running", ""), "waiting"),
    "it failed": (("Terminated", "Error"), "failed"),
    "again and again": (("Waiting", "CrashLoopBackOff"), "failed"),
}


@pytest.mark.parametrize(("said", "state"), TRIED.values(), ids=TRIED)
def test_a_stock_node_that_tried_the_server_before_it_started_has_probed_it(said, state):
    def seen(at):
        instance = Instance("i", "Running", containers=(RUNS,), init_containers=(Container("cloudedge-probe", *said),))
        stats = AppStats(APP, "7", "Running", instances=(instance,))
        return Node("n", ready="online", report=Report(at, apps={APP: "7"}, app_stats=(stats,)))

    how = {"probe": Probed("unreachable"), "probe_rule": "required"}
    assert judge(seen("2"), APP, judge(seen("1"), APP, **how), **how).state == state


def test_a_stock_node_that_cannot_apply_an_app_says_why_but_not_of_which():
    report = Report("1", app_stats=(AppStats("", cause="failed to get config"),))
    found = judge(Node("n", ready="online", report=report), APP)
    assert (found.state, found.why) == ("waiting", "failed to get config")


def test_a_change_of_mind_begins_anew():
    good = judge(node(), APP)
    bad = judge(node(at="2", containers=(Container("yolov3", "Waiting", "CrashLoopBackOff"),)), APP, good)
    assert (bad.state, bad.leaning) == ("waiting", "bad")
    assert judge(node(at="3"), APP, bad) == Verdict("waiting", "", "good", "3")


@pytest.mark.parametrize(
    ("probe", "rule", "state"),
    [
        ("passed", "required", "done"),
        ("unreachable", "required", "waiting"),
        ("unreachable", "reachable", "done"),
        ("failed", "reachable", "failed"),
        ("failed", "required", "failed"),
        ("starting", "reachable", "waiting"),  # loading takes longer than two reports: the time-out decides
        ("starting", "required", "waiting"),
        ("answers", "reachable", "done"),
        ("answers", "required", "waiting"),  # some answer is not the right one
        ("unasked", "off", "done"),
    ],
)
def test_a_node_that_does_not_probe_itself_is_probed_from_here(probe, rule, state):
    how = {"probe": Probed(probe, "why"), "probe_rule": rule}
    first = judge(node(containers=(RUNS,)), APP, **how)
    found = judge(node(at="2", containers=(RUNS,)), APP, first, **how)
    assert found.state == state
    assert found.why or (state == "done" and probe in ("passed", "unasked"))


def machine(**stats):
    hosts = {"h": {"arch": "amd64", "address": "10.0.0.1"}}
    return Node("n", ready="online", accelerator="nvidia", report=Report("1", hosts=hosts, stats={"h": stats}))


def test_what_speaks_against_a_node():
    small = {"capacity": {"disk": "100", "memory": "100"}, "usage": {"disk": "50", "memory": "10"}}
    needs = EdgeNeeds(arch=("arm64",), accelerator="jetson")
    found = preflight(
        machine(**small, diskPressure=True), needs, disk_bytes=40, memory_bytes=95, port=18082, taken={18082: "other"}
    )
    assert [unfit.rule for unfit in found] == ["arch", "accelerator", "disk", "memory", "disk", "port"]
    fits = EdgeNeeds(arch=("amd64",), accelerator="nvidia")
    assert not preflight(machine(**small), fits, disk_bytes=10, memory_bytes=10, port=18082, taken={80: "other"})
    assert not preflight(
        machine(), EdgeNeeds(), disk_bytes=1 << 40, memory_bytes=1 << 40, port=1, taken={}
    )  # it says nothing
    assert not preflight(Node("n"), EdgeNeeds(arch=("arm64",)), disk_bytes=1, memory_bytes=1, port=1, taken={1: "x"})


def test_of_a_node_that_is_away_what_it_is_counts_and_what_was_free_does_not():
    full = {"capacity": {"disk": "100", "memory": "100"}, "usage": {"disk": "99", "memory": "99"}}
    away = replace(machine(**full, diskPressure=True), ready="offline")
    how = {"disk_bytes": 40, "memory_bytes": 40, "port": 1, "taken": {1: "other"}}
    assert not preflight(away, EdgeNeeds(arch=("amd64",), accelerator="nvidia"), **how)
    found = preflight(away, EdgeNeeds(arch=("arm64",), accelerator="jetson"), **how)
    assert [unfit.rule for unfit in found] == ["arch", "accelerator"]
    # One that never connected says nothing of its processor; its accelerator is what somebody entered.
    assert [unfit.rule for unfit in preflight(Node("n"), EdgeNeeds(accelerator="nvidia"), **how)] == ["accelerator"]


def test_a_bundle_becomes_bodies_that_carry_their_digests(tmp_path):
    bundle = pack(tmp_path, "yolov3", 1, b"model", hub=LocalHub(tmp_path / "hub"))
    key, public = new_key_pair(tmp_path, "release", None)
    script = script_body(LEG, "entry")
    plain = bundle_statement(bundle, LEG, script)
    sign_bundle(bundle, key)
    statement = replace(bundle_statement(bundle, LEG, script), sequence=3)
    assert len(statement.blobs) > len(plain.blobs)  # the signature travels too
    revision = Revision(statement, "yolov3:1")
    assert script.name == script_body(LEG, "entry").name != script_body(LEG, "another").name
    other = script_body(LEG, "another")
    assert len({bundle_statement(bundle, leg, each).content for leg, each in (
        (LEG, script), (LEG, other), (LEG.model_copy(update={"env": {"MODE": "fast"}}), script),
        (LEG.model_copy(update={"port": 1}), script), (LEG.model_copy(update={"state": ""}), script),
    )}) == 5  # fmt: skip
    app = app_body(LEG, revision, script.name)
    assert (app.replica, app.selector) == (1, f"cloudedge-paddle-serving={revision.name}")
    blob = statement.blobs[0]
    config = blob_body(LEG, blob, url="http://files/x", md5="0" * 32)
    assert config.name == f"model-{blob.digest[7:19]}"
    assert config.name in app.configs
    assert len(app.volumes) == len(statement.every_blob) + 3
    assert {volume.name: volume.extra for volume in app.volumes}["state"] == {"hostPath": {"path": "cloudedge"}}
    assert {mount.path for mount in app.services[0].mounts if mount.name == "state"} == {"/cloudedge/state"}
    without = app_body(LEG.model_copy(update={"state": ""}), revision, script.name)
    assert "state" not in {volume.name for volume in without.volumes}
    signed = statement_body(revision, statement.sign(key))
    statement.check(base64.b64decode(signed.items["statement.sig"].value), public)
    assert read_revisions("paddle-serving", [signed]) == {revision.name: revision}
    assert revision.new_bytes(revision) == 0
    # A statement that somebody changed, or gave another name, is none.
    text = signed.items["statement.json"].value.replace('"sequence":3', '"sequence":9')
    forged = Config(signed.name, {"statement.json": Text(text)}, signed.labels)
    assert not read_revisions("paddle-serving", [forged, Config("x", {"statement.json": Text("{}")}, signed.labels)])
    assert Statement.from_bytes(text.encode()).sequence == 9


def test_a_script_that_would_break_every_node_is_refused(tmp_path):
    (tmp_path / "run.sh").write_text("echo '{{'")
    with pytest.raises(InputError, match="template"):
        script_body(LEG.model_copy(update={"run": str(tmp_path / "run.sh")}), "")


def test_a_plan_survives_the_journal():
    waves = tuple(in_waves(NODES, ("1", "ring=canary"), "r"))
    plan = RolloutPlan(
        "a", "t", "p", ("r",), waves, {name: "" for name, _ in NODES}, policy=RolloutPolicy(waves=("1",))
    )
    assert RolloutPlan.from_json(plan.to_json()) == plan


REFUSED = {
    "waves: [0]": "wave",
    "image: serving:latest": "image",
    "waves: [110%]": "wave",
    "app: Paddle": "app",
}


@pytest.mark.parametrize(("line", "where"), REFUSED.items(), ids=REFUSED)
def test_settings_that_cannot_be_are_refused(tmp_path, line, where):
    leg = "cloud: lab, app: a-b, model: mm, script: ss, key: k"
    (tmp_path / "c.yaml").write_text(f"targets: {{t: {{kind: bie, edge: {{{leg}, {line}}}}}}}")
    with pytest.raises(ConfigError, match=where):
        load(tmp_path / "c.yaml")
