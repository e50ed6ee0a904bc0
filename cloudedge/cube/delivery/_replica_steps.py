"""The single steps of a delivery on one replica: idempotent, tried again where that helps, and named when they fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from cloudedge.clock import Clock
from cloudedge.cube.delivery._delivery_plan import DeliveryPolicy, ObservedReplica
from cloudedge.cube.delivery._replica import Replica
from cloudedge.cube.delivery._table_shards import ShardRows
from cloudedge.errors import CloudEdgeError, Conflict, DeadlineExceeded, IntegrityError

__all__ = ["Hands", "asked", "observe", "table_of"]

_LONGEST_PAUSE = 10

Result = TypeVar("Result")


def table_of(replica: Replica | str) -> str:
    """Return the table that a replica, or one of that name, serves."""
    return (replica if isinstance(replica, str) else replica.name).split("/", 1)[0]


def asked(replica: Replica) -> ObservedReplica:
    """Ask a replica what it has."""
    return ObservedReplica(replica.name, table_of(replica), replica.shard, replica.status())


def observe(replica: Replica) -> ObservedReplica:
    """Ask a replica once what it has; one that does not answer is a finding, not an error."""
    try:
        return asked(replica)
    except CloudEdgeError as error:
        return ObservedReplica(replica.name, table_of(replica), replica.shard, None, error)


class Hands:
    """Does steps on replicas."""

    def __init__(self, policy: DeliveryPolicy, clock: Clock) -> None:
        self._policy = policy
        self._clock = clock

    def call(self, replica: Replica, doing: str, step: Callable[[], Result], *, deadline: float) -> Result:
        """Do one step, again where trying again helps.

        Raises:
            CloudEdgeError: of the class that the step raised, with the replica's name and facts.
            DeadlineExceeded: the time was over first.
        """
        tried = 0
        while True:
            tried += 1
            try:
                return step()
            except CloudEdgeError as error:
                if not error.retry_helps or tried >= self._policy.attempts:
                    raise _named(error, replica, doing, tried) from error
                pause = self._policy.pause_s * min(2 ** (tried - 1), _LONGEST_PAUSE) * (0.5 + self._clock.random())
                if self._clock.monotonic() + pause > deadline:
                    late = DeadlineExceeded(f"the time for this delivery is over; last, {error.message}")
                    raise _named(late, replica, doing, tried) from error
                self._clock.sleep(pause)

    def verify(self, replica: Replica, version: str, rows: ShardRows) -> None:
        """Compare what a replica loaded with what it should have, and read some rows back, pinned.

        Raises:
            IntegrityError: rows, checksum or a probe differ.
            Conflict: the version is not loaded.
        """
        status = replica.status()
        found = status.loaded().get(version)
        if found is None:
            raise Conflict(f"version {version} is not loaded", hint="Prepare it first.")
        if found.checksum is not None and (found.rows, found.checksum) != (rows.rows, rows.checksum):
            raise IntegrityError(
                f"it has {found.rows} rows {found.checksum}, not {rows.rows} rows {rows.checksum}",
                hint="Unload that version there and deliver it again; what is active stays active.",
            )
        if not status.can_pin and status.active != version:
            return  # it can be read only once it is active
        answers = replica.probe(version, [key for key, _ in rows.probes])
        for (key, wanted), answer in zip(rows.probes, answers, strict=True):
            if answer != wanted:
                shown = "nothing" if answer is None else f"{len(answer)} other bytes"
                raise IntegrityError(
                    f"key {key} of version {version} reads as {shown}",
                    hint="Unload that version there and deliver it again; what is active stays active.",
                    key=key,
                )


def _named(error: CloudEdgeError, replica: Replica, doing: str, tried: int) -> CloudEdgeError:
    table, shard, which = table_of(replica), replica.shard, replica.name
    times = f" ({tried} times)" if tried > 1 else ""
    message = f"{doing} on {which}, shard {shard} of table {table!r}, failed{times}: {error.message}"
    facts = {**error.facts, "table": table, "shard": shard, "replica": which}
    hint = error.hint or "See the server's log, then run the same command again; what is active stays active."
    return type(error)(message, hint=hint, **facts)
