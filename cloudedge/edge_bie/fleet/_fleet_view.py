"""The read-only view of a fleet: its nodes, revisions, history and status, from the account and the journal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cloudedge.bundle import Bundle
from cloudedge.clock import Clock
from cloudedge.config import EdgeLeg
from cloudedge.edge_bie.client import Bie, Node
from cloudedge.edge_bie.fleet._publish import Publisher
from cloudedge.edge_bie.fleet._revision import Revision
from cloudedge.edge_bie.fleet._rollout import RolloutState
from cloudedge.edge_bie.fleet._status import FleetStatus, node_status
from cloudedge.edge_bie.model import APP_LABEL, node_label
from cloudedge.hub import LocalHub
from cloudedge.journal import Journal, Operation

__all__ = ["FleetView", "Life"]

_LOOK_BACK = 20
"""Number of rollouts searched for the time of a node's last label."""


@dataclass(frozen=True)
class Life:
    """A revision that is or was live on a fleet."""

    number: int
    """Number of the rollout that brought it."""
    revision: str
    pin: str
    title: str


class FleetView:
    """The nodes of one account that run one app.

    Args:
        name: The target's name in cloudedge.yaml.
        leg: Its edge section.
        bie: The account.
        publisher: Reads the published revisions.
        journal: The journal of rollouts.
        hub: The hub with the bundles.
        clock: Source of time.
    """

    def __init__(
        self,
        name: str,
        leg: EdgeLeg,
        bie: Bie,
        publisher: Publisher,
        *,
        journal: Journal,
        hub: LocalHub,
        clock: Clock,
    ) -> None:
        self.name = name
        self.leg = leg
        self.bie = bie
        self.journal = journal
        self._publisher = publisher
        self._hub = hub
        self._clock = clock
        self._label = node_label(leg.app)

    def nodes(self) -> list[Node]:
        """List the fleet's nodes."""
        return sorted(self.bie.nodes(selector=self.leg.selector), key=lambda node: node.name)

    def revisions(self) -> dict[str, Revision]:
        """Read the published revisions, by name, the highest number first."""
        return self._publisher.revisions()

    def published(self, revisions: Mapping[str, Revision] | None = None) -> list[Revision]:
        """Return the revisions that nodes could move to: those whose app exists too."""
        apps = {app.name for app in self.bie.apps(selector=f"{APP_LABEL}={self.leg.app}")}
        return [each for each in (revisions or self.revisions()).values() if each.app in apps]

    def label_of(self, node: Node) -> str:
        """Return the revision a node's label points at; empty: none."""
        return node.labels.get(self._label, "")

    def open_bundle(self, revision: Revision) -> Bundle:
        """Open the bundle that a revision runs.

        Raises:
            NotFound: It is not in the local hub.
        """
        return Bundle.open(revision.statement.bundle, hub=self._hub)

    def lives(self) -> list[Life]:
        """Return the live revision and earlier ones, the newest first."""
        found: list[Life] = []
        for done in reversed([each for each in self.journal.operations() if each.state == "done"]):
            if done.kind == "rollout":
                plan = done.plan
                found.insert(0, Life(done.number, plan["revisions"][-1], plan["pin"], plan["title"]))
            elif done.kind == "rollback":
                found = [life for life in found if life.number != int(done.subject)]
        return found

    def unfinished(self) -> Operation | None:
        """Return the unfinished rollout, if there is one."""
        return self.journal.unfinished()

    def history(self, limit: int = -1) -> list[Operation]:
        """List the operations, the newest first."""
        return self.journal.operations(limit=limit)

    def state(self, operation: Operation) -> RolloutState:
        """Read the progress of a rollout from the journal."""
        return RolloutState.replay(self.journal.entries(operation.number), self.journal.wishes(operation.number))

    def status(self) -> FleetStatus:
        """Return the current state of every node."""
        lives, revisions, since = self.lives(), self.revisions(), self._label_times()
        open_ = self.unfinished()
        words = f"{open_.kind} {open_.number} of {open_.plan['title']} ({open_.state})" if open_ else ""
        pins = list(dict.fromkeys(life.pin for life in lives))
        now = self._clock.now()
        nodes = tuple(
            node_status(n, self.leg.app, revisions, lives=pins, labelled=since.get(n.name, ""), now=now)
            for n in self.nodes()
        )
        live = lives[0] if lives else None
        return FleetStatus(self.name, self.leg.app, live.title if live else "", live.pin if live else "", words, nodes)

    def last_change(self) -> Operation | None:
        """Return the newest rollout that was completed and not rolled back since, if there is one."""
        lives = self.lives()
        return self.journal.operation(lives[0].number) if lives else None

    def garbage(self, *, keep: int) -> dict[str, str]:
        """Return the bundles that could be forgotten: titles by pin.

        It keeps the last `keep` live ones, those that a node's label points at, and those that an unfinished rollout
        needs.

        Args:
            keep: Number of live and earlier ones to keep, at least the live one.
        """
        revisions, open_ = self.revisions(), self.unfinished()
        wanted = {life.pin for life in self.lives()[: max(keep, 1)]}
        used = {self.label_of(node) for node in self.bie.nodes()}
        if open_ is not None:
            used |= {*open_.plan["revisions"], *open_.plan["previous"].values()}
        wanted |= {revisions[name].statement.pin for name in used if name in revisions}
        return {r.statement.pin: r.title for r in revisions.values() if r.statement.pin not in wanted}

    def _live(self) -> Revision | None:
        """Return the revision with the highest number that has the live content."""
        lives, known = self.lives(), self.revisions()
        live = known.get(lives[0].revision) if lives else None
        if live is None:
            return None
        return next(each for each in known.values() if each.again(0).statement == live.again(0).statement)

    def _label_times(self) -> dict[str, str]:
        times: dict[str, str] = {}
        for operation in self.journal.operations(limit=_LOOK_BACK):
            for entry in reversed(self.journal.entries(operation.number)):
                if entry.step == "label":
                    for node in entry.detail["nodes"]:
                        times.setdefault(node, entry.at)
        return times
