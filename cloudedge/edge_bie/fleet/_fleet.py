"""The fleet: publishes bundles to edge nodes, rolls them out and back, and shows their status."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from cloudedge.bundle import Bundle
from cloudedge.clock import Clock, SystemClock
from cloudedge.config import EdgeLeg, home, load
from cloudedge.edge_bie.client import AuditFile, Bie, Node, open_objects
from cloudedge.edge_bie.fleet._check_published import check_objects
from cloudedge.edge_bie.fleet._fleet_view import FleetView
from cloudedge.edge_bie.fleet._node_verdict import Probed
from cloudedge.edge_bie.fleet._probe import HttpProbe
from cloudedge.edge_bie.fleet._publish import Proposal, Published, Publisher
from cloudedge.edge_bie.fleet._revision import Revision
from cloudedge.edge_bie.fleet._rollout import RolloutPlan
from cloudedge.edge_bie.fleet._rollout_engine import Engine, Outcome, Runner, run_all
from cloudedge.edge_bie.fleet._rollout_plan import Planner
from cloudedge.edge_bie.fleet._waves import RolloutPolicy, Wave
from cloudedge.errors import ConfigError, Conflict, InputError, NotFound
from cloudedge.hub import LocalHub
from cloudedge.io import who
from cloudedge.journal import Journal, Operation, Writer

if TYPE_CHECKING:
    from cloudedge.config import Config
    from cloudedge.edge_bie.client import Objects

__all__ = ["Fleet"]


class Fleet(FleetView):
    """The nodes of one account that run one app.

    Example:
        >>> fleet = Fleet.load("shops")  # doctest: +SKIP
        >>> plan = fleet.plan(Bundle.open("yolov3:2"))  # doctest: +SKIP
        >>> print(plan.summary())  # doctest: +SKIP
        >>> fleet.rollout(plan)  # doctest: +SKIP

    Args:
        name: The target's name in cloudedge.yaml.
        leg: Its edge section.
        bie: The account.
        objects: The storage that nodes fetch blobs from; None: nothing can be published.
        journal: The journal of rollouts; the one in cloudedge's home if left out.
        hub: The hub with the bundles, for their probes.
        clock: Source of time.
        runner: Makes calls in parallel.
        tell: Called with each line of progress.
    """

    def __init__(
        self,
        name: str,
        leg: EdgeLeg,
        bie: Bie,
        objects: Objects | None,
        *,
        journal: Journal | None = None,
        hub: LocalHub | None = None,
        clock: Clock | None = None,
        runner: Runner = run_all,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        journal, hub = journal or Journal(home() / "fleets" / f"{name}.db"), hub or LocalHub()
        publisher = Publisher(bie, objects, leg, journal, hub)
        super().__init__(name, leg, bie, publisher, journal=journal, hub=hub, clock=clock or SystemClock())
        self.tell = tell
        self.by = who()
        self._runner = runner
        self._planner = Planner(bie, publisher, leg)
        self._writer: Writer | None = None

    @classmethod
    def load(cls, target: str, *, config: Config | None = None, tell: Callable[[str], None] = lambda _: None) -> Fleet:
        """Open the fleet of a target of cloudedge.yaml.

        Raises:
            ConfigError: There is no such target, or it has no edge section.
        """
        settings = config or load()
        section = settings.targets.get(target)
        if section is None or section.edge is None:
            known = ", ".join(sorted(name for name, each in settings.targets.items() if each.edge)) or "none"
            raise ConfigError(f"there is no target {target!r} with an edge section", hint=f"Targets with one: {known}.")
        cloud = settings.clouds.get(section.edge.cloud)
        if cloud is None:
            raise ConfigError(
                f"targets.{target}.edge.cloud names {section.edge.cloud!r}, and clouds has "
                f"{', '.join(sorted(settings.clouds)) or 'none'}"
            )
        bie = Bie(cloud, audit=AuditFile.of(cloud))
        return cls(target, section.edge, bie, open_objects(cloud.objects) if cloud.objects else None, tell=tell)

    def close(self) -> None:
        """Close the account and the journal."""
        self.bie.close()
        self.journal.close()

    def __enter__(self) -> Fleet:  # noqa: PYI034 - typing.Self is not in 3.10
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Publishing.

    def propose(self, bundle: Bundle) -> Proposal:
        """Return the revisions that a bundle would become; writes nothing."""
        return self._publisher.propose(bundle, live=self._live())

    def publish(self, bundle: Bundle) -> Published:
        """Upload a bundle and write its configs and apps; moves no node. Publishing twice writes nothing.

        Raises:
            Conflict: Another process works on this fleet, or another object has the name.
        """
        with self.writing() as writer:
            return self._publisher.publish(writer, bundle, self.propose(bundle))

    def check(self, revisions: Iterable[Revision]) -> None:
        """Fetch every blob that is new in some revisions, as a node would, and compare it with its digest.

        Raises:
            IntegrityError: A blob is missing or differs.
        """
        live = self._live()
        check_objects(self.bie, self.leg, list(revisions), live)

    def forget(self, pin: str) -> None:
        """Delete the revisions of a bundle and the configs that only they use; uploaded blobs stay.

        Raises:
            Conflict: A node's label points at one of them.
        """
        gone = [name for name, revision in self.revisions().items() if revision.statement.pin == pin]
        used = sorted(node.name for node in self.nodes() if node.labels.get(self._label) in gone)
        if used:
            raise Conflict(f"{self.name}: {len(used)} nodes should run {pin}, such as {used[0]}")
        with self.writing():
            self._publisher.forget(gone)

    # Rolling out.

    def plan(self, bundle: Bundle, *, policy: RolloutPolicy | None = None, skip_unfit: bool = False) -> RolloutPlan:
        """Plan the nodes and the waves of a rollout; writes nothing.

        Args:
            bundle: The bundle; it need not be published yet.
            policy: The policy instead of cloudedge.yaml's.
            skip_unfit: Leave out nodes that cannot take it, instead of listing them.

        Raises:
            InputError: Probes are required, and the bundle has none.
        """
        chosen = policy or RolloutPolicy.of(self.leg)
        if chosen.probe == "required" and not bundle.probes.requests:
            raise InputError(
                f"{bundle.name}:{bundle.version} has no recorded probe, and edge.probe is `required`",
                hint="Pack it with probes, or choose `reachable`.",
            )
        proposal = self.propose(bundle)
        return self._planner.plan(
            self.nodes(),
            proposal.revisions,
            proposal.apps[-1],
            chosen,
            skip_unfit=skip_unfit,
            memory_bytes=bundle.needs.memory_one_bytes,
        )

    def rollout(
        self, plan: RolloutPlan, bundle: Bundle | None = None, *, check: bool = True, wait_paused: bool = False
    ) -> Outcome:
        """Carry out a plan.

        Args:
            plan: The plan.
            bundle: A bundle to publish first.
            check: Fetch the published blobs as a node would, before any node moves; see `check`.
            wait_paused: Keep waiting while the rollout is paused.

        Raises:
            InputError: Some nodes cannot take it; nothing was touched.
            IntegrityError: Nodes would fetch other bytes than the published ones; nothing was touched.
            Conflict: Another rollout is under way or unfinished, or the plan is out of date.
            Interrupted: It stopped half way.
        """
        if plan.unfit:
            lines = "\n".join(f"  {unfit}" for unfit in plan.unfit)
            raise InputError(f"{len(plan.unfit)} reasons against {plan.title}:\n{lines}", hint="Nothing was touched.")
        with self.writing() as writer:
            if bundle is not None:
                self._publisher.publish(writer, bundle, self.propose(bundle))
            known = self.revisions()
            missing = [name for name in plan.revisions if name not in known]
            if missing:
                raise Conflict(f"{self.name}: revision {missing[0]} is not published", hint="Plan again.")
            if check:
                self.check([known[name] for name in plan.revisions])
            operation = writer.begin("rollout", plan.pin, plan=plan.to_json(), by=self.by)
            return self._run(writer, operation, wait_paused=wait_paused)

    def resume(self, *, go_on: bool = True, wait_paused: bool = False) -> Outcome | None:
        """Continue the unfinished rollout, forward or back as journaled; without one, repair nodes that lag behind.

        Args:
            go_on: Continue a paused one too.
            wait_paused: Keep waiting while it is paused.

        Returns:
            The outcome; None if there was nothing to do.

        Raises:
            Conflict: Another process works on it.
        """
        operation = self.unfinished()
        if operation is not None and go_on:
            self.journal.ask(operation.number, "resume", by=self.by)
        with self.writing() as writer:
            if operation is not None:
                return self._run(writer, operation, wait_paused=wait_paused)
            plan = self.plan_repair()
            if plan is None:
                return None
            begun = writer.begin("repair", plan.pin, plan=plan.to_json(), by=self.by)
            return self._run(writer, begun, wait_paused=wait_paused)

    def plan_repair(self) -> RolloutPlan | None:
        """Plan the move to the live revision for new nodes and for those whose label was lost."""
        live = self._live()
        app = self.bie.app(live.app) if live is not None else None
        if live is None or app is None:
            return None
        plan = self._planner.plan(self.nodes(), (live,), app, None, skip_unfit=True)
        return plan if plan.waves else None

    def pause(self) -> None:
        """Ask the rollout under way to pause after its current step; nodes keep their revisions."""
        self._ask("pause")

    def approve(self) -> int:
        """Approve the next wave; return its number, counted from 1."""
        operation = self._unfinished()
        state = self.state(operation)
        number = state.wave + 1 if state.is_wave_open else state.wave
        self._ask(f"approve:{number}")
        return number + 1

    def leave(self) -> Operation:
        """End an unfinished rollout in place: every node keeps its label; a last resort.

        Raises:
            Conflict: Another process works on it.
            NotFound: No rollout is unfinished.
        """
        operation = self._unfinished()
        with self.writing() as writer:
            writer.set_state(operation.number, "undone", why=f"{self.by} left it as it was", pin=operation.plan["pin"])
        return operation

    def abort(self) -> Outcome | None:
        """Roll back the unfinished rollout: every touched node, the newest first.

        Returns:
            The outcome; None if another process works on the rollout and was asked to roll back.
        """
        operation = self._ask("abort")
        try:
            with self.writing() as writer:
                return self._run(writer, operation)
        except Conflict as error:
            if "holder" not in error.facts:
                raise
            return None

    def rollback(self) -> Outcome | None:
        """Roll back the last completed rollout, or the one under way: touched nodes only, newest first.

        Raises:
            NotFound: There is nothing to roll back.
        """
        if self.unfinished() is not None:
            return self.abort()
        last = self.last_change()
        if last is None:
            raise NotFound(f"{self.name}: there is no rollout to roll back")
        with self.writing() as writer:
            return self._roll_back(writer, last)

    # Details.

    @contextmanager
    def writing(self) -> Iterator[Writer]:
        """Hold the right to change this fleet; reentrant."""
        if self._writer is not None:
            yield self._writer
            return
        with self.journal.writing(self.by) as writer:
            self._writer = writer
            try:
                yield writer
            finally:
                self._writer = None

    def _run(self, writer: Writer, operation: Operation, *, wait_paused: bool = False) -> Outcome:
        plan = RolloutPlan.from_json(operation.plan)
        if operation.kind == "rollback" and not self.state(operation).undo:
            touched = [node for wave in plan.waves for node in wave.nodes]
            writer.record(operation.number, "undo", "note", why=f"{operation.by} rolls back", touched=touched)
        if operation.state == "paused":
            writer.set_state(operation.number, "open")
        engine = Engine(
            self.bie,
            writer,
            operation.number,
            plan,
            selector=self.leg.selector,
            republish=lambda name: self._publisher.republish(writer, name),
            probe=self._probe(),
            clock=self._clock,
            runner=self._runner,
            turn=self.bie.turn,
            tell=self.tell,
        )
        return engine.run(wait_paused=wait_paused, is_rollback=operation.kind == "rollback")

    def _roll_back(self, writer: Writer, last: Operation) -> Outcome:
        plan, state = RolloutPlan.from_json(last.plan), self.state(last)
        gone = sorted({plan.previous[node] for node in state.touched} - {"", *self.revisions()})
        if gone:
            raise NotFound(
                f"{self.name}: {len(gone)} previous revisions of nodes are no longer in the account: {gone[0]}",
                hint="Roll the wanted bundle out as a new rollout; its blobs may still be on the nodes.",
            )
        back = replace(plan, waves=(Wave("back", plan.revisions[-1], tuple(state.touched)),))
        operation = writer.begin("rollback", str(last.number), plan=back.to_json(), by=self.by)
        return self._run(writer, operation)

    def _probe(self) -> Callable[[Node], Probed]:
        """Return the probe of nodes that do not probe themselves; its requests are in the bundle, if that is local."""
        revisions = self.revisions()
        probes: dict[str, HttpProbe] = {}

        def ask(node: Node) -> Probed:
            wanted = self.label_of(node)
            if wanted not in probes:
                found = revisions.get(wanted) or self.revisions().get(wanted)
                bundle = self._bundle_of(found)
                if bundle is None:  # not cached: an operator may pull it meanwhile
                    return HttpProbe(self.leg.service, self.leg.port, None)(node)
                probes[wanted] = HttpProbe(self.leg.service, self.leg.port, bundle.probes, bundle.signature)
            return probes[wanted](node)

        return ask

    def _bundle_of(self, revision: Revision | None) -> Bundle | None:
        with suppress(NotFound):
            return self.open_bundle(revision) if revision is not None else None
        return None

    def _unfinished(self) -> Operation:
        operation = self.unfinished()
        if operation is None:
            raise NotFound(
                f"{self.name}: no rollout is unfinished", hint="List earlier ones with `cloudedge fleet history`."
            )
        return operation

    def _ask(self, what: str) -> Operation:
        operation = self._unfinished()
        self.journal.ask(operation.number, what, by=self.by)
        return operation
