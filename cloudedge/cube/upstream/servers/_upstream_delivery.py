"""Delivery to upstream's servers: the steps of `Delivery`, with all pointers moved in one atomic switch.

Upstream's servers can be read back only after the switch. If a row is wrong, all are switched back, which takes no
longer than the switch did: the previous version is still in the other slot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cloudedge.clock import Clock, SystemClock
from cloudedge.cube.delivery import (
    ArtifactCache,
    Delivered,
    Delivery,
    DeliveryStep,
    ObservedReplica,
    SwitchReport,
    TableVersion,
    WantedVersion,
    table_of,
)
from cloudedge.cube.formats import Artifact, Source
from cloudedge.cube.upstream.servers._atomic_switch import AtomicSwitch, named
from cloudedge.cube.upstream.servers._upstream_replica import UpstreamReplica
from cloudedge.errors import CloudEdgeError, Conflict
from cloudedge.journal import Operation, Writer

__all__ = ["UpstreamDelivery"]

_ACTIVATION = "activation"


class UpstreamDelivery(Delivery):
    """Delivers tables to their upstream servers; takes the options of `Delivery`.

    Args:
        replicas: All servers of the tables.
        workshop: The cache of artifacts.
        files_url: The URL of another server of this machine's file system (``http://host:port``, ``ftp://...``), as in
            upstream's set-up; this process serves the artifacts itself if left out.
        clock: For pauses, deadlines and the measurement.
        options: Those of `ReplicaDelivery`.
    """

    def __init__(
        self,
        replicas: Sequence[UpstreamReplica],
        workshop: ArtifactCache,
        *,
        files_url: str = "",
        clock: Clock | None = None,
        **options: Any,
    ) -> None:
        super().__init__(replicas, workshop, clock=clock, **options)
        self._servers = replicas
        # Agents work one after the other in their own time: their switches cannot be joined.
        by_agent = any(replica.through_agent for replica in replicas)
        self._together = None if by_agent else AtomicSwitch(replicas, clock=clock or SystemClock())
        self._files_url = files_url.rstrip("/")
        self._before: dict[str, str] = {}
        self._switched: SwitchReport | None = None
        self._notes: tuple[str, ...] = ()

    @property
    def guarantee(self) -> str:
        """The guarantee that readers have during a delivery."""
        what = "whole parts travel, and rows are read back right after the switch"
        if self._together is None:
            return f"{what}; agents switch in their own time, versions are mixed meanwhile, and there is no way back"
        return (
            f"{what}: all servers go back if one is wrong; readers that compare versions see a mixture, as an error, "
            "for the moment of the switch, which is measured"
        )

    def deliver(self, versions: Sequence[TableVersion], bases: Sequence[TableVersion] = ()) -> Delivered:
        """Deliver as `Delivery` does, and report how long versions were mixed."""
        return self._with_switch(super().deliver(versions, bases))

    def rollback(self, versions: Mapping[str, str] | None = None) -> Delivered:
        """Roll back as `Delivery` does, and report how long versions were mixed."""
        return self._with_switch(super().rollback(versions))

    def _with_switch(self, done: Delivered) -> Delivered:
        warnings = tuple(warning for replica in self._servers for warning in replica.warnings)
        return replace(done, switch=self._switched, warnings=(*self._notes, *warnings))

    def _offer(self, artifact: Artifact, peers: Sequence[Source]) -> Artifact:
        if not self._files_url:
            return super()._offer(artifact, peers)
        return replace(artifact, sources=(Source(f"{self._files_url}{artifact.directory}"),))

    def _activate_all(
        self, steps: Sequence[DeliveryStep], observed: Sequence[ObservedReplica], writer: Writer, operation: Operation
    ) -> None:
        self._before, self._switched, self._notes = {}, None, ()
        if not steps:
            return
        earlier, versions = self._active_before(operation), operation.plan["versions"]
        if earlier or operation.plan.get("takes_over"):
            self._notes = ("a switch was cut short before: versions were mixed since, only the rest was measured",)
        if self._together is None:
            begun = self._clock.monotonic()
            super()._activate_all(steps, observed, writer, operation)
            servers = sum(table_of(replica) in versions for replica in self._servers)
            took = self._clock.monotonic() - begun
            self._note(SwitchReport(named(versions), servers, len(steps), 0.0, took), writer, operation)
            return
        now = {each.replica: each.status.active for each in observed if each.status and each.table in versions}
        before = now | earlier
        self._before = _one_each(before, versions)
        writer.record(operation.number, _ACTIVATION, "intent", before=before)
        try:
            self._note(self._together.switch(versions), writer, operation)
        except Conflict:
            raise  # servers differ: the operation stays open
        except CloudEdgeError as error:
            writer.record(operation.number, _ACTIVATION, "undone", reason=error.message)
            raise
        super()._activate_all(steps, observed, writer, operation)

    def _note(self, report: SwitchReport, writer: Writer, operation: Operation) -> None:
        self._switched = report
        writer.record(operation.number, "switch", "note", **report.as_json())

    def _verify_active(self, wanted: Sequence[WantedVersion], writer: Writer, operation: Operation) -> None:
        try:
            super()._verify_active(wanted, writer, operation)
        except CloudEdgeError as error:
            if self._together is not None and self._before not in ({}, operation.plan["versions"]):
                writer.record(operation.number, _ACTIVATION, "undo", reason=error.message)
                self._together.switch(self._before)
                writer.record(operation.number, _ACTIVATION, "undone")
            raise


def _one_each(before: Mapping[str, str | None], versions: Mapping[str, str]) -> dict[str, str]:
    """Return the version that each table answered from; empty if one of them had none, or several."""
    found = {table: {name for replica, name in before.items() if table_of(replica) == table} for table in versions}
    single = {table: name for table, names in found.items() if len(names) == 1 for name in names if name is not None}
    return single if len(single) == len(versions) else {}
