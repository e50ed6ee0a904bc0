"""Delivery to upstream's servers: the same steps, with all pointers moved in one guarded go.

Upstream's servers can be read back only after the switch. Where that shows a wrong row, all are switched back, which
takes no longer than the switch did: the version before is still in the other slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cloudedge.clock import Clock, SystemClock
from cloudedge.cube._artifact import Artifact, Source
from cloudedge.cube.transfer._deliver import Delivery
from cloudedge.cube.transfer._guarded import GuardedSwitch, SwitchReport
from cloudedge.cube.transfer._plan import Observed, Step, Wanted
from cloudedge.cube.transfer._upstream import UpstreamReplica
from cloudedge.cube.transfer._workshop import Workshop
from cloudedge.errors import CloudEdgeError, Conflict
from cloudedge.journal import Operation, Writer

__all__ = ["UpstreamDelivery"]

_ACTIVATION = "activation"


class UpstreamDelivery(Delivery):
    """Delivers one table to its upstream servers; takes what a `Delivery` takes.

    Args:
        replicas: All servers of the table.
        workshop: Where artifacts are made.
        files_url: Where somebody else serves the file system of this machine (``http://host:port``, ``ftp://...``), as
            upstream's set-up does; this process serves the artifacts itself if left out.
        clock: For pauses, deadlines and the measurement.
        courier: What a `Courier` takes.
    """

    def __init__(
        self,
        replicas: Sequence[UpstreamReplica],
        workshop: Workshop,
        *,
        files_url: str = "",
        clock: Clock | None = None,
        **courier: Any,
    ) -> None:
        super().__init__(replicas, workshop, clock=clock, **courier)
        # Agents do one thing after the other in their own time: nothing there can be done together.
        by_agent = any(replica.through_agent for replica in replicas)
        self._together = None if by_agent else GuardedSwitch(replicas, clock=clock or SystemClock())
        self._files_url = files_url.rstrip("/")
        self._before: str | None = None
        self.switched: SwitchReport | None = None
        """How long the last switch took; None where agents did it."""

    def _offer(self, artifact: Artifact, peers: Sequence[Source]) -> Artifact:
        if not self._files_url:
            return super()._offer(artifact, peers)
        return replace(artifact, sources=(Source(f"{self._files_url}{artifact.directory}"),))

    def _activate_all(
        self, steps: Sequence[Step], observed: Sequence[Observed], writer: Writer, operation: Operation
    ) -> None:
        if not steps or self._together is None:
            super()._activate_all(steps, observed, writer, operation)
            return
        before = self._active_before(operation) or {
            each.replica: each.status.active for each in observed if each.status
        }
        self._before = next(iter(before.values())) if len(set(before.values())) == 1 else None
        writer.record(operation.number, _ACTIVATION, "intent", before=before)
        try:
            self.switched = self._together.switch(steps[0].version)
        except Conflict:
            raise  # servers are in between: the operation stays open
        except CloudEdgeError as error:
            writer.record(operation.number, _ACTIVATION, "undone", reason=error.message)
            raise
        writer.record(operation.number, "switch", "note", **self.switched.as_json())
        super()._activate_all(steps, observed, writer, operation)

    def _verify_active(self, wanted: Sequence[Wanted], writer: Writer, operation: Operation) -> None:
        try:
            super()._verify_active(wanted, writer, operation)
        except CloudEdgeError as error:
            if self._together is not None and self._before not in {None, wanted[0].version}:
                writer.record(operation.number, _ACTIVATION, "undo", reason=error.message)
                self._together.switch(str(self._before))
                writer.record(operation.number, _ACTIVATION, "undone")
            raise
