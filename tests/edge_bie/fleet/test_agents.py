"""Fleets over real agents: what a node refuses for its own reasons is counted by the wave it is in."""

import contextlib

import pytest

from cloudedge.config import EdgeAbort
from cloudedge.edge_bie.lab import Faults
from cloudedge.edge_bie.node._units import Slot
from tests.edge_bie.fleet.agents import Agents
from tests.edge_bie.fleet.played_fleet import wait_for, yard
from tests.edge_bie.node.test_refusals import small_disk
from tests.edge_bie.node.world import make_bundle, noise

pytestmark = pytest.mark.parts

__all__ = ["small_disk"]
CALM = dict.fromkeys(("delay", "error", "drop", "lost_answer", "cut", "lost_write", "duplicate"), 0.0)
ONE_WAVE = {"waves": (), "abort": EdgeAbort(failed=0.9, at_least=2), "success": 0.4}
"""Both move together, and one that fails is counted and nothing more."""


@contextlib.contextmanager
def two_nodes(tmp_path, second=None, **settings):
    """A fleet of two real agents that are there."""
    with yard(tmp_path, 0, **settings) as made, made.fleet() as fleet:
        agents = Agents(fleet.bie, made.lab.sync_url, made.root / "release.pub")
        with agents.running({"n1": tmp_path / "n1", "n2": (second or tmp_path) / "n2"}) as nodes:
            wait_for(lambda: all(node.ready == "online" for node in fleet.nodes()))
            yield made, fleet, nodes


def bundle(made, version, **how):
    return make_bundle(made.hub, made.root, version, **how)


def test_a_node_whose_disk_is_full_keeps_its_version_and_is_counted(tmp_path, small_disk):
    # What preflight would say of the disk is left out: it filled up since.
    with two_nodes(tmp_path, small_disk, **ONE_WAVE, needs={"disk": "1KB"}) as (made, fleet, nodes):
        one, two = bundle(made, 1), bundle(made, 2, files={"w": noise(6_000_000, 2)})
        assert fleet.rollout(fleet.plan(one), one).counts["done"] == 2
        outcome = fleet.rollout(fleet.plan(two), two)
        assert (outcome.state, outcome.counts["done"], outcome.counts["failed"]) == ("done", 1, 1)
        assert "bytes, " in outcome.failed["n2"]
        assert nodes.answers(made.leg.port) == {"n1": 2, "n2": 1}
        (health,) = [node for node in fleet.status().nodes if node.name == "n2"]
        assert (health.health, health.pin) == ("failing", one.pin)


def test_a_node_that_has_seen_a_higher_number_is_counted(tmp_path):
    """As where two accounts use one app name: its statements are refused, and said to be sent again."""
    with two_nodes(tmp_path, **ONE_WAVE) as (made, fleet, nodes):
        nodes.agents["n2"]._set(made.leg.app, Slot(highest=99, accepted="elsewhere0"))
        one = bundle(made, 1)
        outcome = fleet.rollout(fleet.plan(one), one)
        assert (outcome.counts["done"], outcome.counts["failed"]) == (1, 1)
        assert "number 1; number 99" in outcome.failed["n2"]
        assert nodes.answers(made.leg.port) == {"n1": 1, "n2": None}


def test_a_network_that_is_cut_all_the_time_brings_every_version_whole(tmp_path):
    """The lab ends downloads at seeded bytes; the runtime looks at every file of what it starts."""
    faults = Faults(seed=7, **{**CALM, "cut": 0.7})
    with two_nodes(tmp_path, faults=faults) as (made, fleet, nodes):
        for version in (1, 2):
            wanted = bundle(made, version, files={"w": noise(300_000, version)})
            outcome = fleet.rollout(fleet.plan(wanted), wanted, check=False)
            assert outcome.counts["done"] == 2
            assert nodes.answers(made.leg.port) == {"n1": version, "n2": version}
        size = sum(blob.size for each in fleet.revisions().values() for blob in each.statement.every_blob)
        for agent in nodes.agents.values():
            assert agent.state.fetched <= size, "nothing was fetched twice"


@pytest.mark.parametrize("count", [4])
def test_a_cloud_that_forgets_to_tell_nodes_is_made_to(tmp_path, count):
    faults = Faults(seed=2, lost_desire=0.5, **CALM)
    with yard(tmp_path, count, faults=faults) as made, made.fleet() as fleet:
        for version in (1, 2):
            wanted = made.pack(version, b"model %d" % version)
            assert fleet.rollout(fleet.plan(wanted), wanted).counts["done"] == count
            assert set(made.runs().values()) == {wanted.pin}
