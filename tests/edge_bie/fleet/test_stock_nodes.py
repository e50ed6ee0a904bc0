"""Rollouts to nodes that run stock BAETYL: they say `Running` when a process starts, and probe nothing themselves."""

import contextlib
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from cloudedge.config import EdgeTimeouts
from cloudedge.edge_bie.client import Node
from cloudedge.errors import InputError
from cloudedge.hub import LocalHub
from tests.edge_bie.fleet.played_fleet import wait_for, yard
from tests.edge_bie.fleet.test_probe import PROBES, SIGNATURE, serving
from tests.edge_bie.lab.stock_edge import StockEdge

pytestmark = pytest.mark.parts

ADDRESS = "127.0.0.9"
RIGHT = {"/v1/predict": (200, {"outputs": {"y": [[4.0, 0.5]]}})}


@contextlib.contextmanager
def stock(tmp_path, **settings):
    """A fleet of one stock node that goes round and round."""
    with serving({}, ADDRESS) as port:
        pass  # a port that is free
    with yard(tmp_path, 0, port=port, **settings) as made, made.fleet() as fleet:
        fleet.bie.put_node(Node("n1"))
        edge, over = StockEdge(made.lab.sync_url, "n1", tmp_path / "stock", address=ADDRESS), threading.Event()
        edge.cycles = 0

        def live():
            while not over.wait(0.1):
                edge.cycle()
                edge.cycles += 1

        with ThreadPoolExecutor(2) as pool:
            running = pool.submit(live)
            try:
                wait_for(lambda: edge.cycles)
                yield made, fleet, edge, lambda bundle: pool.submit(lambda: fleet.rollout(fleet.plan(bundle), bundle))
            finally:
                over.set()
            running.result(30)


def probed(made, number, **parts):
    return made.pack(number, b"model %d" % number, **{"probes": PROBES, "signature": SIGNATURE, **parts})


def test_a_server_that_is_still_loading_is_waited_for(tmp_path):
    with stock(tmp_path) as (made, fleet, edge, rollout):
        done = rollout(probed(made, 1))
        wait_for(lambda: edge.running)
        reports = edge.cycles
        wait_for(lambda: edge.cycles > reports + 20)  # two would have been enough to say that it failed
        assert not done.done()
        with serving(RIGHT, ADDRESS, fleet.leg.port):
            assert done.result(60).counts["done"] == 1


@pytest.mark.parametrize("answers", [{"/v1/predict": "hang up"}, None], ids=["it hangs up", "it never listens"])
def test_a_server_that_never_answers_has_failed_when_its_time_is_over(tmp_path, answers):
    with stock(tmp_path, timeouts=EdgeTimeouts(failed="3s", offline="60s")) as (made, fleet, _, rollout):
        there = serving(answers, ADDRESS, fleet.leg.port) if answers else contextlib.nullcontext()
        with there:
            outcome = rollout(probed(made, 1)).result(60)
    assert outcome.state == "undone"
    assert "not done after 3 s: its server does not answer yet" in outcome.why


def test_a_wrong_answer_fails_at_once(tmp_path):
    with (
        stock(tmp_path) as (made, fleet, _, rollout),
        serving({"/v1/predict": (200, {"outputs": {"y": [[5.0, 0.5]]}})}, ADDRESS, fleet.leg.port),
    ):
        outcome = rollout(probed(made, 1)).result(60)
    assert outcome.state == "undone"
    assert "y" in outcome.why
    assert "is off by 1" in outcome.why


IMAGE = f"registry.example/serving@sha256:{'1' * 64}"
"""With an image an app has an init container that tries the server on the node."""


def test_a_node_that_nobody_can_reach_is_done_when_it_has_tried_the_server_itself(tmp_path):
    with stock(tmp_path, image=IMAGE) as (made, fleet, edge, rollout):
        edge.init_state = ("Running", "")
        done = rollout(probed(made, 1))
        wait_for(lambda: edge.running)
        reports = edge.cycles
        wait_for(lambda: edge.cycles > reports + 20)
        assert not done.done()  # it says Running of the trial, and that is not enough
        (app,) = edge.running.values()
        assert [init["name"] for init in app["init"]] == ["cloudedge-probe"]
        assert app["init"][0]["args"][-2:] == ["/bin/bash", "/home/work/script/run.sh"]
        edge.init_state = ("Terminated", "Completed")
        outcome = done.result(60)  # there is no server at all: nobody asked from here
        assert outcome.counts["done"] == 1
        # Going back leads to an app that is tried as well.
        two = probed(made, 2)
        edge.init_state = ("Waiting", "CrashLoopBackOff")
        outcome = rollout(two)
        wait_for(lambda: fleet.unfinished() is not None and fleet.state(fleet.unfinished()).back)
        edge.init_state = ("Terminated", "Completed")
        outcome = outcome.result(60)
        assert outcome.state == "undone"
        assert "cloudedge-probe: CrashLoopBackOff" in outcome.why
        wait_for(lambda: [init["name"] for app in edge.running.values() for init in app["init"]] == ["cloudedge-probe"])


def test_required_probes_have_to_be_there_and_to_be_answered(tmp_path):
    timeouts = EdgeTimeouts(failed="3s", offline="60s")
    with stock(tmp_path, probe="required", timeouts=timeouts) as (made, fleet, _, _):
        with pytest.raises(InputError, match="no recorded probe"):
            fleet.plan(made.pack(1, b"model 1"))
        two = probed(made, 2)
        fleet.publish(two)
        plan = fleet.plan(two)
        made.hub = LocalHub(tmp_path / "elsewhere")  # as on a machine that never had the bundle
        with made.fleet() as another, serving({}, ADDRESS, fleet.leg.port):  # the server answers 404
            outcome = another.rollout(plan)
    assert outcome.state == "undone"
    assert "pull the bundle" in outcome.why


def test_a_statement_that_is_sent_again_is_refused_by_a_new_container(tmp_path):
    with stock(tmp_path) as (made, fleet, edge, rollout), serving(RIGHT, ADDRESS, fleet.leg.port):
        mounts = []
        for number in (1, 2):
            rollout(probed(made, number)).result(60)
            (app,) = edge.running
            mounts.append(edge.mounts(app))
    assert "accepted" not in start(made, tmp_path / "first", mounts[0])
    assert start(made, tmp_path / "second", mounts[1]) == ""
    # Somebody has node 1 run the first statement once more: another container, the same node.
    assert "number 1; number 2 was accepted before" in start(made, tmp_path / "third", mounts[0])


def start(made, root, mounts):
    """Start a new container's entry point over what the node mounts into it; return what it complains of."""
    for path, source in mounts.items():
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(source)
    entry = root / "home/work/script/entry.py"
    environment = {"PATH": os.environ["PATH"], "CLOUDEDGE_ROOT": str(root)}
    command = [sys.executable, str(entry), "--key", str(made.root / "release.pub")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == (not done.stderr)
    return done.stderr
