"""Releases from the command line: processes, exit codes, and SIGKILL at any moment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from release_parts import NAMES, bundles, folder_places

from cloudedge.cli import main
from cloudedge.hub import LocalHub
from cloudedge.release import _kinds

HERE = Path(__file__).parent
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
    monkeypatch.setitem(_kinds.KINDS, "local", lambda name, section: folder_places(tmp_path / "places"))

    def run(*words, code=0):
        monkeypatch.setattr(sys, "argv", ["cloudedge", *words])
        with pytest.raises(SystemExit) as exit_code:
            main()
        out, err = capsys.readouterr()
        assert (exit_code.value.code or 0) == code, out + err
        return json.loads(out) if "--json" in words and out else out

    return run


@pytest.fixture
def process(tmp_path):
    """Run it in a process of its own, which may be killed."""
    paths = os.pathsep.join([str(HERE), str(HERE.parent), str(HERE.parent.parent)])

    def run(*words, code=0, die_at=-1):
        done = subprocess.run(
            [sys.executable, str(HERE / "release_process.py"), *words],
            cwd=tmp_path,
            env=os.environ | {"PLACES": str(tmp_path / "places"), "DIE_AT": str(die_at), "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, f"{done.returncode}: {done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return json.loads(done.stdout) if "--json" in words and done.stdout else done.stdout

    return run


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


def test_a_failing_seed_is_told(cloudedge, tmp_path):
    report = cloudedge("simulate", "--seeds", "8", "--stock", "--jobs", "1", "--json", code=1)
    assert report["violations"] >= 1
    seed = str(report["failing"][0]["seed"])
    told = cloudedge("simulate", "--seeds", "1", "--first-seed", seed, "--stock", "--trace", code=1)
    assert "BROKEN" in told


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
