"""Releases from the command line: processes, exit codes, and SIGKILL at any moment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cloudedge.cli import main, release_status
from cloudedge.hub import LocalHub
from cloudedge.release import Limits, Options, register_kind
from cloudedge.release.target import _target_kinds as _kinds
from tests import ROOT
from tests.release.parts import NAMES, bundles, folder_places

CONFIG = """
targets:
  prod: {kind: local, sparse: {shards: 2, replicas: 2}, dense: {replicas: 2}}
  cluster: {kind: kubernetes, dense: {replicas: 1}}
"""


@pytest.fixture
def made(tmp_path):
    (tmp_path / "cloudedge.yaml").write_text(CONFIG)
    return bundles(tmp_path, LocalHub(tmp_path / "home" / "hub"), 2)


@pytest.fixture
def cloudedge(tmp_path, monkeypatch, capsys):
    """Run the command line in this process, as far as its exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_kinds, "_kinds", dict(_kinds._kinds))
    register_kind("local", lambda name, section: folder_places(tmp_path / "places"))  # without real servers

    def run(*words, code=0):
        monkeypatch.setattr(sys, "argv", ["cloudedge", *words])
        with pytest.raises(SystemExit) as exit_code:
            main()
        out, err = capsys.readouterr()
        assert (exit_code.value.code or 0) == code, out + err
        run.err = err
        return json.loads(out) if "--json" in words and "--watch" not in words and out else out

    return run


@pytest.fixture
def process(tmp_path):
    """Run it in a process of its own, which may be killed."""

    def run(*words, code=0, die_at=-1):
        done = subprocess.run(
            [sys.executable, "-m", "tests.release.process", *words],
            cwd=tmp_path,
            env=os.environ | {"PLACES": str(tmp_path / "places"), "DIE_AT": str(die_at), "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, f"{done.returncode}: {done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return json.loads(done.stdout) if "--json" in words and done.stdout else done.stdout

    return run


@pytest.mark.rules
def test_the_verbs_of_every_day(cloudedge, made):
    one, two = made
    assert "release of ctr:1 on prod (nothing → " in cloudedge("plan", "ctr:1", "--to", "prod")
    planned = cloudedge("release", "ctr:1", "--to", "prod", "--dry-run", "--json")
    assert [step["stage"] for step in planned["steps"]][:1] == ["fetch"]
    assert cloudedge("status", "prod", "--json", code=1)["live"] is None
    assert cloudedge("release", "ctr:1", "--to", "prod", "--yes", "--json")["state"] == "done"
    assert cloudedge("release", "ctr:2", "--to", "prod", "--canary", "5%", "--bake", "1s", "--json")["pin"] == two.pin
    status = cloudedge("status", "prod", "--json")
    assert status["is_whole"]
    assert {place["name"] for place in status["places"]} == set(NAMES)
    assert all(place["answers"] == {two.pin: 1.0} and place["since"] for place in status["places"])
    assert cloudedge("rollback", "prod", "--dry-run", "--json")["pin"] == one.pin
    back = cloudedge("rollback", "prod", "--yes", "--json")
    assert (back["state"], back["bytes"]) == ("done", 0)
    lines = cloudedge("history", "prod", "--json")
    assert [(line["kind"], line["title"]) for line in lines] == [
        ("rollback", "ctr:1"),
        ("release", "ctr:2"),
        ("release", "ctr:1"),
    ]
    assert cloudedge("resume", "prod", "--json") is None
    assert cloudedge("watch", "prod", "--looks", "1", "--json") == {name: {"traffic": {}}["traffic"] for name in NAMES}
    assert "ctr:1" in cloudedge("history", "prod")


@pytest.mark.rules
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["release", "ctr:9", "--to", "prod"], 1),
        (["release", "ctr:1", "--to", "nowhere"], 1),
        (["release", "ctr:1", "--to", "cluster"], 1),
        (["release", "ctr:1"], 2),
        (["release", "ctr:1", "--to", "prod", "--canary", "lots"], 2),
        (["release", "ctr:1", "--to", "prod", "--bake", "soon"], 2),
        (["release", "ctr:1", "--to", "prod", "--on-breach", "panic"], 2),
        (["release", "ctr:1", "--to", "prod", "--max-errors", "lots"], 2),
        (["release", "ctr:1", "--to", "prod", "--patience", "long"], 2),
        (["abort", "prod", "--yes"], 1),
        (["rollback", "prod"], 1),
        (["promote", "prod"], 1),
        (["simulate", "--seeds", "1", "--faults", "rain"], 1),
        (["simulate", "--seeds", "8", "--stock", "--jobs", "1"], 1),
        (["simulate", "--seeds", "3", "--jobs", "1"], 0),
    ],
)
def test_exit_codes(cloudedge, made, words, code):
    cloudedge(*words, code=code)


@pytest.mark.rules
def test_a_failing_seed_is_told(cloudedge, tmp_path):
    report = cloudedge("simulate", "--seeds", "8", "--stock", "--jobs", "1", "--json", code=1)
    assert report["violations"] >= 1
    seed = str(report["failing"][0]["seed"])
    told = cloudedge("simulate", "--seeds", "1", "--first-seed", seed, "--stock", "--trace", code=1)
    assert "BROKEN" in told


@pytest.mark.rules
def test_what_a_failing_seed_says_to_run_breaks_the_same_promise(cloudedge):
    words = ("simulate", "--stock", "--faults", "drop,late", "--jobs", "1")
    cloudedge(*words, "--seeds", "20", code=1)
    again = cloudedge.err.partition("Next, run `cloudedge ")[2].partition("`")[0].split()
    assert again[again.index("--faults") + 1] == "drop,late"
    seed = again[again.index("--first-seed") + 1]
    told = cloudedge(*words, "--seeds", "1", "--first-seed", seed, "--json", code=1)["failing"][0]["broken"][0]
    what, _, when = told.removesuffix(" s)").partition(" (at ")
    assert f"{when}  BROKEN {what}" in cloudedge(*again, code=1)


@pytest.mark.rules
def test_limits_of_a_canary_are_options(cloudedge, made):
    words = ("--canary", "5%", "--bake", "10m", "--max-errors", "0.5%", "--max-latency", "3", "--max-misses", "4%")
    planned = cloudedge("plan", "ctr:1", "--to", "prod", *words, "--max-drift", "0.5", "--patience", "1h", "--json")
    chosen = planned["options"]
    assert (chosen["canary"], chosen["bake_s"], chosen["patience_s"]) == (0.05, 600, 3600)
    limits = {name: chosen["limits"][name] for name in ("error_rate", "latency_factor", "miss_rate", "score_drift")}
    assert limits == {"error_rate": 0.005, "latency_factor": 3.0, "miss_rate": 0.04, "score_drift": 0.5}
    plain = cloudedge("plan", "ctr:1", "--to", "prod", "--json")["options"]
    assert Options(**plain | {"limits": Limits(**plain["limits"])}) == Options()  # both have the same defaults


@pytest.mark.rules
def test_what_was_live_when(cloudedge, made):
    cloudedge("release", "ctr:1", "--to", "prod")
    cloudedge("release", "ctr:2", "--to", "prod")
    cloudedge("rollback", "prod", "--yes")
    back, second, first = cloudedge("history", "prod", "--json")
    assert first["live_from"] <= first["live_until"] == second["live_from"]
    assert second["live_until"] == back["live_from"]
    assert back["live_until"] == ""
    assert all(line["begun_at"] <= line["live_from"] <= line["ended_at"] for line in (back, second, first))
    newest = cloudedge("history", "prod", "--limit", "2").splitlines()
    assert [line.split("\t")[5:7] for line in newest] == [
        [back["live_from"], "now"],
        [second["live_from"], second["live_until"]],
    ]


@pytest.mark.rules
def test_a_line_of_json_at_every_look(cloudedge, made, monkeypatch):
    cloudedge("release", "ctr:1", "--to", "prod")
    looks = iter([None, None, SystemExit(0)])

    def sleep(seconds):
        if (end := next(looks)) is not None:
            raise end

    monkeypatch.setattr(release_status.time, "sleep", sleep)
    lines = cloudedge("status", "prod", "--watch", "--json").splitlines()
    assert [json.loads(line)["is_whole"] for line in lines] == [True] * 3


@pytest.mark.parts
def test_what_resume_abort_and_promote_would_do(cloudedge, process, made):
    one, two = made
    assert cloudedge("resume", "prod", "--dry-run", "--json") is None
    for command in ("abort", "promote"):
        cloudedge(command, "prod", "--dry-run", code=1)
    cloudedge("release", "ctr:1", "--to", "prod")
    process("release", "ctr:2", "--to", "prod", "--canary", "10%", "--bake", "1s", code=-signal.SIGKILL, die_at=30)
    before = cloudedge("status", "prod", "--json", code=1)
    on = cloudedge("resume", "prod", "--dry-run", "--json")
    assert (on["kind"], on["pin"]) == ("release", two.pin)
    assert "dense.switch" in {step["stage"] for step in on["steps"]}
    back = cloudedge("abort", "prod", "--dry-run", "--json")
    assert back["kind"] == "undo"
    assert {step["stage"].partition(".")[2] for step in back["steps"]} <= {"switch", "forget"}
    assert back["steps"]
    assert cloudedge("rollback", "prod", "--dry-run", "--json") == back
    assert f"undo of ctr:2 on prod ({two.pin} → {one.pin})" in cloudedge("abort", "prod", "--dry-run")
    ahead = cloudedge("promote", "prod", "--dry-run", "--json")
    assert {step["stage"] for step in on["steps"]} - {step["stage"] for step in ahead["steps"]} == {"bake"}
    assert cloudedge("status", "prod", "--json", code=1) == before  # nothing was touched
    assert cloudedge("abort", "prod", "--yes", "--json")["state"] == "undone"
    (lost,) = [path for path in Path("places").iterdir() if path.name == "dense_0"]
    for path in sorted(lost.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    repair = cloudedge("resume", "prod", "--dry-run", "--json")
    assert (repair["kind"], {step["place"] for step in repair["steps"]}) == ("repair", {"", "dense/0"})


@pytest.mark.parts
@pytest.mark.parametrize("die_at", [2, 20, 38, 51])
def test_killed_for_good_and_resumed_by_another_process(cloudedge, process, made, die_at):
    one, two = made
    cloudedge("release", "ctr:1", "--to", "prod")
    process("release", "ctr:2", "--to", "prod", code=-signal.SIGKILL, die_at=die_at)
    outcome = process("resume", "prod", "--json")
    status = cloudedge("status", "prod", "--json")
    assert outcome["state"] == "done"
    assert status["is_whole"]
    assert {pin for place in status["places"] for pin in place["answers"]} == {two.pin}
    assert cloudedge("rollback", "prod", "--json")["bytes"] == 0
    assert cloudedge("status", "prod", "--json")["live"]["pin"] == one.pin
