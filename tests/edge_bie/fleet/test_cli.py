"""`cloudedge fleet` and the edge leg of `cloudedge release`, as processes, killed where it hurts."""

import json
import os
import queue
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import pytest
import yaml
from typer.testing import CliRunner

from cloudedge.cli import app
from cloudedge.config import Config
from cloudedge.errors import CloudEdgeError
from cloudedge.journal import Journal
from cloudedge.release import ReleaseUndone, Target
from tests.edge_bie.fleet.played_fleet import wait_for, yard

pytestmark = pytest.mark.parts

KILLS = int(os.environ.get("CLOUDEDGE_FLEET_KILLS", "2"))
"""How many rollouts are interrupted."""
SEED = int(os.environ.get("CLOUDEDGE_FLEET_SEED", "5"))
"""Of the moments at which they are."""


@pytest.fixture
def shops(tmp_path, monkeypatch):
    """A target of three nodes that cloudedge.yaml knows."""
    monkeypatch.setenv("CLOUDEDGE_HOME", str(tmp_path))
    monkeypatch.setenv("CLOUDEDGE_CONFIG", str(tmp_path / "cloudedge.yaml"))
    with yard(tmp_path, 3) as made:
        write(made)
        yield made


def write(made, **settings):
    leg = made.leg.model_dump(mode="json") | {"every": "0s"} | settings
    config = {
        "clouds": {"lab": made.cloud.model_dump(mode="json", exclude_defaults=True)},
        "targets": {"shops": {"kind": "bie", "edge": leg}},
    }
    (made.root / "cloudedge.yaml").write_text(yaml.safe_dump(config))
    return Config.model_validate(config)


def cloudedge(*words, expect=0):
    done = CliRunner().invoke(app, words, catch_exceptions=True)
    code = done.exception.exit_code if isinstance(done.exception, CloudEdgeError) else done.exit_code
    assert code == expect, f"{done.stdout}{done.stderr}{done.exception!r}"
    return done


def test_the_commands(shops):
    one, two = shops.pack(1, b"model 1"), shops.pack(2, b"model 2")
    planned = cloudedge("fleet", "rollout", "yolov3:1", "--to", "shops", "--dry-run", "--json")
    assert [len(wave["nodes"]) for wave in json.loads(planned.stdout)["waves"]] == [1, 1, 1]
    done = json.loads(cloudedge("fleet", "rollout", "yolov3:1", "--to", "shops", "--yes", "--json").stdout)
    assert (done["state"], done["counts"]["done"]) == ("done", 3)
    assert set(shops.runs().values()) == {one.pin}
    status = json.loads(cloudedge("fleet", "status", "shops", "--json").stdout)
    assert (status["is_whole"], status["live"], len(status["nodes"])) == (True, "yolov3:1", 3)
    assert "3 of 3 nodes run it well" in cloudedge("fleet", "status", "shops").stderr
    assert cloudedge("fleet", "resume", "shops").stderr.startswith("Every node has")

    told = queue.Queue()
    with shops.fleet(approval="every") as fleet, ThreadPoolExecutor(1) as pool:
        fleet.tell = told.put
        asked = pool.submit(lambda: fleet.rollout(fleet.plan(two), two))
        for wave in (1, 2, 3):
            while f"wave {wave} (1 nodes) needs approval" not in told.get(timeout=60):
                pass
            assert f"Wave {wave}" in cloudedge("fleet", "approve", "shops").stderr
        assert asked.result(60).state == "done"
    assert set(shops.runs().values()) == {two.pin}
    assert "node-0002" in cloudedge("fleet", "rollback", "shops", "--dry-run").stdout
    cloudedge("fleet", "rollback", "shops", "--yes")
    assert set(shops.runs().values()) == {one.pin}
    history = json.loads(cloudedge("fleet", "history", "shops", "--json").stdout)
    assert [(each["kind"], each["state"]) for each in history] == [
        ("rollback", "done"), ("rollout", "done"), ("rollout", "done")
    ]  # fmt: skip
    assert "yolov3:2" in cloudedge("fleet", "history", "shops").stdout
    written = audit(shops)
    labels = [line for line in written if line["object"] == "node/node-0002"]
    assert len(labels) == 2  # there, and back; what came between was not done by a command
    assert len({line["request_id"] for line in written}) == len(written)
    assert all(line["who"] and line["at"] and line["outcome"] == "done" for line in written)
    assert json.loads(cloudedge("fleet", "gc", "shops", "--dry-run", "--json").stdout) == {two.pin: "yolov3:2"}
    cloudedge("fleet", "gc", "shops", "--yes")
    with shops.fleet() as fleet:
        assert {each.statement.pin for each in fleet.revisions().values()} == {one.pin}
    assert cloudedge("fleet", "abort", "shops", "--leave", "--yes", expect=1).stderr == ""
    assert {line["object"].partition("/")[0] for line in written} == {"config", "app", "node"}


def audit(made):
    """Return what was written down of every write to the account."""
    (path,) = made.root.glob("bie/*/audit.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_status_that_is_watched_by_a_program_is_a_line_for_each_look(shops):
    words = ["fleet", "status", "shops", "--watch", "--json", "--every", "0.1"]
    with subprocess.Popen([sys.executable, "-m", "cloudedge", *words], stdout=subprocess.PIPE, text=True) as watching:
        looks = [json.loads(watching.stdout.readline()) for _ in range(3)]
        watching.terminate()
    assert [[node["name"] for node in look["nodes"]] for look in looks] == [shops.names] * 3


def test_pause_resume_and_abort(shops):
    one, two = shops.pack(1, b"model 1"), shops.pack(2, b"model 2")
    cloudedge("fleet", "rollout", "yolov3:1", "--to", "shops", "--yes")
    shops.bad[two.pin] = {"*"}
    write(shops, abort={"then": "pause"})
    paused = cloudedge("fleet", "rollout", "yolov3:2", "--to", "shops", "--yes", expect=3)
    assert "paused" in paused.stderr
    assert "is unfinished" in cloudedge("fleet", "status", "shops", expect=1).stderr
    again = cloudedge("fleet", "resume", "shops", expect=3)  # somebody goes on: the next wave fails too
    assert "wave 2 failed" in again.stderr
    cloudedge("fleet", "abort", "shops", "--yes")
    wait_for(lambda: set(shops.runs().values()) == {one.pin})
    cloudedge("fleet", "status", "shops")
    cloudedge("fleet", "pause", "shops", expect=1)


def unfinished(made):
    """Return whether the journal has a rollout that did not end."""
    with closing(Journal(made.root / "fleets" / "shops.db")) as journal:
        return journal.unfinished() is not None


def test_a_rollout_that_is_killed_anywhere_is_finished_by_resume(shops):
    chance = random.Random(SEED)
    shops.pack(1, b"model 1")
    began = time.monotonic()
    cloudedge("fleet", "rollout", "yolov3:1", "--to", "shops", "--yes")
    took, interrupted, version = time.monotonic() - began, 0, 1
    while interrupted < KILLS:
        version += 1
        assert version < 5 * KILLS + 5, f"only {interrupted} of {version - 2} rollouts were interrupted"
        bundle = shops.pack(version, b"model %d" % version)
        run = subprocess.Popen(
            [sys.executable, "-m", "cloudedge", "fleet", "rollout", f"yolov3:{version}", "--to", "shops", "--yes"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_for(lambda: run.poll() is not None or unfinished(shops))  # noqa: B023 - called before the next one
        with suppress(subprocess.TimeoutExpired):
            run.wait(chance.uniform(0.0, took))
        run.kill()
        assert run.wait() in {0, -signal.SIGKILL}
        if not unfinished(shops):
            continue  # it was done before it was killed
        interrupted += 1
        cloudedge("fleet", "resume", "shops")
        assert not unfinished(shops)
        assert set(shops.runs().values()) == {bundle.pin}


def test_the_edge_leg_of_a_release(shops):
    one, two, three = (shops.pack(number, b"model %d" % number) for number in (1, 2, 3))
    target = Target.load("shops")
    plan = target.plan("yolov3:1")
    assert [stage for stage, _ in plan.stages()] == [
        "fetch", "edge.prepare", "edge.check", "gate", "edge.switch", "settle", "tag"
    ]  # fmt: skip
    assert target.run(plan).state == "done"
    assert set(shops.runs().values()) == {one.pin}
    assert target.run(target.plan("yolov3:2")).state == "done"
    status = target.status()
    assert status.is_whole
    (fleet_place,) = status.places
    assert {node.name for node in fleet_place.members} == {f"edge/paddle-serving/{name}" for name in shops.runs()}
    assert all(
        (node.state, node.answers, node.lag) == ("current", {two.pin: 1.0}, 0) and node.since
        for node in fleet_place.members
    )

    shops.bad[three.pin] = {"*"}
    release = target.apply(target.plan("yolov3:3"))
    with pytest.raises(ReleaseUndone, match="ProbeFailed"):
        release.wait()
    assert set(shops.runs().values()) == {two.pin}
    assert target.status().is_whole
    (undone,) = {
        line["object"][4:] for line in audit(shops) if (line["verb"], line["object"][:4]) == ("delete", "app/")
    }
    with shops.fleet() as fleet:  # what was undone is gone from the account
        assert three.pin not in {each.statement.pin for each in fleet.revisions().values()}
    assert target.plan("yolov3:2").is_empty
    assert target.rollback().state == "done"
    assert set(shops.runs().values()) == {one.pin}
    assert target.status().live.pin == one.pin
    assert {("update", "node/node-0001"), ("delete", f"app/{undone}")} <= {
        (line["verb"], line["object"]) for line in audit(shops)
    }
