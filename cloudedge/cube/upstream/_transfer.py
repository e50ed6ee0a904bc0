"""`Transfer`: a replacement of upstream's cube-transfer that reads its transfer.conf and survives restarts.

One run reads the donefiles, decides which version should be live, fetches its rows, and delivers them to every server
of every shard. The deliveries are in a journal beside the artifacts, so a restart neither repeats nor forgets one.

    <output_address>/cloudedge-<table>/   journal, artifacts (which agents fetch)
    <tmp_address>/cloudedge-<table>-rows/ fetched rows, and the table made of them
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cloudedge.bundle import Table
from cloudedge.clock import Clock, SystemClock, rfc3339
from cloudedge.config import HubConfig
from cloudedge.cube.delivery import (
    DELIVER,
    Delivery,
    DeliveryPlan,
    Replica,
    SwitchReport,
    TableVersion,
    has_moved,
    observe,
)
from cloudedge.cube.formats import TransferConf
from cloudedge.cube.upstream.servers import TransferOptions, UpstreamFleet
from cloudedge.cube.upstream.sources import Choice, DonefileSource, Work, choose
from cloudedge.errors import CloudEdgeError

__all__ = ["Transfer", "TransferReport"]

_HISTORY = 100
_FETCH_S = 6 * 3600.0
_DELIVERED, _UNDER_WAY, _TABLES = "transfer/delivered", "transfer/under way", "transfer/tables"
"""Facts in the journal: the entries delivered last; the version that a run set out to deliver, and its entries; the
table that each version was made of."""


@dataclass(frozen=True)
class TransferReport:
    """The findings and the outcome of one run."""

    table: str
    version: str | None
    """The live version by the journal; None if nothing was ever delivered."""
    delivered: bool
    """True if this run delivered it."""
    shipped_bytes: int = 0
    switch: SwitchReport | None = None
    problems: tuple[str, ...] = ()
    """The problems of the donefiles."""
    warnings: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return asdict(self)


class Transfer:
    """Keeps one table's upstream servers on the version that its donefiles announce.

    >>> Transfer(TransferConf.from_file("transfer.conf")).run_once()  # doctest: +SKIP

    Args:
        conf: Upstream's configuration.
        hubs: From cloudedge.yaml, for donefiles in buckets.
        options: Options that upstream's configuration does not have.
        clock: Time and randomness.
    """

    def __init__(
        self,
        conf: TransferConf,
        *,
        hubs: Mapping[str, HubConfig] | None = None,
        options: TransferOptions | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.conf = conf
        self.options = options or TransferOptions()
        self._clock = clock or SystemClock()
        self.source = DonefileSource(conf.donefile_address, hubs=hubs, clock=self._clock)
        self._fleet = UpstreamFleet([conf], options=self.options, clock=self._clock)
        self._rows = Path(conf.tmp_address) / f"cloudedge-{conf.table}-rows"  # the two addresses may be one
        self.journal = self._fleet.journal
        self.ids = self._fleet.ids[conf.table]
        self.replicas: Sequence[Replica] = self._fleet.replicas
        self._wake = threading.Event()
        self._stopped = False

    def close(self) -> None:
        """Close connections and files."""
        self._fleet.close()

    def __enter__(self) -> Transfer:  # noqa: PYI034 - typing.Self is not in 3.10
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def delivered(self) -> Work | None:
        """The entries that were delivered last."""
        found = self.journal.recall(_DELIVERED)
        return Work.from_json(found) if found else None

    @property
    def live(self) -> str | None:
        """The version that servers answer from, by the journal."""
        found: str | None = (self.journal.recall("live") or {}).get(self.conf.table)
        return found

    @property
    def history(self) -> list[dict[str, Any]]:
        """The deliveries, the oldest first: name, number, entries and time."""
        return list(self.journal.recall("transfer/history") or [])

    def choose(self) -> tuple[Choice, tuple[str, ...]]:
        """Read the donefiles and decide; returns warnings too. Changes nothing."""
        files = self.source.read()
        wants_patches = self.conf.mode == "base_delta"
        choice = choose(files, patches=wants_patches, delivered=self.delivered, where=self.source.address)
        return choice, files.warnings

    def plan(self) -> dict[str, Any]:
        """Plan a run, with the state of every server. Changes nothing and fetches no rows."""
        choice, warnings = self.choose()
        seen = [observe(replica) for replica in self.replicas]
        return {
            "table": self.conf.table,
            "deliver": choice.work.name if choice.work else None,
            "entries": choice.work.as_json() if choice.work else [],
            "delivered": self.delivered.name if self.delivered else None,
            "replicas": [
                {
                    "replica": each.replica,
                    "active": each.status.active if each.status else None,
                    "error": each.error.message if each.error else "",
                }
                for each in seen
            ],
            "problems": list(choice.problems),
            "warnings": list(warnings),
        }

    def run_once(self) -> TransferReport:
        """Deliver the version that the donefiles announce, unless it is delivered.

        If a killed run left pointers apart, that is finished first, whatever the donefiles announce by now.

        Raises:
            CloudEdgeError: a step failed; every server answers from the version it had.
        """
        finished = self._finish()
        choice, warnings = self.choose()
        if choice.work is not None:
            rows = self.source.bring(choice.work, self._rows, within_s=_FETCH_S)
            report = self._deliver(choice.work, self._version(choice.work, rows))
            self.source.clean(self._rows, choice.work, rows)
        else:
            report = finished or TransferReport(self.conf.table, self.live, False)
        return replace(report, problems=choice.problems, warnings=(*warnings, *report.warnings))

    def _finish(self) -> TransferReport | None:
        """Join pointers that a killed run left apart: forward if its rows are still here, else back."""
        cut_short = self.journal.unfinished()
        if cut_short is None or not has_moved(self.journal, cut_short):
            return None
        under_way = self.journal.recall(_UNDER_WAY) or {}
        version = self._at_hand(under_way.get("version"))
        is_it = version is not None and cut_short.plan["versions"] == {version.table: version.version}
        if version is None or not is_it or cut_short.kind != DELIVER:
            return self.rollback()
        return self._deliver(Work.from_json(under_way["entries"]), version)

    def _version(self, work: Work, rows: Table) -> TableVersion:
        """Name a version by its ids; where servers may know other rows by that name, by a number too."""
        tables, file = self._tables, rows.files[0].name
        names = (f"{work.name}.{number}" if number > 1 else work.name for number in itertools.count(1))
        return TableVersion(self.conf.table, next(name for name in names if tables.get(name, file) == file), rows)

    @property
    def _tables(self) -> dict[str, str]:
        return dict(self.journal.recall(_TABLES) or [])

    def _at_hand(self, version: str | None) -> TableVersion | None:
        """Return a version whose rows are still here."""
        file = self._tables.get(version or "")
        if version is None or file is None or not (self._rows / file).is_file():
            return None
        return TableVersion(self.conf.table, version, Table([self._rows / file]))

    def _deliver(self, work: Work, version: TableVersion) -> TransferReport:
        begun = rfc3339(self._clock.now())
        with self._delivery() as delivery:
            self._set_out(work, version)
            done = delivery.deliver([version], self._bases())
            self._record(work, version.version, begun)
        return TransferReport(
            self.conf.table,
            version.version,
            True,
            shipped_bytes=done.shipped_bytes,
            switch=done.switch,
            warnings=done.warnings,
        )

    def rollback(self) -> TransferReport:
        """Roll back to the previous version, while the servers still have it in their other slot.

        Raises:
            NotFound: a server does not have it any more; nothing was changed.
        """
        with self._delivery() as delivery:
            done = delivery.rollback()
        name = done.versions[self.conf.table]
        return TransferReport(self.conf.table, name, True, switch=done.switch, warnings=done.warnings)

    def plan_back(self) -> tuple[DeliveryPlan, str]:
        """Plan a `rollback`; returns the guarantee that readers have, too. Changes nothing.

        Raises:
            NotFound: fewer than two versions were delivered.
        """
        with self._delivery() as delivery:
            return delivery.plan_back(), delivery.guarantee

    def run(self, *, poll_s: float, on_report: Callable[[TransferReport | CloudEdgeError], None]) -> None:
        """Run until `stop`: at once, then every `poll_s` seconds and whenever `notify` is called.

        An error is reported and the run repeated next time; nothing is half done meanwhile.
        """
        while True:
            self._wake.clear()  # before `_stopped` is read: a stop between the two must not be slept through
            if self._stopped:
                return
            try:
                on_report(self.run_once())
            except CloudEdgeError as error:
                on_report(error)
            self._wake.wait(poll_s * (0.9 + 0.2 * self._clock.random()))

    def notify(self) -> None:
        """Read the donefiles now."""
        self._wake.set()

    def stop(self) -> None:
        """End `run` after the current delivery."""
        self._stopped = True
        self._wake.set()

    def _bases(self) -> Sequence[TableVersion]:
        """Return the versions that deltas can be made from: none, since upstream's servers take bases only."""
        return ()

    def _delivery(self) -> AbstractContextManager[Delivery]:
        return self._fleet.delivery()

    def _set_out(self, work: Work, version: TableVersion) -> None:
        """Record the entries of a delivery before a server gets anything of it."""
        tables = {**self._tables, version.version: version.rows.files[0].name}
        with self.journal.writing("cube transfer") as writer, writer.together():
            writer.remember(_TABLES, list(tables.items())[-_HISTORY:])
            writer.remember(_UNDER_WAY, {"version": version.version, "entries": work.as_json()})

    def _record(self, work: Work, version: str, begun: str) -> None:
        entry = {
            "name": version,
            "number": self.ids.number(version),
            "entries": work.as_json(),
            "begun": begun,
            "finished": rfc3339(self._clock.now()),
        }
        with self.journal.writing("cube transfer") as writer, writer.together():
            writer.remember("transfer/history", [*self.history, entry][-_HISTORY:])
            writer.remember(_DELIVERED, work.as_json())
