"""A node follows the lab: versions come, change, fail and go, and one whole version answers all the time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cloudedge.edge_bie import container_entrypoint as entry
from cloudedge.supervisor import find_processes, is_up
from tests.edge_bie.node.world import APP, RUN, SERVER, Hammer, eventually, make_bundle, settle, signed
from tests.faults import proves_fault

pytestmark = pytest.mark.parts


def container(stats, name):
    """Return the state and reason of one container that a node tells of."""
    (instance,) = stats.instances
    return next((c.state, c.reason) for c in (*instance.containers, *instance.init_containers) if c.name == name)


@pytest.fixture
def live(world):
    """A node that runs version 1, with its statement."""
    agent = world.agent()
    first = world.release(make_bundle(world.hub, world.folder, 1))
    settle(agent)
    assert world.asks() == 1
    yield agent, first
    agent.close()


def test_a_version_comes_live_and_the_next_one_takes_its_place(world):
    agent = world.agent()
    first = world.release(make_bundle(world.hub, world.folder, 1))
    settle(agent)
    assert world.asks() == 1
    stats = world.stats(first)
    assert (stats.status, stats.cause) == ("Running", "")
    second = world.release(signed(world, make_bundle(world.hub, world.folder, 2)))
    settle(agent)
    assert world.asks() == 2
    assert world.stats(first) is None
    assert world.stats(second).status == "Running"
    agent.close()


def test_the_report_is_what_bie_stores_and_the_delta_of_a_node_in_sync_is_empty(world, live):
    agent, first = live
    stats = world.stats(first)
    assert container(stats, "serving") == ("Running", "")
    assert container(stats, "cloudedge-probe") == ("Running", "ProbePassed")
    assert container(stats, "cloudedge-verify") == ("Terminated", "Completed")
    report = world.reported()
    (figures,) = report.stats.values()
    assert int(figures["capacity"]["disk"]) > int(figures["usage"]["disk"]) > 0
    assert int(figures["capacity"]["memory"]) > 0
    assert figures["extension"]["cloudedge"]["fetched"] > 0
    (host,) = report.hosts.values()
    assert host["arch"] in ("amd64", "arm64")
    assert agent._link._post("/v1/sync/report", "report", agent.report()) in ({}, {"nodeprops": {}})


@proves_fault(
    area="edge",
    fault="a version fails its probes on a node",
    happens="the node keeps the old one, and the rollout counts it as failed",
    cure="`cloudedge fleet status FLEET` names the nodes and why",
)
@pytest.mark.parametrize("how", ["wrong", "crash"])
def test_a_version_that_fails_its_probes_is_given_up_and_the_old_one_answers(world, live, how):
    agent, first = live
    bad = world.release(make_bundle(world.hub, world.folder, 2, **{how: True}))
    settle(agent)
    assert world.asks() == 1
    stats = world.stats(bad)
    assert stats.status == "Failed"
    assert ("off by 1" if how == "wrong" else "this model crashes") in stats.cause
    assert container(stats, "cloudedge-probe") == ("Waiting", "ProbeFailed")
    assert container(stats, "cloudedge-verify") == ("Terminated", "Completed")
    assert world.stats(first).status == "Running"
    assert {name.rpartition("--")[0] for name in find_processes(agent.settings.folder / "processes")} == {
        "",
        next(unit.id for unit in agent.state.running),
    }
    # The cloud takes it back: the delta is empty then, and the node stops trying.
    world.point(first)
    settle(agent)
    assert agent.state.desire.apps == (agent.state.running[0].ref,)
    assert world.stats(bad) is None


def test_a_version_that_was_given_up_does_not_keep_the_live_one_from_starting_again(world):
    check = 'python3 "$CLOUDEDGE_ROOT/home/work/script/entry.py" || exit 1\n'
    world.scripts = {"run.sh": check + RUN, "server.py": SERVER, "entry.py": Path(entry.__file__).read_text()}
    world.state = "cloudedge"  # as rollouts mount it for stock nodes, for all versions the same
    agent = world.agent()
    try:
        world.release(make_bundle(world.hub, world.folder, 1))
        settle(agent)
        bad = world.release(make_bundle(world.hub, world.folder, 2, wrong=True))
        settle(agent)
        assert world.stats(bad).status == "Failed"
        (live,) = [p for n, p in find_processes(agent.settings.folder / "processes").items() if n.startswith(APP)]
        os.kill(live, signal.SIGKILL)
        eventually(lambda: world.asks() is None)
        eventually(lambda: world.asks() == 1)
    finally:
        agent.close()


def test_nobody_notices_an_update(world, live):
    agent, _ = live
    client = Hammer(world)
    for version in (2, 3):
        world.release(make_bundle(world.hub, world.folder, version))
        settle(agent)
        assert world.asks() == version
    client.stop()
    assert not client.failed
    assert set(client.versions) == {1, 2, 3}


def test_a_node_needs_only_a_cloud_and_a_name(world, monkeypatch):
    monkeypatch.setenv("CLOUDEDGE_HOME", str(world.folder / "home"))
    words = ["edge", "node", "--cloud", world.lab.sync_url, "--name", "n1"]
    folder = world.folder / "home/nodes/n1"
    process = subprocess.Popen([sys.executable, "-m", "cloudedge", *words], stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: world.bie.node("n1").ready == "online")
        eventually((folder / "node.json").is_file)  # written when the answer to the first report has come
        assert folder.stat().st_mode & 0o077 == 0
    finally:
        process.terminate()
        ended = process.wait(60)
    assert ended == 0
    dry = [sys.executable, "-m", "cloudedge", *words, "--dry-run", "--json"]
    assert json.loads(subprocess.run(dry, capture_output=True, check=True).stdout)["slots"] == {}
    astray = [sys.executable, "-m", "cloudedge", *words[:-1], "../n1", "--dry-run"]
    said = subprocess.run(astray, capture_output=True, text=True, check=False)
    assert said.returncode == 1
    assert "is not one BIE takes" in said.stderr


@proves_fault(
    area="edge",
    fault="the agent of an edge node is killed",
    happens="its apps go on answering; started again, it goes on where it was",
    cure="start it again",
)
def test_a_killed_agent_leaves_its_app_running_and_goes_on(world):
    world.release(make_bundle(world.hub, world.folder, 1))
    process = world.start()
    eventually(lambda: world.asks() == 1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert world.asks() == 1
    world.release(make_bundle(world.hub, world.folder, 2))
    process = world.start()
    eventually(lambda: world.asks() == 2)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0
    assert world.asks() == 2
    folder = world.folder / "n1" / "processes"
    (app,) = [pid for name, pid in find_processes(folder).items() if not name.startswith("front")]
    os.kill(app, signal.SIGKILL)
    eventually(lambda: world.asks() == 2)
    process = world.start("n1", "--on-stop", "stop")
    eventually(lambda: (world.folder / "n1.log").read_text().count("follows") == 3)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0
    assert not is_up(folder)
    assert world.asks() is None
