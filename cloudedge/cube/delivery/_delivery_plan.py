"""Planning of a delivery from the wanted versions and the state of the replicas; pure, nothing is asked or changed.

A replica that has the version already gets nothing. One that has the rows a delta was made for gets the delta if that
is smaller and its chain is neither long nor heavy; all others get a base. All replicas activate the version, or none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from cloudedge.cube.delivery._replica import ReplicaStatus
from cloudedge.cube.delivery._table_shards import ShardRows
from cloudedge.cube.formats import Form, Kind
from cloudedge.errors import CloudEdgeError, InputError, IntegrityError, StorageError, Unavailable

__all__ = [
    "DeliveryPlan",
    "DeliveryPolicy",
    "DeliveryStep",
    "ObservedReplica",
    "WantedVersion",
    "has_room",
    "plan_delivery",
    "plan_forget",
    "plan_rollback",
]

StepKind = Literal["stage", "load", "verify", "activate", "forget"]
_ROW_OVERHEAD = 32
"""Bytes a row takes in memory beside its value: key, place in the table, room to grow."""
_WHILE_LOADED = 3
"""The most copies of a delta's rows in memory: as they are read, as one array, as a table."""
_LARGEST_OVERLAY = 4
"""A server makes a whole table of a version that differs from its base in more than this share of the rows."""


@dataclass(frozen=True)
class DeliveryPolicy:
    """The settings of deliveries; every default suits a few dozen servers in one data centre."""

    jobs: int = 8
    """Replicas worked on at the same time."""
    attempts: int = 6
    """Attempts of one step on one replica, where a retry can help."""
    pause_s: float = 0.5
    """The pause after the first attempt; it doubles after each further one, with jitter, up to ten times this."""
    deadline_s: float = 4 * 3600
    """The deadline of everything before activation."""
    keep: int = 2
    """Versions each replica keeps loaded, the active and the previous one always among them."""
    max_deltas: int = 8
    """A version made of more deltas than this is delivered as a base."""
    max_delta_share: float = 0.5
    """So is one whose deltas would take more than this share of the base."""
    artifacts_kept: int = 6
    """Bases and deltas that the artifact cache keeps after a delivery."""


@dataclass(frozen=True)
class WantedVersion:
    """A version of a table, shard by shard."""

    table: str
    version: str
    width: int
    shards: tuple[ShardRows, ...]
    base_bytes: tuple[int, ...]
    delta_bytes: Mapping[str, int] = field(default_factory=dict)
    """Bytes of a shard's delta, by the checksum of the rows it applies to."""
    delta_rows: Mapping[str, int] = field(default_factory=dict)
    """Rows of a shard's delta, by the same."""


@dataclass(frozen=True)
class ObservedReplica:
    """The observed state of a replica; no status if it did not answer."""

    replica: str
    table: str
    shard: int
    status: ReplicaStatus | None
    error: CloudEdgeError | None = None


@dataclass(frozen=True)
class DeliveryStep:
    """One step on one replica."""

    kind: StepKind
    replica: str
    version: str
    reason: str
    bytes: int = 0
    how: Kind | None = None
    """The kind of artifact to stage."""
    base: str | None = None
    """The checksum of the rows a delta applies to."""
    form: Form = "files"

    def __str__(self) -> str:
        size = f", {self.bytes} bytes" if self.bytes else ""
        return (
            f"{self.kind} {self.version} on {self.replica}{f' as {self.how}' if self.how else ''}{size}: {self.reason}"
        )

    @property
    def doing(self) -> str:
        """The step in the message of its failure."""
        return f"to {self.kind} version {self.version}"


@dataclass(frozen=True)
class DeliveryPlan:
    """The steps in their order: all staging and loading, then all activation, then unloading of old versions."""

    steps: tuple[DeliveryStep, ...]
    refusals: tuple[CloudEdgeError, ...] = ()
    """The reasons that the plan cannot be carried out; empty if it can."""

    @property
    def bytes_to_ship(self) -> int:
        """The bytes that will travel, at most."""
        return sum(step.bytes for step in self.steps)

    def of(self, kind: StepKind) -> list[DeliveryStep]:
        """Return the steps of one kind."""
        return [step for step in self.steps if step.kind == kind]

    def as_json(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        return {
            "bytes": self.bytes_to_ship,
            "steps": [asdict(step) for step in self.steps],
            "refusals": [{"error": each.message, "hint": each.hint} for each in self.refusals],
        }


def plan_delivery(
    wanted: Sequence[WantedVersion], observed: Sequence[ObservedReplica], policy: DeliveryPolicy
) -> DeliveryPlan:
    """Plan how every replica gets the wanted versions."""
    by_table = {each.table: each for each in wanted}
    steps: list[DeliveryStep] = []
    refusals: list[CloudEdgeError] = [*_missing_shards(wanted, observed)]
    for each in observed:
        if each.table not in by_table:
            continue
        if each.status is None:
            refusals.append(_away(each))
            continue
        plan = _bring(by_table[each.table], each, each.status, policy)
        steps += plan.steps
        refusals += plan.refusals
    for each in observed:
        if each.table in by_table and each.status is not None and each.status.active != by_table[each.table].version:
            reason = f"it answers from {each.status.active or 'nothing'}"
            steps.append(DeliveryStep("activate", each.replica, by_table[each.table].version, reason))
    for each in observed:
        if each.table in by_table and each.status is not None:
            steps += plan_forget(each, by_table[each.table].version, policy.keep)
    return DeliveryPlan(tuple(steps), tuple(refusals))


def plan_forget(each: ObservedReplica, version: str, keep: int) -> list[DeliveryStep]:
    """Plan which versions a replica unloads once `version` is active there."""
    status = each.status
    if status is None:
        return []
    previous = status.active if status.active != version else status.previous
    stays = {version, previous} - {None}
    others = [name for name in status.versions if name not in stays]
    loaded = [name for name in others if status.versions[name].state == "loaded"]
    spare = max(0, keep - len(stays))
    stays |= set(loaded[len(loaded) - spare :] if spare else [])
    return [
        DeliveryStep(
            "forget", each.replica, name, f"{keep} versions are kept" if name in loaded else "it was never finished"
        )
        for name in others
        if name not in stays
    ]


def plan_rollback(versions: Mapping[str, str], observed: Sequence[ObservedReplica]) -> DeliveryPlan:
    """Plan how every replica gets back to versions that are loaded; nothing travels."""
    steps: list[DeliveryStep] = []
    refusals: list[CloudEdgeError] = []
    for each in observed:
        if each.table not in versions:
            continue
        version = versions[each.table]
        if each.status is None:
            refusals.append(_away(each))
        elif version not in each.status.loaded():
            refusals.append(
                InputError(
                    f"{each.replica} does not have version {version} loaded: there is nothing to go back to",
                    hint="Deliver that version again.",
                    **_facts(each),
                )
            )
        elif each.status.active != version:
            steps.append(
                DeliveryStep("activate", each.replica, version, f"it answers from {each.status.active or 'nothing'}")
            )
    return DeliveryPlan(tuple(steps), tuple(refusals))


def _missing_shards(wanted: Sequence[WantedVersion], observed: Sequence[ObservedReplica]) -> list[CloudEdgeError]:
    served = {(each.table, each.shard) for each in observed}
    return [
        InputError(
            f"no replica serves shard {shard} of table {each.table!r}",
            hint="Name a server for every shard; the rows of a missing one would not be found.",
            table=each.table,
            shard=shard,
        )
        for each in wanted
        for shard in range(len(each.shards))
        if (each.table, shard) not in served
    ]


def _bring(wanted: WantedVersion, each: ObservedReplica, status: ReplicaStatus, policy: DeliveryPolicy) -> DeliveryPlan:
    """Plan how one replica gets the version's rows."""
    version, rows = wanted.version, wanted.shards[each.shard]
    there = status.versions.get(version)
    verify = DeliveryStep(
        "verify", each.replica, version, "rows, checksum and probes must be right before anything moves"
    )
    if there is not None and there.state == "loaded":
        if there.checksum in (None, rows.checksum):
            return DeliveryPlan((verify,))
        return DeliveryPlan((), (_other_rows(each, version, str(there.checksum), rows.checksum),))
    stage = _choose(wanted, each, status, policy)
    if there is not None and there.state == "staged" and there.checksum == rows.checksum:
        stage = DeliveryStep(**{**asdict(stage), "bytes": 0, "reason": "its files are there; they are checked"})
    load = DeliveryStep("load", each.replica, version, "beside what it answers from", base=stage.base)
    return DeliveryPlan((stage, load, verify), tuple(_no_room(wanted, each, status, stage)))


def _choose(
    wanted: WantedVersion, each: ObservedReplica, status: ReplicaStatus, policy: DeliveryPolicy
) -> DeliveryStep:
    full = wanted.base_bytes[each.shard]
    base = DeliveryStep("stage", each.replica, wanted.version, "", full, "base", form=status.form)
    if not status.can_delta:
        return DeliveryStep(**{**asdict(base), "reason": "it takes no deltas"})
    reason = "it has none of the versions a delta is for"
    best: DeliveryStep | None = None
    for name, version in status.loaded().items():
        size = wanted.delta_bytes.get(version.checksum or "")
        if size is None:
            continue
        if version.deltas >= policy.max_deltas:
            reason = f"its version {name} is made of {version.deltas} deltas already"
        elif version.delta_bytes + size > policy.max_delta_share * full:
            reason = f"with the deltas {name} is made of, it would be too large a share of a base"
        elif best is None or size <= best.bytes:
            why = f"it has version {name}"
            best = DeliveryStep("stage", each.replica, wanted.version, why, size, "delta", base=version.checksum)
    return best or DeliveryStep(**{**asdict(base), "reason": reason})


def has_room(wanted: WantedVersion, seen: ObservedReplica, stage: DeliveryStep) -> bool:
    """Tell whether a replica has room to stage an artifact and to load it."""
    return seen.status is not None and not _no_room(wanted, seen, seen.status, stage)


def _no_room(
    wanted: WantedVersion, each: ObservedReplica, status: ReplicaStatus, stage: DeliveryStep
) -> list[CloudEdgeError]:
    memory = _memory(wanted, wanted.shards[each.shard].rows, status, stage)
    needs = (
        ("disk", stage.bytes, status.free_disk_bytes, "Free space there, or keep fewer versions."),
        ("memory", memory, status.free_memory_bytes, "Keep fewer versions, use more shards, or give it more memory."),
    )
    return [
        StorageError(
            f"{each.replica} has {free} bytes of {what} left, version {wanted.version} needs {needed}",
            hint=hint,
            needed_bytes=needed,
            free_bytes=free,
            **_facts(each),
        )
        for what, needed, free, hint in needs
        if free is not None and free < needed
    ]


def _memory(wanted: WantedVersion, rows: int, status: ReplicaStatus, stage: DeliveryStep) -> int:
    """Return the memory that loading takes at most, beside the loaded versions."""
    per_row = wanted.width + _ROW_OVERHEAD
    if stage.how == "base":
        return rows * per_row
    changed = wanted.delta_rows.get(stage.base or "", 0)
    base = next((held for held in status.loaded().values() if held.checksum == stage.base), None)
    below = base.memory_bytes if base is not None and base.deltas else 0  # is merged with the new rows
    is_overlay = changed + below // per_row <= rows // _LARGEST_OVERLAY
    return _WHILE_LOADED * changed * per_row + below + (0 if is_overlay else rows * per_row)


def _facts(each: ObservedReplica) -> dict[str, Any]:
    return {"table": each.table, "shard": each.shard, "replica": each.replica}


def _away(each: ObservedReplica) -> CloudEdgeError:
    why = each.error.message if each.error else "it did not answer"
    return Unavailable(
        f"{each.replica} is away: {why}",
        hint="Start it again or take it out of the layout, then run the same command; nothing was changed.",
        **_facts(each),
    )


def _other_rows(each: ObservedReplica, version: str, found: str, wanted: str) -> CloudEdgeError:
    return IntegrityError(
        f"{each.replica} has a version {version} with rows {found}, not {wanted}",
        hint="A version does not change under its name: unload it there, or deliver under another name.",
        **_facts(each),
    )
