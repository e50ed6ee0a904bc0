"""A fleet as a place of a release: its pointer moves in waves.

Loading publishes and labels no node; activating runs the rollout to its end. A rollout that fails has taken its nodes
back by the time it reports that, and the release then takes back the rest. Node labels are the pointer, and they decide
what is active: a node that does not answer counts as moved once its label is written, and catches up when it returns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from cloudedge.bundle import Bundle
from cloudedge.edge_bie.fleet import Fleet, Outcome, RolloutUndone
from cloudedge.errors import ConfigError, Conflict, InputError, NotFound
from cloudedge.release.core import Estimate, Health, Leg, Loaded, Member, Observed, Place, Shares, Shipped, Version

if TYPE_CHECKING:
    from cloudedge.bundle import Signature
    from cloudedge.config import Config, TargetConfig

__all__ = ["FleetPlace", "fleet_place", "places"]

_BYTES_PER_S = 1e6
"""The bandwidth of a node's link; for estimates only."""
_ORDER = "order"


class FleetPlace:
    """The nodes of one app."""

    leg: Leg = "edge"

    def __init__(self, fleet: Fleet) -> None:
        self.name = f"edge/{fleet.leg.app}"
        self.fleet = fleet

    def observe(self) -> Observed:
        """See `Place`."""
        revisions, nodes = self.fleet.revisions(), self.fleet.nodes()
        if not nodes:
            raise NotFound(
                f"{self.name}: no node matches {self.fleet.leg.selector!r}",
                hint="Label some nodes, or change `edge.selector`.",
            )
        labels = Counter(self.fleet.label_of(node) for node in nodes)
        pins: Counter[str] = Counter()
        for label, count in labels.items():
            if label in revisions:
                pins[revisions[label].statement.pin] += count
        active = {pin: count / len(nodes) for pin, count in pins.items()}
        return Observed(
            self.name,
            self.leg,
            versions={each.statement.pin: Loaded() for each in self.fleet.published(revisions)},
            active=active,
            signature=self._signature(max(active, key=lambda pin: active[pin], default="")),
            order=self.fleet.journal.recall(_ORDER) or 0,
        )

    def members(self) -> Sequence[Member]:
        """See `Group`: the nodes, each with the version that it reports to run."""
        return [
            Member(
                name=f"{self.name}/{node.name}",
                pin=node.pin,
                since=node.since,
                is_there=node.ready == "online",
                memory_share=node.memory,
                error=node.why if node.health == "failing" else "",
            )
            for node in self.fleet.status().nodes
        ]

    def estimate(self, version: Version) -> Estimate:
        """See `Place`: the bytes that would travel to all nodes together."""
        revisions, wanted = self.fleet.revisions(), self.fleet.propose(_bundle(version)).revisions[-1]
        ships = [wanted.new_bytes(revisions.get(self.fleet.label_of(node))) for node in self.fleet.nodes()]
        bake = self.fleet.leg.bake.total_seconds() * (len(self.fleet.leg.waves) + 1)
        return Estimate(ship_bytes=sum(ships), seconds=bake + max(ships, default=0) / _BYTES_PER_S)

    def load(self, version: Version, *, order: int) -> Shipped:
        """See `Place`: publish, and label no node."""
        with self.fleet.writing():
            self._fence(order)
            sent = self.fleet.publish(_bundle(version)).sent_bytes
        return Shipped(sent, "base" if sent else "nothing")

    def verify(self, version: Version) -> None:
        """See `Place`: every file can be fetched, and every node that answers could take the version."""
        self.fleet.check([each for each in self.fleet.revisions().values() if each.statement.pin == version.pin][:1])
        plan = self.fleet.plan(_bundle(version))
        if plan.unfit:
            raise InputError(
                f"{self.name}: {len(plan.unfit)} reasons against {version}: "
                + "; ".join(str(unfit) for unfit in plan.unfit[:5]),
                hint="Mend these nodes, or take them out with `edge.selector`.",
            )

    def activate(self, shares: Shares, *, order: int) -> None:
        """See `Place`: run the rollout to its end, or take nodes back to what they had.

        Raises:
            RolloutUndone: it was given up, and every touched node is back.
        """
        with self.fleet.writing():
            self._fence(order)
            pin = next(iter(shares)) if len(shares) == 1 else ""
            self._finish(pin)
            if self._is_at(pin, shares):
                return
            if self._leads_back_to(pin):
                self._require(self.fleet.rollback())
            if self._is_at(pin, shares):
                return
            if not pin:
                raise Conflict(f"{self.name}: nothing in the journal leads back to {dict(shares) or 'nothing'}")
            bundle = self._opened(pin)
            self._require(self.fleet.rollout(self.fleet.plan(bundle), bundle, check=False, wait_paused=True))

    def unload(self, pin: str, *, order: int) -> None:
        """See `Place`."""
        with self.fleet.writing():
            self._fence(order)
            self.fleet.forget(pin)

    def watch(self) -> Health:
        """See `Place`: nothing counts the requests that nodes answer."""
        return Health()

    def _finish(self, pin: str) -> None:
        """Bring an unfinished rollout to its end: forward if it leads to the pin, else back."""
        unfinished = self.fleet.unfinished()
        if unfinished is None:
            return
        is_forward = unfinished.kind != "rollback" and not self.fleet.state(unfinished).undo
        if is_forward and unfinished.plan["pin"] == pin:
            self._require(self.fleet.resume(go_on=False, wait_paused=True))
        elif is_forward:
            self.fleet.abort()
        else:
            outcome = self.fleet.resume(go_on=False, wait_paused=True)
            if unfinished.plan["pin"] == pin and unfinished.kind != "rollback":
                self._require(outcome)

    def _is_at(self, pin: str, shares: Shares) -> bool:
        active = self.observe().active
        return dict(active) == {pin: 1.0} if pin else not shares and not active

    def _leads_back_to(self, pin: str) -> bool:
        """Tell whether taking back the last rollout leads to the pin."""
        last = self.fleet.last_change()
        if last is None or last.plan["pin"] == pin:
            return False
        revisions = self.fleet.revisions()
        pins = {revisions[name].statement.pin for name in set(last.plan["previous"].values()) if name in revisions}
        return pins == ({pin} if pin else set())

    def _require(self, outcome: Outcome | None) -> None:
        if outcome is not None and outcome.state == "undone":
            raise RolloutUndone(
                f"{self.name}: rollout {outcome.number} of {outcome.pin} was given up: {outcome.why}",
                hint="Every touched node is back to what it had.",
                number=outcome.number,
                why=outcome.why,
            )

    def _opened(self, pin: str) -> Bundle:
        for revision in self.fleet.revisions().values():
            if revision.statement.pin == pin:
                return self.fleet.open_bundle(revision)
        raise NotFound(f"{self.name}: {pin} was never published here")

    def _signature(self, pin: str) -> Signature | None:
        with suppress(NotFound):
            return self._opened(pin).signature
        return None

    def _fence(self, order: int) -> None:
        highest = self.fleet.journal.recall(_ORDER) or 0
        if order < highest:
            raise Conflict(f"{self.name}: order {order} came after {highest}")
        with self.fleet.writing() as writer:
            writer.remember(_ORDER, order)


def places(_name: str, section: TargetConfig) -> Sequence[Place]:
    """Make the places of a target of the kind `bie`, besides its fleet: none. A fleet comes with every edge section."""
    if section.edge is None:
        raise ConfigError("a target of the kind bie needs an edge section", hint="See docs/how-to/edge.md for one.")
    return ()


def fleet_place(target: str, config: Config) -> FleetPlace:
    """Make the place of a target's edge section."""
    return FleetPlace(Fleet.load(target, config=config))


def _bundle(version: Version) -> Bundle:
    if version.bundle is None:
        raise InputError(f"the bytes of {version} are not here", hint="Pull it with `cloudedge hub pull`.")
    return version.bundle
