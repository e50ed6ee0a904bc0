"""A lab, nodes that are played in one process, and a fleet over them: what tests of rollouts stand on."""

import contextlib
import time
from datetime import timedelta
from pathlib import Path

from cloudedge.bundle import Bundle, Probes, new_key_pair
from cloudedge.clock import SystemClock
from cloudedge.config import CloudConfig, EdgeAbort, EdgeLeg, EdgeTimeouts, HubConfig, ObjectsConfig
from cloudedge.edge_bie.client import Bie, Node, open_objects
from cloudedge.edge_bie.fleet import Fleet
from cloudedge.edge_bie.lab import Lab
from cloudedge.errors import Conflict, InputError
from cloudedge.hub import LocalHub
from cloudedge.journal import Journal
from tests.edge_bie.node.swarm import Swarm

EVERY = timedelta(seconds=0.2)
HASTE = 8.0
"""The lab's clock runs so many times faster: a node is offline after five seconds, not forty."""


class HastyClock(SystemClock):
    """A clock that runs fast."""

    def __init__(self):
        self._begun, self._at = time.monotonic(), super().now()

    def now(self):
        return self._at + timedelta(seconds=(time.monotonic() - self._begun) * HASTE)


def pack(root: Path, name: str, version: int, content: bytes, *, hub: LocalHub, others=b"same", **parts) -> Bundle:
    """Pack a model of two small files; one changes from version to version."""
    folder = root / f"{name}-{version}"
    folder.mkdir()
    (folder / "model.pdmodel").write_bytes(content)
    (folder / "backbone.pdiparams").write_bytes(others)
    return Bundle.pack(folder, name=name, version=version, hub=hub, copy=True, **{"probes": Probes(), **parts})


class Yard:
    """Everything a fleet needs, in one folder."""

    def __init__(self, root: Path, lab: Lab, count: int, *, interval_s: float, **settings):
        self.root, self.lab = root, lab
        self.hub = LocalHub(root / "hub")
        if not (root / "release.key").exists():
            new_key_pair(root, "release", None)
        self.cloud = CloudConfig(
            url=lab.admin_url, objects=ObjectsConfig(store=HubConfig(url=str(lab.objects)), public_url=lab.objects_url)
        )
        self.names = [f"node-{number:04}" for number in range(count)]
        self.leg = EdgeLeg(
            **{
                "cloud": "lab",
                "app": "paddle-serving",
                "model": "paddle-yolov3-model",
                "script": "paddle-yolov3-run-script",
                "key": str(root / "release.key"),
                "service": "yolov3",
                "waves": ("1", "50%"),
                "every": "1s",
                "bake": "0s",
                "abort": EdgeAbort(),
                "timeouts": EdgeTimeouts(failed="60s", offline="4s"),
                "jobs": 8,
            }
            | settings
        ).model_copy(update={"every": EVERY})
        self.bad: dict[str, set[str]] = {}
        """By pin: the nodes on which its probes fail; a star for all."""
        self.swarm = Swarm(
            lab.sync_url, self.names, key=root / "release.pub", interval_s=interval_s, fails=self._fails, seed=1
        )

    def _fails(self, node, statement):
        who = self.bad.get(statement.pin, ())
        return "the probe was answered differently" if node in who or "*" in who else ""

    def add_nodes(self):
        with Bie(self.cloud) as bie:
            for name in self.names:
                while bie.node(name) is None:
                    with contextlib.suppress(Conflict, InputError):  # a lab with faults loses some
                        bie.put_node(Node(name, {"site": "berlin"}))

    def fleet(self, **settings) -> Fleet:
        """Open the fleet, as a new process would."""
        leg = self.leg.model_copy(update=settings)
        journal = Journal(self.root / "fleets" / "shops.db")
        return Fleet("shops", leg, Bie(self.cloud), open_objects(self.cloud.objects), journal=journal, hub=self.hub)

    def runs(self) -> dict[str, str]:
        """Return the pin that each node really runs."""
        with self.fleet() as fleet:
            revisions = fleet.revisions()
        found = {name: live.get("paddle-serving", "") for name, live in self.swarm.live().items()}
        return {name: revisions[revision].statement.pin if revision else "" for name, revision in found.items()}

    def pack(self, version: int, content: bytes, **how) -> Bundle:
        return pack(self.root, "yolov3", version, content, hub=self.hub, **how)


@contextlib.contextmanager
def yard(root: Path, count: int, *, interval_s: float = 0.3, faults=None, **settings):
    """Open a lab with nodes that are there."""
    with Lab(root / "lab", seed=1, clock=HastyClock(), faults=faults) as lab:
        made = Yard(root, lab, count, interval_s=interval_s, **settings)
        made.add_nodes()
        with made.swarm:
            wait_for(lambda: all(node.reports for node in made.swarm.nodes.values()))
            yield made
            assert not made.swarm.mistakes


def wait_for(what, within_s=60.0):
    """Wait until something is true."""
    end = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < end, "it does not come true"
        time.sleep(0.05)
