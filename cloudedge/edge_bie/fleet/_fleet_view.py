"""What a fleet is and was: read from the account and from the journal. Nothing here changes anything."""

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
"""Rollouts in which the time of a node's last label is looked for."""


@dataclass(frozen=True)
class Life:
    """A revision that is or was live on a fleet."""

    number: int
    """Of the rollout that brought it."""
    revision: str
    pin: str
    title: str


class FleetView:
    """The nodes of one account that run one app, as they are.

    Args:
        name: What cloudedge.yaml calls the target.
        leg: Its edge section.
        bie: The account.
        publisher: What was published.
        journal: Where rollouts are written down.
        hub: Where bundles are read from.
        clock: Where time comes from.
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
        """Read what was published, by revision, the highest number first."""
        return self._publisher.revisions()

    def published(self, revisions: Mapping[str, Revision] | None = None) -> list[Revision]:
        """Return the revisions that nodes could be moved to: those whose app is there too."""
        apps = {app.name for app in self.bie.apps(selector=f"{APP_LABEL}={self.leg.app}")}
        return [each for each in (revisions or self.revisions()).values() if each.app in apps]

    def label_of(self, node: Node) -> str:
        """Return the revision a node's label points at; empty: none."""
        return node.labels.get(self._label, "")

    def open_bundle(self, revision: Revision) -> Bundle:
        """Open the bundle that a revision runs.

        Raises:
            NotFound: it is not in the local hub.
        """
        return Bundle.open(revision.statement.bundle, hub=self._hub)

    def lives(self) -> list[Life]:
        """Return what is live and what was, the newest first."""
        found: list[Life] = []
        for done in reversed([each for each in self.journal.operations() if each.state == "done"]):
            if done.kind == "rollout":
                plan = done.plan
                found.insert(0, Life(done.number, plan["revisions"][-1], plan["pin"], plan["title"]))
            elif done.kind == "rollback":
                found = [life for life in found if life.number != int(done.subject)]
        return found

    def unfinished(self) -> Operation | None:
        """Return the rollout that somebody has to finish or take back, if there is one."""
        return self.journal.unfinished()

    def history(self, limit: int = -1) -> list[Operation]:
        """List what was done, the newest first."""
        return self.journal.operations(limit=limit)

    def state(self, operation: Operation) -> RolloutState:
        """Read how far a rollout got."""
        return RolloutState.replay(self.journal.entries(operation.number), self.journal.wishes(operation.number))

    def status(self) -> FleetStatus:
        """Say what every node runs right now."""
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
        """Return the newest rollout that was done and not taken back since, if there is one."""
        lives = self.lives()
        return self.journal.operation(lives[0].number) if lives else None

    def garbage(self, *, keep: int) -> dict[str, str]:
        """Return what could be forgotten: bundles as people call them, by pin.

        Kept are the last few that were live, whatever a node's label points at, and what an unfinished rollout needs.

        Args:
            keep: How many that are or were live, at least the one that is.
        """
        revisions, open_ = self.revisions(), self.unfinished()
        wanted = {life.pin for life in self.lives()[: max(keep, 1)]}
        used = {self.label_of(node) for node in self.bie.nodes()}
        if open_ is not None:
            used |= {*open_.plan["revisions"], *open_.plan["previous"].values()}
        wanted |= {revisions[name].statement.pin for name in used if name in revisions}
        return {r.statement.pin: r.title for r in revisions.values() if r.statement.pin not in wanted}

    def _live(self) -> Revision | None:
        """Return the revision with the highest number that stands for what is live."""
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
