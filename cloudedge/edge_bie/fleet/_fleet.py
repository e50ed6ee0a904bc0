"""A fleet: the one object through which bundles are published to edge nodes, rolled out, taken back and watched."""

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
        name: What cloudedge.yaml calls the target.
        leg: Its edge section.
        bie: The account.
        objects: Where nodes fetch blobs; None: nothing can be published.
        journal: Where rollouts are written down; the one in cloudedge's home if left out.
        hub: Where bundles are read from, for their probes.
        clock: Where time comes from.
        runner: How calls are made side by side.
        tell: Told what is going on, for people.
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
        self._held: Writer | None = None

    @classmethod
    def load(cls, target: str, *, config: Config | None = None, tell: Callable[[str], None] = lambda _: None) -> Fleet:
        """Open the fleet of a target that cloudedge.yaml names.

        Raises:
            ConfigError: there is no such target, or it has no edge section.
        """
        settings = config or load()
        section = settings.targets.get(target)
        if section is None or section.edge is None:
            known = ", ".join(sorted(name for name, each in settings.targets.items() if each.edge)) or "none"
            raise ConfigError(f"there is no target {target!r} with an edge section", hint=f"Those with one: {known}.")
        cloud = settings.clouds.get(section.edge.cloud)
        if cloud is None:
            raise ConfigError(
                f"targets.{target}.edge.cloud names {section.edge.cloud!r}, and clouds has "
                f"{', '.join(sorted(settings.clouds)) or 'none'}"
            )
        bie = Bie(cloud, audit=AuditFile.of(cloud))
        return cls(target, section.edge, bie, open_objects(cloud.objects) if cloud.objects else None, tell=tell)

    def close(self) -> None:
        """Let go of the account and of the journal."""
        self.bie.close()
        self.journal.close()

    def __enter__(self) -> Fleet:  # noqa: PYI034 - typing.Self is not in 3.10
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Publishing.

    def propose(self, bundle: Bundle) -> Proposal:
        """Say which revisions a bundle would become; writes nothing."""
        return self._publisher.propose(bundle, live=self._live())

    def publish(self, bundle: Bundle) -> Published:
        """Bring a bundle to where nodes could fetch it; no node is moved. Publishing twice writes nothing.

        Raises:
            Conflict: somebody is at work on this fleet, or a name is taken by something else.
        """
        with self.writing() as writer:
            return self._publisher.publish(writer, bundle, self.propose(bundle))

    def check(self, revisions: Iterable[Revision]) -> None:
        """Fetch every blob that is new in some revisions, as a node would, and compare it with its digest.

        Raises:
            IntegrityError: something is missing or something else.
        """
        live = self._live()
        check_objects(self.bie, self.leg, list(revisions), live)

    def forget(self, pin: str) -> None:
        """Delete the revisions of a bundle and what only they used; blobs stay where they were uploaded.

        Raises:
            Conflict: a node's label points at one of them.
        """
        gone = [name for name, revision in self.revisions().items() if revision.statement.pin == pin]
        used = sorted(node.name for node in self.nodes() if node.labels.get(self._label) in gone)
        if used:
            raise Conflict(f"{self.name}: {pin} is what {len(used)} nodes should run, such as {used[0]}")
        with self.writing():
            self._publisher.forget(gone)

    # Rolling out.

    def plan(self, bundle: Bundle, *, policy: RolloutPolicy | None = None, skip_unfit: bool = False) -> RolloutPlan:
        """Decide which nodes a bundle would go to in which waves; writes nothing.

        Args:
            bundle: The bundle; it need not be published yet.
            policy: What to choose instead of what cloudedge.yaml says.
            skip_unfit: Leave out nodes that cannot take it, instead of listing them.

        Raises:
            InputError: probes are required, and it has none.
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
        """Carry out a plan, here and now.

        Args:
            plan: What to do.
            bundle: Published first, if it is given.
            check: Fetch what was published as a node would, before any node is told to; see `check`.
            wait_paused: Keep waiting while it is paused.

        Raises:
            InputError: some nodes cannot take it; nothing was touched.
            IntegrityError: nodes would find something else than what was published; nothing was touched.
            Conflict: another rollout is under way or unfinished, or the plan is out of date.
            Interrupted: it stopped half way.
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
        """Go on with what is unfinished, forward or back as the journal says; else bring who lags to what is live.

        Args:
            go_on: Also if it was paused.
            wait_paused: Keep waiting while it is paused.

        Returns:
            What came of it; None if there was nothing to do.

        Raises:
            Conflict: somebody is at work on it.
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
        """Decide which nodes have to be brought to what is live: new ones, and those whose label was lost."""
        live = self._live()
        app = self.bie.app(live.app) if live is not None else None
        if live is None or app is None:
            return None
        plan = self._planner.plan(self.nodes(), (live,), app, None, skip_unfit=True)
        return plan if plan.waves else None

    def pause(self) -> None:
        """Ask for the rollout under way to stop after what it is at; nodes keep what they have."""
        self._ask("pause")

    def approve(self) -> int:
        """Say yes to the next wave; returns its number, counted from 1."""
        operation = self._unfinished()
        wave = self.state(operation)
        number = wave.wave + 1 if wave.is_wave_open else wave.wave
        self._ask(f"approve:{number}")
        return number + 1

    def leave(self) -> Operation:
        """End an unfinished rollout as it is: every node keeps the label it has; a last resort.

        Raises:
            Conflict: somebody is at work on it.
            NotFound: none is unfinished.
        """
        operation = self._unfinished()
        with self.writing() as writer:
            writer.set_state(operation.number, "undone", why=f"{self.by} left it as it was", pin=operation.plan["pin"])
        return operation

    def abort(self) -> Outcome | None:
        """Take the unfinished rollout back: every touched node, the newest first.

        Returns:
            What came of it; None if the process that is at it was asked to.
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
        """Take back the last rollout that was done, or the one that is under way: touched nodes only, newest first.

        Raises:
            NotFound: there is nothing to take back.
        """
        if self.unfinished() is not None:
            return self.abort()
        last = self.last_change()
        if last is None:
            raise NotFound(f"{self.name}: nothing was rolled out that could be taken back")
        with self.writing() as writer:
            return self._take_back(writer, last)

    # How.

    @contextmanager
    def writing(self) -> Iterator[Writer]:
        """Be the one who changes this fleet; whoever is already may say so again."""
        if self._held is not None:
            yield self._held
            return
        with self.journal.writing(self.by) as writer:
            self._held = writer
            try:
                yield writer
            finally:
                self._held = None

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

    def _take_back(self, writer: Writer, last: Operation) -> Outcome:
        plan, state = RolloutPlan.from_json(last.plan), self.state(last)
        gone = sorted({plan.previous[node] for node in state.touched} - {"", *self.revisions()})
        if gone:
            raise NotFound(
                f"{self.name}: {len(gone)} revisions that nodes had before are not in the account any more: {gone[0]}",
                hint="Roll the bundle you want out as a new rollout; its blobs may still be on the nodes.",
            )
        back = replace(plan, waves=(Wave("back", plan.revisions[-1], tuple(state.touched)),))
        operation = writer.begin("rollback", str(last.number), plan=back.to_json(), by=self.by)
        return self._run(writer, operation)

    def _probe(self) -> Callable[[Node], Probed]:
        """Ask nodes that do not probe themselves; the probes are in the bundle, if it is at hand here."""
        revisions = self.revisions()
        asked: dict[str, HttpProbe] = {}

        def ask(node: Node) -> Probed:
            wanted = self.label_of(node)
            if wanted not in asked:
                found = revisions.get(wanted) or self.revisions().get(wanted)
                bundle = self._bundle_of(found)
                if bundle is None:  # not remembered: somebody may pull it meanwhile
                    return HttpProbe(self.leg.service, self.leg.port, None)(node)
                asked[wanted] = HttpProbe(self.leg.service, self.leg.port, bundle.probes, bundle.signature)
            return asked[wanted](node)

        return ask

    def _bundle_of(self, revision: Revision | None) -> Bundle | None:
        with suppress(NotFound):
            return self.open_bundle(revision) if revision is not None else None
        return None

    def _unfinished(self) -> Operation:
        operation = self.unfinished()
        if operation is None:
            raise NotFound(f"{self.name}: no rollout is unfinished", hint="The history lists what there was.")
        return operation

    def _ask(self, what: str) -> Operation:
        operation = self._unfinished()
        self.journal.ask(operation.number, what, by=self.by)
        return operation
