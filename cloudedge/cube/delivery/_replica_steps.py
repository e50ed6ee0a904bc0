"""Single steps of a delivery on one replica: idempotent, retried where that helps, and named when they fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from cloudedge.clock import Clock
from cloudedge.cube.delivery._delivery_plan import DeliveryPolicy, ObservedReplica
from cloudedge.cube.delivery._replica import Replica
from cloudedge.cube.delivery._table_shards import ShardRows
from cloudedge.errors import CloudEdgeError, Conflict, DeadlineExceeded, IntegrityError
from cloudedge.io import Backoff, Patience

__all__ = ["StepRunner", "ask_status", "observe", "table_of"]

_LONGEST_PAUSE = 10
_HUNG_S = 40.0
"""A replica whose admin port takes requests and answers none of them for so long is hung: it answers while it loads. A
supervisor that restarts it has done so by then."""

Result = TypeVar("Result")


def table_of(replica: Replica | str) -> str:
    """Return the table of a replica, or of a replica's name."""
    return (replica if isinstance(replica, str) else replica.name).split("/", 1)[0]


def ask_status(replica: Replica) -> ObservedReplica:
    """Ask a replica for its state."""
    return ObservedReplica(replica.name, table_of(replica), replica.shard, replica.status())


def observe(replica: Replica) -> ObservedReplica:
    """Ask a replica for its state once; one that does not answer is a finding, not an error."""
    try:
        return ask_status(replica)
    except CloudEdgeError as error:
        return ObservedReplica(replica.name, table_of(replica), replica.shard, None, error)


class StepRunner:
    """Runs the steps of a delivery on replicas, with retries."""

    def __init__(self, policy: DeliveryPolicy, clock: Clock) -> None:
        self._policy = policy
        self._clock = clock

    def call(self, replica: Replica, doing: str, step: Callable[[], Result], *, deadline: float) -> Result:
        """Run one step, and retry it where that helps.

        This layer owns the retries of a delivery: a server that stages files goes from source to source and fails at
        once when none gives anything, and a release does not repeat a step that failed here.

        Raises:
            CloudEdgeError: the step failed; the error has the step's class, and the replica's name and facts.
            DeadlineExceeded: the time was over first.
        """
        backoff = Backoff(self._policy.pause_s, _LONGEST_PAUSE * self._policy.pause_s, 0.5, 1.5)
        patience = Patience(self._policy.attempts, backoff, self._clock, deadline=deadline)
        silent_since: float | None = None
        while True:
            begun = self._clock.monotonic()
            try:
                return step()
            except CloudEdgeError as error:
                silent_since = (begun if silent_since is None else silent_since) if _is_silent(error) else None
                hung = silent_since is not None and self._clock.monotonic() - silent_since >= _HUNG_S
                if error.retry_helps and not hung and patience.wait():
                    continue
                tried = patience.failures + (not error.retry_helps or hung)
                found: CloudEdgeError = error
                if patience.is_late:
                    found = DeadlineExceeded(f"the time for this delivery is over; last, {error.message}")
                raise _named(found, replica, doing, tried) from error

    def verify(self, replica: Replica, version: str, rows: ShardRows) -> None:
        """Compare a replica's loaded version with its expected rows, and read some rows back, pinned.

        Raises:
            IntegrityError: rows, checksum or a probe differ.
            Conflict: the version is not loaded.
        """
        status = replica.status()
        found = status.loaded().get(version)
        if found is None:
            raise Conflict(f"version {version} is not loaded", hint="Stage and load it first.")
        if found.checksum is not None and (found.rows, found.checksum) != (rows.rows, rows.checksum):
            raise IntegrityError(
                f"it has {found.rows} rows {found.checksum}, not {rows.rows} rows {rows.checksum}",
                hint="Unload that version there and deliver it again; the active version stays active.",
            )
        if not status.can_pin and status.active != version:
            return  # it can be read only once it is active
        answers = replica.probe(version, [key for key, _ in rows.probes])
        for (key, wanted), answer in zip(rows.probes, answers, strict=True):
            if answer != wanted:
                shown = "nothing" if answer is None else f"{len(answer)} other bytes"
                raise IntegrityError(
                    f"key {key} of version {version} reads as {shown}",
                    hint="Unload that version there and deliver it again; the active version stays active.",
                    key=key,
                )


def _is_silent(error: CloudEdgeError) -> bool:
    return bool(error.facts.get("silent"))


def _named(error: CloudEdgeError, replica: Replica, doing: str, tried: int) -> CloudEdgeError:
    table, shard, which = table_of(replica), replica.shard, replica.name
    times = f" ({tried} times)" if tried > 1 else ""
    message = f"{doing} on {which}, shard {shard} of table {table!r}, failed{times}: {error.message}"
    facts = {**error.facts, "table": table, "shard": shard, "replica": which}
    hint = error.hint or "See the server's log, then run the same command again; the active version stays active."
    named = type(error)(message, hint=hint, **facts)
    named.was_repeated = True
    return named
