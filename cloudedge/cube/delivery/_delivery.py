"""Delivery of versions: to every replica of every shard of every table, then all of them activate it.

    prepare     stage, load beside the active version, verify       may stop at any moment; readers notice nothing
    activate    move the pointer of every replica                   only once every replica is ready
    forget      unload the oldest versions

The journal records every intent before it is carried out. To continue a run that was killed, run the same delivery
again: every step first checks whether it is done. Readers with a pin see one version throughout.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from cloudedge.clock import Clock
from cloudedge.cube.delivery._artifact_cache import ArtifactCache
from cloudedge.cube.delivery._delivery_plan import (
    DeliveryPlan,
    DeliveryStep,
    ObservedReplica,
    WantedVersion,
    plan_delivery,
    plan_forget,
    plan_rollback,
)
from cloudedge.cube.delivery._replica import Replica
from cloudedge.cube.delivery._replica_delivery import ReplicaDelivery, refuse
from cloudedge.cube.delivery._replica_steps import table_of
from cloudedge.cube.delivery._table_shards import ShardRows, TableVersion
from cloudedge.errors import CloudEdgeError, Conflict, DeadlineExceeded, NotFound
from cloudedge.journal import Journal, Operation, Writer

__all__ = ["DELIVER", "Delivered", "Delivery", "SwitchReport", "has_moved"]

DELIVER, _ROLLBACK = "deliver", "rollback"
_ACTIVATION = "activation"


@dataclass(frozen=True)
class SwitchReport:
    """The effect of a switch, and how long versions were mixed, as measured by seeks."""

    version: str
    """The name of the version; where tables have different ones, each after its table's name."""
    replicas: int
    changed: int
    """Replicas that had another version before."""
    mixed_at_least_s: float
    """A lower bound of the time that a reader can have seen a mixture; 0 when no seek saw one."""
    mixed_at_most_s: float
    """An upper bound: from the last seek before the first change to the first seek after the last."""

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class Delivered:
    """The outcome of a delivery."""

    versions: Mapping[str, str]
    """The active version by table."""
    shipped_bytes: int
    steps: int
    number: int
    """The number of the operation in the journal."""
    switch: SwitchReport | None = None
    """The time that versions were mixed; None where readers can pin theirs, or where nothing had to be switched."""
    warnings: tuple[str, ...] = ()
    """Messages for the operator although nothing failed."""


class Delivery(ReplicaDelivery):
    """Delivers versions of tables to all their replicas; takes the options of `ReplicaDelivery`.

    The journal is kept beside the artifacts, so one delivery runs there at a time.

    Example:
        >>> replicas = [CubeReplica("emb", 0, address="10.0.0.1:8027", admin="10.0.0.1:8028")]  # doctest: +SKIP
        >>> with Delivery(replicas, ArtifactCache("work")) as delivery:  # doctest: +SKIP
        ...     delivery.deliver([TableVersion("emb", bundle.pin, bundle.sparse["emb"])])
    """

    def __init__(
        self, replicas: Sequence[Replica], workshop: ArtifactCache, *, clock: Clock | None = None, **options: Any
    ) -> None:
        self.journal = Journal(workshop.directory / "journal.db", clock=clock)
        try:
            super().__init__(replicas, workshop, clock=clock, **options)
            self._serve_files()  # an address that cannot be used is found before anything begins
        except BaseException:
            self.journal.close()
            raise

    def close(self) -> None:
        """Stop serving files."""
        super().close()
        self.journal.close()

    def __enter__(self) -> Delivery:  # noqa: PYI034 - typing.Self is not in 3.10
        return self

    @property
    def guarantee(self) -> str:
        """The guarantee that readers have during a delivery."""
        return "rows are read back before anything is switched; readers with a pin read one version throughout"

    def plan(
        self,
        versions: Sequence[TableVersion],
        bases: Sequence[TableVersion] = (),
        observed: Sequence[ObservedReplica] = (),
    ) -> DeliveryPlan:
        """Plan a delivery. Deltas are made to know their size; nothing leaves this machine.

        Args:
            versions: The versions to deliver, one for each table.
            bases: Older versions that replicas may have, for deltas.
            observed: The state of the replicas; they are asked if left out.
        """
        seen = observed or self.observe()
        return plan_delivery([self._wanted(each, bases, seen) for each in versions], seen, self.policy)

    def deliver(self, versions: Sequence[TableVersion], bases: Sequence[TableVersion] = ()) -> Delivered:
        """Bring versions to all replicas and activate them; the same call again continues an interrupted one.

        Raises:
            CloudEdgeError: a step failed; the message names table, shard and replica. Active versions stay active.
            Conflict: another delivery is at work, or one was interrupted while it activated.
        """
        wanted_versions = {each.table: each.version for each in versions}
        with self.journal.writing("cube delivery") as writer:
            operation = self._begin(writer, DELIVER, wanted_versions)
            with self._ending(writer, operation, wanted_versions):
                observed = self.observe()
                wanted = [self._wanted(each, bases, observed) for each in versions]
                plan = plan_delivery(wanted, observed, self.policy)
                refuse(plan)
                shipped = self._prepare_all(plan, {each.table: each for each in versions}, bases, writer, operation)
                self._activate_all(plan.of("activate"), observed, writer, operation)
                self._verify_active(wanted, writer, operation)
                self._forget_all(wanted_versions, writer, operation)
                self.workshop.clean(self.policy.artifacts_kept)
                return Delivered(wanted_versions, shipped, len(plan.steps), operation.number)

    def rollback(self, versions: Mapping[str, str] | None = None) -> Delivered:
        """Activate versions that are loaded everywhere; nothing travels. Interrupted, the same call again finishes it.

        Args:
            versions: By table. If left out: those that an interrupted rollback was on its way to; else those before the
                last delivery, or, after a delivery that was interrupted while it activated, those before that one.

        Raises:
            NotFound: nothing was delivered before.
            InputError: a replica does not have the version any more.
        """
        with self.journal.writing("cube rollback") as writer:
            target = self._way_back(versions)
            operation = self._begin(writer, _ROLLBACK, target)
            with self._ending(writer, operation, target):
                observed = self.observe()
                plan = plan_rollback(target, observed)
                refuse(plan)
                self._activate_all(plan.steps, observed, writer, operation)
                return Delivered(target, 0, len(plan.steps), operation.number)

    def plan_back(self, versions: Mapping[str, str] | None = None) -> DeliveryPlan:
        """Plan a `rollback`. Changes nothing.

        Raises:
            NotFound: nothing was delivered before.
        """
        return plan_rollback(self._way_back(versions), self.observe())

    def _way_back(self, versions: Mapping[str, str] | None) -> dict[str, str]:
        """Decide which versions `rollback` activates."""
        cut_short = self.journal.unfinished()
        if versions:
            target: Mapping[str, str] | None = versions
        elif cut_short is not None and cut_short.kind == _ROLLBACK:
            target = cut_short.plan["versions"]
        else:
            is_half = cut_short is not None and has_moved(self.journal, cut_short)
            target = self.journal.recall("live" if is_half else "previous")
        if not target:
            raise NotFound(
                "there is nothing to go back to: fewer than two deliveries are on record",
                hint="Run a delivery that was cut short again to finish it.",
            )
        return dict(target)

    def abort(self) -> bool:
        """Give up an interrupted delivery and unload its versions; returns whether there was one.

        Raises:
            Conflict: it was interrupted while it activated; finish it with the same delivery, or roll back.
        """
        with self.journal.writing("cube abort") as writer:
            operation = self.journal.unfinished()
            if operation is None:
                return False
            for step in self._plan_abort(operation).steps:
                self._unload(step.replica, step.version)
            writer.set_state(operation.number, "undone", reason="aborted")
            return True

    def plan_abort(self) -> DeliveryPlan | None:
        """Plan an `abort`; None if no delivery was interrupted. Changes nothing.

        Raises:
            Conflict: as `abort`.
        """
        operation = self.journal.unfinished()
        return None if operation is None else self._plan_abort(operation)

    def _plan_abort(self, operation: Operation) -> DeliveryPlan:
        if has_moved(self.journal, operation):
            raise _half_active(operation)
        if operation.kind == _ROLLBACK:
            return DeliveryPlan(())  # the versions it rolls back to were there before it
        return DeliveryPlan(
            tuple(
                DeliveryStep("forget", each.replica, version, f"delivery {operation.number} brought it")
                for each in self.observe()
                for version in [operation.plan["versions"].get(each.table)]
                if each.status
                and version in each.status.versions
                and version not in (each.status.active, each.status.previous)
            )
        )

    def _prepare_all(
        self,
        plan: DeliveryPlan,
        versions: Mapping[str, TableVersion],
        bases: Sequence[TableVersion],
        writer: Writer,
        operation: Operation,
    ) -> int:
        deadline = self._deadline()
        stages = plan.of("stage")
        # The first replica of a shard fetches from here, the others from it (and from here if it fails).
        first: dict[tuple[Any, ...], str] = {}
        for step in stages:
            replica = self.replicas[step.replica]
            first.setdefault((table_of(replica), replica.shard, step.how, step.base, step.form), step.replica)
        artifacts = {
            step.replica: self._artifact(
                step, versions[table_of(self.replicas[step.replica])], bases, self.replicas[step.replica].shard
            )
            for step in stages
        }

        def stage(step: DeliveryStep) -> int:
            replica = self.replicas[step.replica]
            leader = first[(table_of(replica), replica.shard, step.how, step.base, step.form)]
            peer = None if leader == step.replica else self.replicas[leader].peer(step.version)
            artifact = self._offer(artifacts[step.replica], () if peer is None else (peer,))
            return int(self._recorded(writer, operation, step)(lambda: replica.stage(step.version, artifact), deadline))

        def load(step: DeliveryStep) -> None:
            replica = self.replicas[step.replica]
            self._recorded(writer, operation, step)(lambda: replica.load(step.version), deadline)

        def verify(step: DeliveryStep) -> None:
            replica = self.replicas[step.replica]
            version = versions[table_of(replica)]
            rows = self.workshop.shards(version, self.shards_of(version.table))[replica.shard]
            doing = self._recorded(writer, operation, step)
            doing(lambda: self._steps.verify(replica, step.version, rows), deadline)

        leaders = [step for step in stages if step.replica in first.values()]
        followers = [step for step in stages if step.replica not in first.values()]
        shipped = sum(self._each(leaders, stage)) + sum(self._each(followers, stage))
        self._each(plan.of("load"), load)
        self._each(plan.of("verify"), verify)
        return shipped

    def _activate_all(
        self, steps: Sequence[DeliveryStep], observed: Sequence[ObservedReplica], writer: Writer, operation: Operation
    ) -> None:
        """Move every pointer, or none: if one cannot be moved, those that were moved go back."""
        if not steps:
            return
        now = {each.replica: each.status.active for each in observed if each.status}
        before = now | self._active_before(operation)
        writer.record(operation.number, _ACTIVATION, "intent", before=before)
        deadline = self._deadline()

        def activate(step: DeliveryStep) -> None:
            replica = self.replicas[step.replica]
            self._recorded(writer, operation, step)(lambda: replica.activate(step.version), deadline)

        try:
            self._each(steps, activate)
        except CloudEdgeError as error:
            if not operation.plan.get("takes_over"):  # else there is only a mixture to go back to
                self._go_back([(step.replica, before[step.replica]) for step in steps], error, writer, operation)
            raise
        writer.record(operation.number, _ACTIVATION, "done")

    def _active_before(self, operation: Operation) -> dict[str, str | None]:
        """Return the active versions of replicas before an interrupted activation; empty if there was none."""
        found: dict[str, str | None] = {}
        for entry in self.journal.entries(operation.number):
            if entry.step == _ACTIVATION:
                found = {} if entry.what == "undone" else found or dict(entry.detail.get("before", {}))
        return found

    def _go_back(
        self,
        moved: Sequence[tuple[str, str | None]],
        error: CloudEdgeError,
        writer: Writer,
        operation: Operation,
    ) -> None:
        writer.record(operation.number, _ACTIVATION, "undo", reason=error.message)
        stuck: dict[str, str] = {}
        for name, version in moved:
            replica = self.replicas[name]
            try:
                if replica.status().active == version:
                    continue
                if version is None:
                    replica.deactivate()
                else:
                    replica.activate(version)
            except CloudEdgeError as why:
                stuck[name] = why.message
        if stuck:
            reasons = "; ".join(f"{name}: {why}" for name, why in stuck.items())
            raise Conflict(
                f"{error.message}; and not every pointer went back ({reasons})",
                hint="Run the same delivery again to finish it, or roll back; readers with a pin see one version.",
                replicas=list(stuck),
                number=operation.number,
            ) from error
        writer.record(operation.number, _ACTIVATION, "undone")

    def _verify_active(self, wanted: Sequence[WantedVersion], writer: Writer, operation: Operation) -> None:
        by_table = {each.table: each for each in wanted}

        def verify(replica: Replica) -> None:
            want = by_table[table_of(replica)]
            step = DeliveryStep("verify", replica.name, want.version, "after activation")
            rows = want.shards[replica.shard]
            check = partial(self._require_active, replica, want.version, rows)
            self._steps.call(replica, step.doing, check, deadline=self._deadline())

        self._each([each for each in self.replicas.values() if table_of(each) in by_table], verify)
        writer.record(operation.number, "verified", "done")

    def _require_active(self, replica: Replica, version: str, rows: ShardRows) -> None:
        active = replica.status().active
        if active != version:
            raise Conflict(
                f"it answers from {active}, not from {version}", hint="Another process switched it. Deliver again."
            )
        self._steps.verify(replica, version, rows)

    def _forget_all(self, versions: Mapping[str, str], writer: Writer, operation: Operation) -> None:
        for each in self.observe():
            if each.table in versions:
                for step in plan_forget(each, versions[each.table], self.policy.keep):
                    self._unload(each.replica, step.version)
                    writer.record(operation.number, f"forget {step.version} on {each.replica}", "done")

    def _recorded(self, writer: Writer, operation: Operation, step: DeliveryStep) -> Callable[..., Any]:
        """Return a function that runs a step and records its intent and outcome in the journal."""
        label = f"{step.kind} {step.replica}"

        def run(do: Callable[[], Any], deadline: float) -> Any:
            writer.record(operation.number, label, "intent", version=step.version, how=step.how, bytes=step.bytes)
            try:
                if self._clock.monotonic() > deadline:
                    raise DeadlineExceeded(f"the time for this delivery is over before {label}")
                result = self._steps.call(self.replicas[step.replica], step.doing, do, deadline=deadline)
            except CloudEdgeError as error:
                writer.record(operation.number, label, "failed", error=error.message)
                raise
            writer.record(operation.number, label, "done", **({"shipped": result} if isinstance(result, int) else {}))
            return result

        return run

    def _begin(self, writer: Writer, kind: str, versions: dict[str, str]) -> Operation:
        """Continue an interrupted operation, or begin a new one instead of an operation that never moved a pointer."""
        open_one = self.journal.unfinished()
        if open_one is not None:
            if open_one.plan["versions"] == versions:
                return open_one
            if has_moved(self.journal, open_one) and kind != _ROLLBACK:
                raise _half_active(open_one)
        plan: dict[str, Any] = {"versions": versions}
        with writer.together():  # a kill in between would leave pointers apart and no open operation to report it
            if open_one is not None:
                if has_moved(self.journal, open_one):
                    plan["takes_over"] = open_one.number
                writer.set_state(open_one.number, "undone", reason=f"{kind} of {versions} came instead")
            return writer.begin(
                kind,
                " ".join(f"{t}={v}" for t, v in sorted(versions.items())),
                plan=plan,
                by=f"process {os.getpid()}",
            )

    @contextmanager
    def _ending(self, writer: Writer, operation: Operation, versions: Mapping[str, str]) -> Iterator[None]:
        """Close an operation: done with the live versions, undone if nothing moved, open if pointers are apart."""
        try:
            yield
        except CloudEdgeError as error:
            if not has_moved(self.journal, operation):
                writer.set_state(operation.number, "undone", error=error.message)
            raise
        live = self.journal.recall("live") or {}
        with writer.together():  # the live versions and the end are one fact: the meaning of `rollback` depends on both
            if any(live.get(table) != version for table, version in versions.items()):
                writer.remember("previous", {table: live[table] for table in versions if table in live})
                writer.remember("live", {**live, **versions})
            writer.set_state(operation.number, "done")


def has_moved(journal: Journal, operation: Operation) -> bool:
    """Tell whether an interrupted operation may have left pointers apart: its own, or those it took over."""
    last = journal.last_words(operation.number).get(_ACTIVATION)
    return bool(operation.plan.get("takes_over")) or (last is not None and last.what != "undone")


def _half_active(operation: Operation) -> Conflict:
    return Conflict(
        f"{operation.kind} {operation.number} ({operation.subject}) was cut short while it activated",
        hint="Run the same command again to finish it, or roll back.",
        number=operation.number,
    )
