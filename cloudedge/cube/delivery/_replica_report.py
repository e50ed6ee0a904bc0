"""Status report of every replica at once: its versions, how far it is behind, and whether it agrees with the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from cloudedge.clock import Clock, SystemClock
from cloudedge.cube.delivery._delivery_plan import ObservedReplica
from cloudedge.cube.delivery._replica import Replica, ReplicaStatus
from cloudedge.cube.delivery._replica_steps import observe
from cloudedge.errors import CloudEdgeError, IntegrityError, Unavailable
from cloudedge.io import map_in_threads

__all__ = ["Expected", "ReplicaReport", "judge", "look", "look_twice", "require_agreement"]

_AT_ONCE = 16
_SWITCH_S = 1.0
"""Seconds; longer than all replicas of a table take to switch."""

Answers = tuple[bytes | None, ...]


@dataclass(frozen=True)
class Expected:
    """Known keys of a table and, where known, a version's rows for them."""

    keys: tuple[int, ...]
    shards: int = 1
    version: str | None = None
    values: Mapping[int, bytes | None] = field(default_factory=dict)
    """The rows of `version`; without it, the replicas of a shard are compared with each other."""

    def of_shard(self, shard: int) -> tuple[int, ...]:
        """Return the keys that a shard holds."""
        return tuple(key for key in self.keys if key % self.shards == shard)


@dataclass(frozen=True)
class ReplicaReport:
    """One replica at one moment."""

    replica: str
    table: str
    shard: int
    active: str | None = None
    rows: int | None = None
    """The checksum of the active version's rows; None where the server cannot report it, as upstream's never can."""
    checksum: str | None = None
    memory_bytes: int = 0
    """The memory of all its versions; of upstream's servers, their data in whole MiB."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """State by name, the oldest first."""
    lag: int | None = None
    """The number of versions it is behind the newest that a replica of the table has loaded."""
    miss_rate: float | None = None
    """The share of keys not found among all asked for since its start."""
    probe: str = "-"
    """The result of reading the known keys: ok, or the fault."""
    problems: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def look(replicas: Sequence[Replica], expected: Mapping[str, Expected] | None = None) -> list[ReplicaReport]:
    """Ask all replicas, and read known keys on each of them; the failure of one does not stop the others."""
    known = expected or {}
    observed = map_in_threads(observe, replicas, _AT_ONCE)
    pairs = list(zip(replicas, observed, strict=True))
    found = map_in_threads(lambda pair: _probe(*pair, known.get(pair[1].table)), pairs, _AT_ONCE)
    return judge(observed, {each.name: answer for each, answer in zip(replicas, found, strict=True)}, known)


def look_twice(
    replicas: Sequence[Replica], expected: Mapping[str, Expected] | None = None, *, clock: Clock | None = None
) -> list[ReplicaReport]:
    """Report, and again a moment later if something is wrong: a switch under way is no fault.

    Only faults of a replica that both reports show count; the reports returned are the second ones.
    """
    first = look(replicas, expected)
    if not any(each.problems for each in first):
        return first
    (clock or SystemClock()).sleep(_SWITCH_S)
    before = {each.replica for each in first if each.problems}
    second = look(replicas, expected)
    return [each if each.replica in before else replace(each, problems=()) for each in second]


def _probe(replica: Replica, each: ObservedReplica, known: Expected | None) -> Answers | CloudEdgeError | None:
    if known is None or each.status is None or each.status.active is None:
        return None
    version = _probed(each.status, known)
    try:
        return tuple(replica.probe(version, known.of_shard(each.shard)))
    except CloudEdgeError as error:
        return error


def _probed(status: ReplicaStatus, known: Expected) -> str:
    """Name the version to read from: the expected one where it is loaded, else the active one."""
    return (known.version if known.version in status.loaded() else status.active) or ""


def judge(
    observed: Sequence[ObservedReplica],
    probes: Mapping[str, Answers | CloudEdgeError | None],
    expected: Mapping[str, Expected],
) -> list[ReplicaReport]:
    """Compare replicas with the expected rows and with each other. Pure."""
    newest = {table: _order([each for each in observed if each.table == table]) for table in _tables(observed)}
    reports = []
    for each in observed:
        if each.status is None:
            why = each.error.message if each.error else "it did not answer"
            reports.append(ReplicaReport(each.replica, each.table, each.shard, problems=(f"away: {why}",)))
            continue
        status, order = each.status, newest[each.table]
        active = status.loaded().get(status.active or "")
        problems = [*_disagreements(each, observed)]
        probe = _judge_probe(each, observed, probes, expected.get(each.table))
        reports.append(
            ReplicaReport(
                replica=each.replica,
                table=each.table,
                shard=each.shard,
                active=status.active,
                rows=active.rows if active else None,
                checksum=active.checksum if active else None,
                memory_bytes=sum(version.memory_bytes for version in status.versions.values()),
                versions={name: version.state for name, version in status.versions.items()},
                lag=len(order) - 1 - order.index(status.active) if status.active in order else None,
                miss_rate=status.misses / status.keys if status.keys else None,
                probe=probe,
                problems=(*problems, *([probe] if probe not in ("-", "ok") else [])),
            )
        )
    return reports


def require_agreement(reports: Sequence[ReplicaReport]) -> None:
    """Raise when a replica is away or differs; the message names all of them."""
    bad = [each for each in reports if each.problems]
    if not bad:
        return
    message = "; ".join(f"{each.replica}: {', '.join(each.problems)}" for each in bad)
    is_away = all(problem.startswith("away") for each in bad for problem in each.problems)
    raise (Unavailable if is_away else IntegrityError)(
        message,
        hint="Start it again." if is_away else "Deliver the version again, or take that replica out until it agrees.",
        replicas=[each.replica for each in bad],
    )


def _tables(observed: Sequence[ObservedReplica]) -> set[str]:
    return {each.table for each in observed}


def _order(observed: Sequence[ObservedReplica]) -> list[str]:
    """List a table's loaded versions, the oldest first, as its replicas report them."""
    order: list[str] = []
    lists = [list(each.status.loaded()) for each in observed if each.status]
    for names in sorted(lists, key=len, reverse=True):
        for at, name in enumerate(names):
            if name not in order:
                before = [order.index(other) for other in names[:at] if other in order]
                order.insert(max(before) + 1 if before else 0, name)
    return order


def _disagreements(each: ObservedReplica, observed: Sequence[ObservedReplica]) -> list[str]:
    assert each.status is not None  # noqa: S101 - the caller checked
    problems = []
    actives = Counter(other.status.active for other in observed if other.table == each.table and other.status)
    usual, _ = actives.most_common(1)[0]
    if each.status.active != usual:
        problems.append(f"it answers from {each.status.active or 'nothing'}, most from {usual or 'nothing'}")
    for name, version in each.status.loaded().items():
        sums = Counter(
            other.status.loaded()[name].checksum
            for other in observed
            if (other.table, other.shard) == (each.table, each.shard) and other.status and name in other.status.loaded()
        )
        usual_sum, count = sums.most_common(1)[0]
        if version.checksum is not None and len(sums) > 1 and (version.checksum != usual_sum or count == 1):
            problems.append(f"its version {name} has other rows than the shard's other replicas")
    return problems


def _judge_probe(
    each: ObservedReplica,
    observed: Sequence[ObservedReplica],
    probes: Mapping[str, Answers | CloudEdgeError | None],
    known: Expected | None,
) -> str:
    found = probes.get(each.replica)
    if known is None or found is None or each.status is None:
        return "-"
    if isinstance(found, CloudEdgeError):
        return f"probe failed: {found.message}"
    version, keys = _probed(each.status, known), known.of_shard(each.shard)
    if known.values and version == known.version:
        wrong = [k for k, value in zip(keys, found, strict=True) if k in known.values and value != known.values[k]]
    else:
        peers = [
            answers
            for other in observed
            if (other.table, other.shard) == (each.table, each.shard) and other.status
            if other.status.active == each.status.active and isinstance(answers := probes.get(other.replica), tuple)
        ]
        wrong = [
            key
            for place, key in enumerate(keys)
            if found[place] != Counter(answers[place] for answers in peers).most_common(1)[0][0]
        ]
    return f"key {wrong[0]} reads otherwise than it should in {version}" if wrong else "ok"
