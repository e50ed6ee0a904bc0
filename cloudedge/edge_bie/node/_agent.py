"""The node's agent: reports to the cloud, reads the desire, and installs it, one version of each app at a time.

One thread talks to the cloud, so that a long download delays no report; another does the work. Each change is saved
before it is acted upon:

1. everything that a new version needs is staged and verified; the live one is not touched;
2. *on trial* is saved (with the statement's number, which is spent from then on), and the version is started beside
   the live one, on its own port;
3. it answers its probes, or is given up;
4. *live* is saved: this is the moment of the change;
5. the front is switched, the old version ended, and every version but the live and the previous one removed.

After a kill anywhere, the next start brings the machine to the saved state: a version on trial is ended and tried
again, a live one goes on.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cloudedge.bundle import Bundle
from cloudedge.clock import Clock, SystemClock
from cloudedge.edge_bie.model import AppRef, DesiredApp, slot_of
from cloudedge.edge_bie.node._assemble import free_port
from cloudedge.edge_bie.node._download import Downloads
from cloudedge.edge_bie.node._failures import Failures
from cloudedge.edge_bie.node._install import Installer
from cloudedge.edge_bie.node._machine_stats import Machine
from cloudedge.edge_bie.node._node_plan import plan
from cloudedge.edge_bie.node._probe import ask_probes, await_answers
from cloudedge.edge_bie.node._report import Phase, Trouble, app_stats, make_report
from cloudedge.edge_bie.node._rights import Rights
from cloudedge.edge_bie.node._runtime import Runtime, listens, targets_of
from cloudedge.edge_bie.node._store import NodeStore
from cloudedge.edge_bie.node._sync import Link
from cloudedge.edge_bie.node._units import NodeState, Slot, Unit
from cloudedge.errors import CloudEdgeError, Conflict
from cloudedge.io import FileLock, Throttle, who

__all__ = ["NodeAgent", "NodeSettings"]

_TICK_S = 2.0
_RESTARTS = 2
"""A version on trial that ends this often is given up."""

_log = logging.getLogger("cloudedge.edge.node")


@dataclass(frozen=True)
class NodeSettings:
    """The settings of a node."""

    name: str
    folder: Path
    namespace: str = "baetyl-cloud"
    key: Path | None = None
    """Public key that statements must be signed with; None: unsigned apps run too."""
    interval_s: float = 20.0
    """Interval between two reports; up to a tenth longer, at random."""
    probe_timeout_s: float = 120.0
    """Longest time until a new version answers its probes."""
    probe_interval_s: float = 60.0
    """Interval between two probes of the live version."""
    bytes_per_s: int = 0
    """Limit for downloads; 0: none."""
    address: str = ""
    """Address of this machine for the report; detected if left out."""
    rights: Rights = field(default_factory=Rights)
    """What apps may ask for, signed or not."""


class NodeAgent:
    """A node.

    Args:
        settings: Its settings.
        link: The cloud.
        runtime: Runs apps.
        clock: Source of time and randomness.
        at: Called with each step before it is taken; tests cut the power there.

    Raises:
        Conflict: Another agent runs on this folder.
    """

    def __init__(
        self,
        settings: NodeSettings,
        link: Link,
        runtime: Runtime,
        *,
        clock: Clock | None = None,
        at: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.settings = settings
        self._link = link
        self._runtime = runtime
        self._clock = clock or SystemClock()
        self._at = at
        self._stop = threading.Event()
        self._work = threading.Event()
        self._news = threading.Event()
        self._lock = threading.Lock()
        self._coming = 0
        settings.folder.mkdir(
            parents=True, exist_ok=True, mode=0o700
        )  # it holds the apps' environment, with their secrets
        self._held = self._hold()
        self._path = settings.folder / "node.json"
        self.state = NodeState.load(self._path)
        downloads = Downloads(
            settings.folder / "downloads",
            headers=link.identity,
            pace=Throttle(settings.bytes_per_s, self._clock) if settings.bytes_per_s else None,
            fetched=self._count,
            clock=self._clock,
            stop=self._stop.is_set,
            tls=link.tls,
        )
        self.store = NodeStore(settings.folder, downloads)
        self.store.sweep_unfinished()
        self._installer = Installer(
            link.fetch,
            self.store,
            runtime=runtime,
            node=settings.name,
            namespace=settings.namespace,
            key=settings.key,
            rights=settings.rights,
            clock=self._clock,
        )
        self._machine = Machine(settings.folder, address=settings.address)
        self._failures = Failures(self._clock)
        self._probed: dict[str, tuple[str, float]] = {}
        self._move_ports()

    def _move_ports(self) -> None:
        """Give stopped units, as after a restart of the machine, other ports if another program took theirs."""
        for name, slot in self.state.slots.items():
            unit = slot.live
            if unit is None or any(seen.state == "Running" for seen in self._runtime.observe(unit).values()):
                continue
            runs = tuple(run.with_ports(lambda port: free_port() if listens(port) else port) for run in unit.runs)
            if runs != unit.runs:
                self._set(name, replace(slot, live=replace(unit, runs=runs)))

    def _hold(self) -> FileLock:
        folder = self.settings.folder
        return FileLock.take(
            folder / "node.lock",
            owner=who(),
            refusal=lambda holder: Conflict(f"an agent runs on {folder} already: {holder}", holder=str(holder)),
        )

    def close(self) -> None:
        """Release the folder; running apps go on running."""
        self._link.close()
        self._held.release()

    def run(self) -> None:
        """Work until `stop`; apps go on running."""
        worker = threading.Thread(target=self._work_on, name="work", daemon=True)
        worker.start()
        while not self._stop.is_set():
            with self._logged("report"):
                self.sync()
            wait = self.settings.interval_s * (1 + self._clock.random() / 10)
            self._news.wait(wait)
            self._news.clear()
        worker.join()

    def stop(self) -> None:
        """Stop as soon as the step under way is done."""
        self._stop.set()
        self._work.set()
        self._news.set()

    def _work_on(self) -> None:
        while not self._stop.is_set():
            with self._logged("work"):
                self.work()
            self._work.wait(_TICK_S)
            self._work.clear()

    @contextlib.contextmanager
    def _logged(self, doing: str) -> Iterator[None]:
        """Log an error instead of ending the agent; the step is tried again later."""
        try:
            yield
        except CloudEdgeError as error:
            _log.warning("%s: %s", doing, error.message)
        except Exception:  # noqa: BLE001 - the next try may succeed
            _log.exception("%s: this is a mistake in cloudedge", doing)

    # -- the cloud ----------------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Report to the cloud and read the desire.

        Raises:
            Unavailable: The cloud is unreachable; everything goes on as before.
        """
        desire = self._link.report(self.report())
        if desire is not None and desire != self.state.desire:
            self._change(lambda state: replace(state, desire=desire))
            self._work.set()

    def report(self) -> dict[str, Any]:
        """Return the current report."""
        from cloudedge import __version__  # noqa: PLC0415 - looked up in the package's metadata

        state = self.state
        live = {slot.live.ref: slot.live for slot in state.slots.values() if slot.live is not None}
        on_trial = {slot.candidate.ref: slot.candidate for slot in state.slots.values() if slot.candidate is not None}
        stats = []
        for ref in dict.fromkeys((*state.desire.apps, *live)):  # desired versions first: of one app they matter more
            unit = live.get(ref) or on_trial.get(ref)
            trouble = None if ref in live else self._failures.of(ref) or Trouble("waiting", "Pending")
            probed = self._probed.get(unit.id) if unit else None
            stats.append(
                app_stats(
                    ref,
                    machine=self._machine.name,
                    unit=unit,
                    observed=self._runtime.observe(unit) if unit else None,
                    probe=probed[0] if probed else None,
                    trouble=trouble,
                )
            )
        return make_report(
            state,
            stats=stats,
            machine=self._machine.name,
            node=self._machine.node(),
            nodestats=self._machine.stats(),
            version=__version__,
            free=self.store.free_bytes(),
        )

    # -- the work -----------------------------------------------------------------------------------------------------

    def work(self) -> None:
        """Bring the machine to the desired state, as far as that is possible now."""
        for name, slot in self.state.slots.items():
            if slot.candidate is not None:  # an interrupted trial begins anew
                self._set(name, replace(slot, candidate=None))
        self._apply()
        desire = self.state.desire
        self._failures.keep(desire.apps)
        live = {slot.live.ref for slot in self.state.slots.values() if slot.live is not None}
        if live != set(desire.apps):
            self._follow(desire.apps)
        self._probe_live()

    def _follow(self, refs: tuple[AppRef, ...]) -> None:
        live = {slot.live.ref for slot in self.state.slots.values() if slot.live is not None}
        due = [ref for ref in refs if ref not in live and self._failures.is_due(ref)]
        if not due and live <= set(refs):
            return
        apps, bad = self._installer.apps(refs)
        for ref, error in bad.items():
            if ref in due:
                self._failed(ref, error, "waiting")
        if any(ref in live for ref in bad):
            return  # without the live app's definition, its ports cannot be given to another
        # An unreadable app may be the next revision of a live one: while there is one, no app is removed.
        decided = plan(list(apps.values()), self.state.slots)
        if not bad:
            for name in decided.remove:
                self._remove(name)
        for ref, cause in decided.skip.items():
            self._failures.note(ref, Trouble("waiting", "Conflict", cause))
        for app in decided.install:
            if app.ref in due and not self._stop.is_set():
                self._install(app)

    def _remove(self, name: str) -> None:
        _log.info("%s is desired no more", name)
        self._at("forget")
        self._set(name, self.state.slots[name].emptied())
        self._at("end")
        self._apply()
        self._news.set()

    def _install(self, app: DesiredApp) -> None:
        name = slot_of(app)
        self._failures.note(app.ref, Trouble("verifying", "Downloading"))
        try:
            unit, kept = self._installer.prepare(app, self.state, self._at)
        except CloudEdgeError as error:
            self._failed(app.ref, error, "verifying")
            return
        try:
            self._at("try")
            self._set(name, self.state.slots.get(name, Slot()).trying(unit), kept=kept)
            self._failures.note(app.ref, Trouble("starting", "Probing"))
            self._runtime.require_ports(targets_of([unit]))
            self._at("start")
            self._apply()
            self._at("probe")
            self._await(unit)
        except CloudEdgeError as error:
            self._at("give-up")
            self._failed(app.ref, error, "starting")
            self._set(name, replace(self.state.slots.get(name, Slot()), candidate=None))
            self._apply()
            return
        self._at("settle")
        self._set(name, self.state.slots[name].settled())
        self._probed[unit.id] = ("", self._clock.monotonic())
        self._failures.forget(app.ref)
        _log.info("%s is live", unit.id)
        self._at("turn")
        self._apply()
        self._news.set()
        self._at("collect")
        self.store.collect(self.state.units)

    def _await(self, unit: Unit) -> None:
        def failing() -> str:
            for service, seen in self._runtime.observe(unit).items():
                if self._stop.is_set():
                    return "the node is stopping"
                if seen.state == "Terminated" or seen.restarts >= _RESTARTS:
                    return f"{service} ends: {seen.detail}\n{self._runtime.tail(unit, service)}"
            return ""

        bundle = self._bundle(unit)
        await_answers(unit, bundle, failing=failing, within_s=self.settings.probe_timeout_s, clock=self._clock)

    def _bundle(self, unit: Unit) -> Bundle | None:
        return Bundle.open(unit.bundle, hub=self.store.hub) if unit.bundle else None

    def _probe_live(self) -> None:
        """Probe the live versions again when their interval has passed."""
        for slot in self.state.slots.values():
            unit = slot.live
            if unit is None or not unit.bundle:
                continue
            last_failure, at = self._probed.get(unit.id, (None, 0.0))
            now = self._clock.monotonic()
            if last_failure is not None and now - at < (
                self.settings.probe_interval_s if not last_failure else _TICK_S
            ):
                continue
            try:
                ask_probes(unit, self._bundle(unit))
                failure = ""
            except CloudEdgeError as error:
                failure = error.message
            self._probed[unit.id] = (failure, now)
            if failure != last_failure:
                self._news.set()

    def _apply(self) -> None:
        live = [slot.live for slot in self.state.slots.values() if slot.live is not None]
        self._runtime.apply(self.state.running, targets_of(live))

    # -- the saved state ----------------------------------------------------------------------------------------------

    def _change(self, change: Callable[[NodeState], NodeState]) -> None:
        with self._lock:
            state = replace(change(self.state), fetched=self.state.fetched + self._coming)
            state.save(self._path)
            self.state, self._coming = state, 0

    def _set(self, name: str, slot: Slot, *, kept: int = 0) -> None:
        self._change(lambda state: replace(state.with_slot(name, slot), kept=state.kept + kept))

    def _count(self, count: int) -> None:
        with self._lock:
            self._coming += count

    def _failed(self, ref: AppRef, error: CloudEdgeError, phase: Phase) -> None:
        trouble = self._failures.failed(ref, error, phase)
        _log.warning("%s: %s: %s", ref.name, trouble.reason, error.message)
        self._news.set()
