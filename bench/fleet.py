"""How a fleet of simulated nodes takes a rollout in waves, with some that fail and some that leave and return.

    python bench/fleet.py [--nodes 2000] [--quick] [--json]

One lab in a process of its own, the nodes in another (they verify statements and blobs as the agent does; only servers
are played), and the rollout in this one. 2 % of the nodes fail their probes; 5 % leave while the rollout is under way,
and return. Who failed and who was missed is compared with who did, and the final states node by node; one that differs,
or a lost update, is an error.

Printed: nodes per second, requests to the control plane, memory of each process, and how time grows from a tenth of the
nodes to all of them. Both fleets report and are looked at equally often: what grows is the work, and not a pause. It
takes about twenty minutes, most of them waiting for reports; with --quick about four.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from cloudedge.bundle import Bundle, new_key_pair
from cloudedge.config import CloudConfig, EdgeLeg, HubConfig, ObjectsConfig
from cloudedge.edge_bie.client import Bie, Node, open_objects
from cloudedge.edge_bie.fleet import Fleet, Outcome
from cloudedge.hub import LocalHub
from cloudedge.journal import Journal

ROOT = Path(__file__).parent.parent
FAILING, LEAVING = 0.02, 0.05
REPORT_S, LOOK_S = 20.0, 5.0
"""Between two reports of a node, and between two looks at all nodes, whatever their number: everybody's defaults."""
QUICKER = 10
"""So much shorter are both with --quick."""


class Counting(Bie):
    """A client that counts what it asks for."""

    def __init__(self, settings: CloudConfig) -> None:
        super().__init__(settings)
        self.requests = 0
        self._guard = threading.Lock()
        call = self._transport.call

        def counted(*words: Any, **how: Any) -> Any:
            with self._guard:
                self.requests += 1
            return call(*words, **how)

        self._transport.call = counted  # type: ignore[method-assign]


LAB = """
import sys, json, resource
from pathlib import Path
from cloudedge.edge_bie.lab import Lab
with Lab(Path(sys.argv[1])) as lab:
    print(json.dumps([lab.admin_url, lab.sync_url, lab.objects_url, str(lab.objects)]), flush=True)
    sys.stdin.readline()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, flush=True)
"""

NODES = """
import sys, json, resource
from pathlib import Path
from tests.edge_bie.node.swarm import Swarm
sync, names, key, interval = json.loads(sys.argv[1])
bad = {}
def fails(node, statement):
    return "the probe was answered differently" if node in bad.get(statement.pin, ()) else ""
with Swarm(sync, names, key=Path(key), interval_s=interval, fails=fails) as swarm:
    for line in sys.stdin:
        what, value = json.loads(line)
        if what == "bad":
            bad.update({pin: set(nodes) for pin, nodes in value.items()})
        elif what == "leave":
            [swarm.cut_power(name) for name in value]
        elif what == "return":
            [swarm.give_power(name) for name in value]
        told = {
            "live": {name: live.get("paddle-serving", "") for name, live in swarm.live().items()},
            "reports": sum(node.reports for node in swarm.nodes.values()),
            "heard": sum(bool(node.reports) for node in swarm.nodes.values()),
            "fetched": sum(node.fetched for node in swarm.nodes.values()),
            "mistakes": [repr(error) for error in swarm.mistakes],
            "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        }
        print(json.dumps(told), flush=True)
"""


class Child:
    """A process that answers line by line."""

    def __init__(self, code: str, *words: str) -> None:
        environment = os.environ | {"PYTHONPATH": f"{ROOT}"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def read(self) -> Any:
        """Wait for an answer."""
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def ask(self, what: str = "", value: Any = None) -> Any:
        """Say something and wait for the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([what, value]) + "\n")
        self.process.stdin.flush()
        return self.read()

    def close(self) -> None:
        """End it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)


def run(count: int, quicker: int) -> dict[str, Any]:
    """Roll a first model out to everybody, then a second in waves while some fail and some leave; say how that went."""
    with tempfile.TemporaryDirectory(prefix="cloudedge-bench-") as folder:
        root = Path(folder)
        _, public = new_key_pair(root, "release", None)
        lab = Child(LAB, str(root / "lab"))
        admin, sync, url, objects = lab.read()
        names = [f"node-{number:05}" for number in range(count)]
        cloud = CloudConfig(url=admin, objects=ObjectsConfig(store=HubConfig(url=objects), public_url=url))
        with Counting(cloud) as bie:
            begun = time.monotonic()
            for name in names:
                bie.put_node(Node(name))
            made_s = time.monotonic() - begun
        nodes = Child(NODES, json.dumps([sync, names, str(public), REPORT_S / quicker]))
        try:
            found = _rollouts(root, cloud, nodes, names, LOOK_S / quicker)
        finally:
            nodes.close()
            lab.process.stdin.write("\n")  # type: ignore[union-attr]
            lab.process.stdin.flush()  # type: ignore[union-attr]
            lab_kb = lab.read()
            lab.close()
    return {
        "nodes": count,
        "report_every_s": REPORT_S / quicker,
        "made_s": round(made_s, 1),
        **found,
        "lab_mb": lab_kb // 1024,
    }


def _rollouts(root: Path, cloud: CloudConfig, nodes: Child, names: list[str], look_s: float) -> dict[str, Any]:
    hub = LocalHub(root / "hub")
    one, two = (_bundle(root, hub, number) for number in (1, 2))
    leg = EdgeLeg(
        cloud="lab", app="paddle-serving", model="paddle-yolov3-model", script="paddle-yolov3-run-script",
        key=str(root / "release.key"), waves=("10", "10%", "50%"), bake="0s", jobs=16,
        timeouts={"failed": "600s", "offline": "20s"},
        abort={"at_least": 50},  # two failures among the first ten say nothing about two in a hundred
    ).model_copy(update={"every": timedelta(seconds=look_s)})  # fmt: skip
    _until(lambda: nodes.ask()["heard"] == len(names))
    with Fleet(
        "bench", leg, Counting(cloud), open_objects(cloud.objects), journal=Journal(root / "j.db"), hub=hub
    ) as fleet:
        first, first_s, first_calls = _timed(fleet, one)
        _require(first, {"done": len(names)})
        step = max(len(names) // int(len(names) * FAILING or 1), 1)
        bad = names[step - 1 :: step][: int(len(names) * FAILING)]
        gone = [name for name in names[7 :: int(1 / LEAVING)] if name not in bad]
        nodes.ask("bad", {two.pin: bad})
        leave = threading.Timer(first_s / 4, lambda: nodes.ask("leave", gone))
        leave.start()
        second, second_s, calls = _timed(fleet, two)
        leave.join()
        missed = {node.name for node in fleet.nodes() if node.ready == "offline"}
        nodes.ask("return", gone)
        assert second.state == "done", second.why
        assert bad, "too few nodes for one of them to fail"
        assert set(second.failed) == set(bad), (second.failed, bad)
        assert second.offline, "nobody left before its turn"
        assert set(second.offline) <= set(gone) <= missed, (second.offline, gone, missed)
        revisions = fleet.revisions()
        wanted = dict.fromkeys(names, two.pin) | dict.fromkeys(bad, one.pin)
        began = time.monotonic()
        _until(lambda: {n: revisions[r].statement.pin for n, r in nodes.ask()["live"].items() if r} == wanted)
        caught_up_s = time.monotonic() - began
        newest = next(iter(revisions))
        lost = [node.name for node in fleet.nodes() if fleet.label_of(node) != newest]
        assert not lost, f"lost updates: {lost[:5]}"
    told = nodes.ask()
    assert not told["mistakes"], told["mistakes"][:3]
    return {
        "first": {"seconds": round(first_s, 1), "nodes_per_s": round(len(names) / first_s, 1), "requests": first_calls},
        "second": {
            "seconds": round(second_s, 1),
            "nodes_per_s": round(len(names) / second_s, 1),
            "requests": calls,
            "requests_per_node": round(calls / len(names), 1),
            **second.counts,
            "left": len(gone),
            "repairs": second.repairs,
            "caught_up_s": round(caught_up_s, 1),
        },
        "reports": told["reports"],
        "fetched_bytes_per_node": told["fetched"] // len(names),
        "nodes_mb": told["rss"] // 1024,
        "rollout_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def _bundle(root: Path, hub: LocalHub, number: int) -> Bundle:
    folder = root / f"model-{number}"
    folder.mkdir()
    (folder / "head.pdiparams").write_bytes(bytes([number]) * 10_000)
    (folder / "backbone.pdiparams").write_bytes(b"b" * 50_000)
    return Bundle.pack(folder, name="yolov3", version=number, hub=hub, copy=True)


def _timed(fleet: Fleet, bundle: Bundle) -> tuple[Outcome, float, int]:
    assert isinstance(fleet.bie, Counting)
    before, begun = fleet.bie.requests, time.monotonic()
    outcome = fleet.rollout(fleet.plan(bundle), bundle)
    return outcome, time.monotonic() - begun, fleet.bie.requests - before


def _require(outcome: Outcome, counts: dict[str, int]) -> None:
    found = {what: count for what, count in outcome.counts.items() if count}
    assert (outcome.state, found) == ("done", counts), outcome


def _until(what: Any, within_s: float = 600.0) -> None:
    end = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < end, "it does not come true"
        time.sleep(0.5)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--quick", action="store_true", help="200 nodes, and 50 to compare with")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    count = 200 if options.quick else options.nodes
    quicker = QUICKER if options.quick else 1
    few, many = run(max(count // 10, 50), quicker), run(count, quicker)
    growth = {
        "nodes": round(many["nodes"] / few["nodes"], 1),
        "seconds": round(many["second"]["seconds"] / few["second"]["seconds"], 1),
        "requests": round(many["second"]["requests"] / few["second"]["requests"], 1),
    }
    if options.json:
        print(json.dumps({"few": few, "many": many, "growth": growth}, indent=2))
        return
    for found in (few, many):
        second = found["second"]
        print(
            f"{found['nodes']:5} nodes: {second['seconds']:6.1f} s in waves ({second['nodes_per_s']:.1f} nodes/s): "
            f"{second['done']} done, {second['failed']} failed, {second['offline']} of {second['left']} that left were "
            f"missed; all of those caught up {second['caught_up_s']:.0f} s after their return"
        )
        print(
            f"       {second['requests']} requests ({second['requests_per_node']} per node), reports {found['reports']}"
        )
        print(
            f"       memory: lab {found['lab_mb']} MB, nodes {found['nodes_mb']} MB, rollout {found['rollout_mb']} MB"
        )
    times, calls = growth["seconds"], growth["requests"]
    print(f"{growth['nodes']} times the nodes: {times} times the time, {calls} times the requests")


if __name__ == "__main__":
    main()
