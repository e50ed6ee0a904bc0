"""What a node refuses a rollout counts: the real agents, the lab and a fleet, with somebody in between."""

import contextlib
import threading

import pytest

from cloudedge.bundle import new_key_pair
from cloudedge.edge_bie.client import Node
from cloudedge.edge_bie.node import Link, NodeAgent, NodeSettings
from cloudedge.errors import IntegrityError
from tests.edge_bie.fleet.played_fleet import wait_for, yard
from tests.edge_bie.node.played_runtime import PlayedRuntime
from tests.edge_bie.node.world import make_bundle

pytestmark = pytest.mark.parts

NAMES = ("n1", "n2")


@contextlib.contextmanager
def agents(made):
    """Run two nodes until the end; yield what each of them runs."""
    with contextlib.ExitStack() as stack:
        runtimes = {}
        for name in NAMES:
            runtimes[name] = runtime = PlayedRuntime()
            stack.callback(runtime.stop)
            settings = NodeSettings(name, made.root / name, key=made.root / "release.pub", interval_s=0.2)
            agent = NodeAgent(settings, Link(made.lab.sync_url, name), runtime)
            stack.callback(agent.close)
            thread = threading.Thread(target=agent.run)
            thread.start()
            stack.callback(thread.join)
            stack.callback(agent.stop)
        yield runtimes


def test_a_changed_byte_and_a_foreign_signature_fail_a_rollout_and_no_node(tmp_path):
    foreign_key, _ = new_key_pair(tmp_path, "foreign", None)
    with yard(tmp_path, 0, waves=("1",)) as made, made.fleet() as fleet:
        for name in NAMES:
            fleet.bie.put_node(Node(name))
        one, two, three = (make_bundle(made.hub, tmp_path, number) for number in (1, 2, 3))
        with agents(made) as runtimes:
            assert fleet.rollout(fleet.plan(one), one).counts["done"] == 2
            fleet.publish(two)
            digest = two.dense_layers["model.json"].digest
            (path,) = made.lab.objects.rglob(digest.removeprefix("sha256:"))
            path.write_bytes(path.read_bytes()[:-1] + b" ")  # as whoever can write to the bucket could
            with pytest.raises(IntegrityError, match="something else"):
                fleet.rollout(fleet.plan(two), two)
            assert fleet.unfinished() is None  # noticed before any node was told to
            changed = fleet.rollout(fleet.plan(two), check=False)
            assert changed.state == "undone"
            assert "n1: it refused what it got" in changed.why
            assert digest in changed.why

            with made.fleet(key=str(foreign_key)) as intruder:  # as whoever can write to the account could
                foreign = intruder.rollout(intruder.plan(three), three)
            assert foreign.state == "undone"
            assert "n1: it refused what it got" in foreign.why
            assert "was not made with" in foreign.why

            assert {name: runtime.asks(fleet.leg.port) for name, runtime in runtimes.items()} == {"n1": 1, "n2": 1}
            assert [len(runtime.started) for runtime in runtimes.values()] == [2, 1]  # back is a number of its own
            assert fleet.rollout(fleet.plan(three), three).counts["done"] == 2
            wait_for(lambda: fleet.status().is_whole)
