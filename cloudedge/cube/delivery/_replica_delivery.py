"""Delivery of versions to single replicas: the artifact each one gets, its source, and the check that it arrived.

A release calls `plan_one`, `carry_out` and `verify` from its own journal; `Delivery` does all of it for all replicas
with a journal of its own. Planning and verifying open no port: the file server starts with the first artifact that a
replica is to fetch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from cloudedge.bundle.tables import DeltaFile
from cloudedge.clock import Clock, SystemClock
from cloudedge.cube.delivery._artifact_cache import ArtifactCache
from cloudedge.cube.delivery._cube_replica import CubeReplica
from cloudedge.cube.delivery._delivery_plan import (
    DeliveryPlan,
    DeliveryPolicy,
    DeliveryStep,
    ObservedReplica,
    WantedVersion,
    has_room,
    plan_delivery,
    plan_forget,
)
from cloudedge.cube.delivery._replica import Replica, ReplicaStatus
from cloudedge.cube.delivery._replica_steps import StepRunner, ask_status, table_of
from cloudedge.cube.delivery._table_shards import TableVersion
from cloudedge.cube.formats import DELTA_FILE, Artifact, Source
from cloudedge.cube.server import FileServer
from cloudedge.errors import CloudEdgeError, InputError, NotFound
from cloudedge.io import map_in_threads

__all__ = ["ReplicaDelivery", "ReplicaPlan", "refuse"]

Result = TypeVar("Result")
Item = TypeVar("Item")


@dataclass(frozen=True)
class ReplicaPlan:
    """The delivery of one version to one replica, decided from the replica's observed state."""

    version: TableVersion
    bases: tuple[TableVersion, ...]
    """Versions that deltas may be made from."""
    wanted: WantedVersion
    seen: ObservedReplica
    steps: DeliveryPlan

    @property
    def bytes_to_ship(self) -> int:
        """Bytes that will travel, at most."""
        return self.steps.bytes_to_ship

    @property
    def how(self) -> str | None:
        """The kind of artifact to stage: a `base`, a `delta`, or None where nothing is staged."""
        return next((step.how for step in self.steps.of("stage")), None)

    def holds_for(self, seen: ObservedReplica) -> bool:
        """Tell whether the plan is still right: the replica has the same versions, and still has room."""
        if self.steps.refusals or self.seen.status is None or seen.status is None:
            return False
        is_same = _without_counters(self.seen.status) == _without_counters(seen.status)
        return is_same and all(has_room(self.wanted, seen, stage) for stage in self.steps.of("stage"))


def _without_counters(status: ReplicaStatus) -> ReplicaStatus:
    return replace(status, keys=0, misses=0, order=0, free_disk_bytes=None, free_memory_bytes=None)


class ReplicaDelivery:
    """Brings versions of tables to replicas.

    Args:
        replicas: All replicas of all tables; their shards are numbered from 0 without a gap.
        workshop: The cache of artifacts.
        policy: The settings of the delivery.
        files_host: The address that artifacts are served on while this object is open; loopback by default.
        files_port: Their port; 0 takes any free one.
        files_token: The token that clients must send to fetch them; required unless the host is loopback.
        public_host: This machine's name for replicas; `files_host` if left out.
        limit_bytes_per_s: For all bytes that leave this machine.
        clock: For pauses and deadlines.

    Use as a context: files are served from the first that a replica is to fetch until the context ends.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        workshop: ArtifactCache,
        *,
        policy: DeliveryPolicy | None = None,
        files_host: str = "127.0.0.1",
        files_port: int = 0,
        files_token: str = "",
        public_host: str = "",
        limit_bytes_per_s: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.replicas = {replica.name: replica for replica in replicas}
        if len(self.replicas) != len(replicas):
            raise InputError("two replicas have the same name", hint="Name them table/shard/replica.")
        self.workshop = workshop
        self.policy = policy or DeliveryPolicy()
        self._clock = clock or SystemClock()
        self._steps = StepRunner(self.policy, self._clock)
        self._public_host = public_host or None
        self._files_token = files_token
        self._files_address = (files_host, files_port)
        self._limit_bytes_per_s = limit_bytes_per_s
        self._files: FileServer | None = None
        self._opening = threading.Lock()

    def close(self) -> None:
        """Stop serving files."""
        if self._files is not None:
            self._files.close()

    def _serve_files(self) -> FileServer:
        """Return the file server; the first call starts it."""
        with self._opening:
            if self._files is None:
                self._files = FileServer(
                    self.workshop.artifacts,
                    *self._files_address,
                    token=self._files_token or None,
                    limit_bytes_per_s=self._limit_bytes_per_s,
                    clock=self._clock,
                )
                for replica in self.replicas.values():  # pushed bytes leave this machine as well as fetched ones
                    if isinstance(replica, CubeReplica):
                        replica.limit = self._files.throttle
            return self._files

    def __enter__(self) -> ReplicaDelivery:  # noqa: PYI034 - typing.Self is not in 3.10
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def observe(self) -> list[ObservedReplica]:
        """Ask every replica for its state; one that does not answer after a few attempts is a finding, not an error."""
        return self._each(list(self.replicas.values()), self._look)

    def _look(self, replica: Replica) -> ObservedReplica:
        try:
            return self._steps.call(
                replica, "to ask what is there", lambda: ask_status(replica), deadline=self._deadline()
            )
        except CloudEdgeError as error:
            why = error.__cause__ if isinstance(error.__cause__, CloudEdgeError) else error
            return ObservedReplica(replica.name, table_of(replica), replica.shard, None, why)

    def shards_of(self, table: str) -> int:
        """Count a table's shards.

        Raises:
            InputError: no replica serves the table.
        """
        shards = {replica.shard for replica in self.replicas.values() if table_of(replica) == table}
        if not shards:
            known = ", ".join(sorted({table_of(replica) for replica in self.replicas.values()})) or "none"
            raise InputError(
                f"no replica serves table {table!r}", hint=f"Name its servers too; there are some for: {known}."
            )
        return max(shards) + 1

    def prepare(self, replica: Replica, version: TableVersion, bases: Sequence[TableVersion] = ()) -> int:
        """Stage, load and verify a version on one replica; does the steps that are left, returns bytes shipped.

        Raises:
            CloudEdgeError: a step failed; the message names the replica. The active version stays active.
        """
        return self.carry_out(replica, self.plan_one(replica, version, bases))

    def plan_one(
        self,
        replica: Replica,
        version: TableVersion,
        bases: Sequence[TableVersion] = (),
        *,
        seen: ObservedReplica | None = None,
    ) -> ReplicaPlan:
        """Plan how one replica gets a version.

        Args:
            replica: The replica.
            version: The version.
            bases: Older versions that it may have, for deltas.
            seen: Its state; it is asked if left out.
        """
        found = seen or self._look(replica)
        wanted = self._wanted(version, bases, [found])
        plan = plan_delivery([wanted], [found], self.policy)
        # The other shards may have no replicas here.
        steps = DeliveryPlan(plan.steps, tuple(each for each in plan.refusals if "replica" in each.facts))
        return ReplicaPlan(version, tuple(bases), wanted, found, steps)

    def carry_out(self, replica: Replica, plan: ReplicaPlan) -> int:
        """Stage, load and verify as planned; returns bytes shipped.

        Raises:
            CloudEdgeError: a step failed; the message names the replica. The active version stays active.
        """
        refuse(plan.steps)
        deadline, version = self._deadline(), plan.version
        shipped = 0
        for step in plan.steps.steps:
            if step.kind == "stage":
                artifact = self._offer(self._artifact(step, version, plan.bases, replica.shard), ())
                stage = partial(replica.stage, version.version, artifact)
                shipped = self._steps.call(replica, step.doing, stage, deadline=deadline)
            elif step.kind == "load":
                self._steps.call(replica, step.doing, lambda: replica.load(version.version), deadline=deadline)
            elif step.kind == "verify":
                self._verify(replica, step, plan.wanted, deadline)
        return shipped

    def verify(self, replica: Replica, version: TableVersion) -> None:
        """Compare a replica's loaded version with its expected rows, and read some rows back, pinned.

        Raises:
            IntegrityError: rows, checksum or a probe differ.
        """
        wanted = self._wanted(version, (), ())
        step = DeliveryStep("verify", replica.name, version.version, "")
        self._verify(replica, step, wanted, self._deadline())

    def _verify(self, replica: Replica, step: DeliveryStep, wanted: WantedVersion, deadline: float) -> None:
        verify = partial(self._steps.verify, replica, wanted.version, wanted.shards[replica.shard])
        self._steps.call(replica, step.doing, verify, deadline=deadline)

    def activate(self, replica: Replica, version: str) -> None:
        """Activate a loaded version on one replica."""
        step = DeliveryStep("activate", replica.name, version, "")
        self._steps.call(replica, step.doing, lambda: replica.activate(version), deadline=self._deadline())

    def forget(self, replica: Replica, version: str) -> list[str]:
        """Unload a replica's versions beyond retention once `version` is active; returns them."""
        steps = plan_forget(self._look(replica), version, self.policy.keep)
        for step in steps:
            self._unload(replica.name, step.version)
        return [step.version for step in steps]

    def _wanted(
        self, version: TableVersion, bases: Sequence[TableVersion], seen: Sequence[ObservedReplica]
    ) -> WantedVersion:
        """Return the rows of each shard of a version, and the sizes of deltas from versions that replicas have."""
        shards, kind = self.shards_of(version.table), version.rows.kind
        has = {
            state.checksum
            for each in seen
            if each.table == version.table and each.status is not None and each.status.can_delta
            for state in each.status.loaded().values()
        }
        usable = [
            base
            for base in bases
            if base.table == version.table and base.rows.kind == kind and base.checksum != version.checksum
        ]
        sizes: dict[str, int] = {}
        counts: dict[str, int] = {}
        parent: TableVersion | None = None
        for base in usable:
            if any(rows.checksum in has for rows in self.workshop.shards(base, shards)):
                deltas = self.workshop.delta(base, version, shards)
                sizes |= {delta.base: delta.size for delta in deltas}
                counts |= {delta.base: DeltaFile(delta.directory / DELTA_FILE, kind).count for delta in deltas}
                parent = base
        held = self.workshop.shards(version, shards, parent)
        full = tuple(self.workshop.base_bytes(each.rows, kind.row_bytes) for each in held)
        return WantedVersion(version.table, version.version, kind.row_bytes, held, full, sizes, counts)

    def _artifact(
        self, step: DeliveryStep, version: TableVersion, bases: Sequence[TableVersion], shard: int
    ) -> Artifact:
        shards = self.shards_of(version.table)
        if step.how == "base":
            return self.workshop.base(version, shards, step.form)[shard]
        for base in bases:
            if base.table == version.table and self.workshop.shards(base, shards)[shard].checksum == step.base:
                return self.workshop.delta(base, version, shards)[shard]
        raise NotFound(f"none of the given versions has the rows {step.base}")

    def _offer(self, artifact: Artifact, peers: Sequence[Source]) -> Artifact:
        """Return an artifact with its sources: the replica's peers, then this machine."""
        url = self._serve_files().url(artifact.directory, host=self._public_host)
        return replace(artifact, sources=(*peers, Source(url, self._files_token)))

    def _unload(self, name: str, version: str) -> None:
        replica = self.replicas[name]
        step = DeliveryStep("forget", name, version, "")
        self._steps.call(replica, step.doing, lambda: replica.unload(version), deadline=self._deadline())

    def _deadline(self) -> float:
        return self._clock.monotonic() + self.policy.deadline_s

    def _each(self, items: Sequence[Item], do: Callable[[Item], Result]) -> list[Result]:
        """Call a function for each item, several at a time; all calls have ended when this returns or raises."""
        return map_in_threads(do, items, self.policy.jobs, finish=True, name="deliver")


def refuse(plan: DeliveryPlan) -> None:
    if not plan.refusals:
        return
    first, *more = plan.refusals
    also = "".join(f"\n  also: {each.message}" for each in more)
    raise type(first)(first.message + also, hint=first.hint, **first.facts) from first
