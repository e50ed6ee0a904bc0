"""The status of a fleet, node by node, from the nodes' reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from cloudedge.edge_bie.fleet._node_verdict import judge
from cloudedge.edge_bie.fleet._preflight import number
from cloudedge.edge_bie.fleet._revision import Revision
from cloudedge.edge_bie.model import node_label

if TYPE_CHECKING:
    from cloudedge.edge_bie.client import Node

__all__ = ["FleetStatus", "NodeStatus", "node_status"]


@dataclass(frozen=True)
class NodeStatus:
    """The status of one node."""

    name: str
    ready: str
    """`online`, `offline` or `never`."""
    wanted: str
    """The revision its label points at."""
    runs: str
    """The revision it reports to run; empty: none, or not reported."""
    title: str
    pin: str
    """The pin of the revision it runs."""
    since: str
    """The reported start of that revision; if it is not reported, the time of the node's last label."""
    lag: int | None
    """Number of releases behind the live one; None: its revision was never live here, or it runs none."""
    health: Literal["healthy", "failing", "waiting", "offline", "empty"]
    why: str
    last_contact: str
    cpu: float | None
    memory: float | None
    disk: float | None
    gpu: float | None
    """Usage of its busiest host, if it is reported."""


@dataclass(frozen=True)
class FleetStatus:
    """The status of a fleet."""

    name: str
    app: str
    live: str
    """The live bundle's name and version; empty: none is live."""
    live_pin: str
    unfinished: str
    """The rollout to finish or roll back; empty: none."""
    nodes: tuple[NodeStatus, ...]

    @property
    def shares(self) -> dict[str, float]:
        """The share of the nodes that runs each pin."""
        counts = Counter(node.pin for node in self.nodes)
        return {pin: count / len(self.nodes) for pin, count in sorted(counts.items())}

    @property
    def skew(self) -> int:
        """Number of different bundles that nodes run; 1 means no skew."""
        return len({node.pin for node in self.nodes if node.pin})

    @property
    def is_whole(self) -> bool:
        """Every node runs the live bundle and is healthy."""
        well = all(node.health == "healthy" and node.pin == self.live_pin for node in self.nodes)
        return bool(self.live_pin) and not self.unfinished and well

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self) | {"shares": self.shares, "skew": self.skew, "is_whole": self.is_whole}


def node_status(
    node: Node, app: str, revisions: Mapping[str, Revision], *, lives: Sequence[str], labelled: str, now: datetime
) -> NodeStatus:
    """Return the status of a node.

    Args:
        node: The node, with its newest report.
        app: The app without its revision.
        revisions: The published revisions, by name.
        lives: Pins that are or were live, the newest first.
        labelled: Time of its last label.
        now: The current time.
    """
    wanted = node.labels.get(node_label(app), "")
    reported = node.report.apps if node.report else {}
    runs = next((name for name, revision in revisions.items() if revision.app in reported), "")
    running = revisions.get(runs)
    verdict = judge(node, revisions[wanted].app, probe_rule="off") if wanted in revisions else None
    health: Literal["healthy", "failing", "waiting", "offline", "empty"] = "empty"
    if node.ready != "online":
        health = "offline"
    elif verdict is not None:
        health = "healthy" if verdict.leaning == "good" else "failing" if verdict.leaning == "bad" else "waiting"
    pin = running.statement.pin if running else ""
    stats = list(node.report.stats.values()) if node.report else []

    def share(what: str) -> float | None:
        found = [value for each in stats if (value := number(each, "percent", what)) is not None]
        return max(found) if found else None

    return NodeStatus(
        name=node.name,
        ready=node.ready,
        wanted=wanted,
        runs=runs,
        title=running.title if running else "",
        pin=pin,
        since=_created(node, running) or labelled,
        lag=lives.index(pin) if pin in lives else None,
        health=health,
        why=verdict.why if verdict else "",
        last_contact=_ago(node.report.time if node.report else "", now),
        cpu=share("cpu"),
        memory=share("memory"),
        disk=share("disk"),
        gpu=share("gpu"),
    )


def _created(node: Node, running: Revision | None) -> str:
    """Return the start of a revision on a node, by the node's clock; empty: not reported."""
    stats = node.report.app(running.app) if node.report and running else None
    times = [instance.created for instance in stats.instances] if stats else []
    return max((at for at in times if not at.startswith("0001")), default="")  # what an unset time looks like in Go


def _ago(at: str, now: datetime) -> str:
    """Return the age of a server's time, for people; a text that is no time is returned as it is."""
    try:
        moment = datetime.fromisoformat(at[:19] + "+00:00")
    except ValueError:
        return at
    if moment.year < 1970:  # noqa: PLR2004 - what an unset time looks like in Go
        return ""
    return f"{max((now - moment).total_seconds(), 0):.0f} s ago"
