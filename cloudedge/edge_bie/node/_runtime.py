"""Making exactly some units run, as processes, and leading the host's ports to the live ones.

A port of the host belongs to a `cloudedge.http1.switching_proxy`, a process that stays while versions change and
passes requests on to the private port of the live one. So the next version starts and is tried beside the live one,
and the hand-over is a file that the proxy reads again: requests under way end where they began, and no connection is
refused.
Fronts and apps are processes of a supervisor of their own: they outlive the node's agent and come back after a crash.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from cloudedge.clock import Clock, SystemClock
from cloudedge.edge_bie.node._assemble import Kind
from cloudedge.edge_bie.node._units import ServiceRun, Unit
from cloudedge.errors import Conflict, Unavailable
from cloudedge.http1 import switching_proxy
from cloudedge.io import write_atomically
from cloudedge.supervisor import ProcessSpec, down, has_read, is_up, log_tail, process_states, read_specs, tell

__all__ = ["Login", "ObservedService", "ProcessRuntime", "Runtime", "Supervised", "listens", "targets_of"]

_WITHIN_S = 60.0
_POLL_S = 0.05
_SETTLE_S = 0.5
"""From the moment a front is told of the new target until the old one is asked to end."""


@dataclass(frozen=True)
class ObservedService:
    """One service of a unit as it is."""

    state: str
    """Running, Waiting or Terminated, as BIE says it."""
    reason: str = ""
    """In one word, as Kubernetes has it."""
    detail: str = ""
    restarts: int = 0


@dataclass(frozen=True)
class Login:
    """What opens a registry; never written down."""

    address: str
    username: str
    password: str = field(repr=False)


class Runtime(Protocol):
    """What runs units on this machine."""

    kind: Kind

    def bring_images(self, images: Sequence[str], logins: Sequence[Login]) -> None:
        """Get images that are needed and not here.

        Raises:
            NotFound: there is no such image.
            Rejected: whoever has it does not hand it out.
        """
        ...

    def apply(self, units: Sequence[Unit], targets: Mapping[int, int]) -> None:
        """Make these units run and no others, and lead ports of the host to private ones. Idempotent.

        Where a target moves, what is new runs and the front is turned before anything old is ended.
        """
        ...

    def require_ports(self, targets: Mapping[int, int]) -> None:
        """Make sure that the host's ports can be had.

        Raises:
            Conflict: another program has one.
        """
        ...

    def observe(self, unit: Unit) -> Mapping[str, ObservedService]:
        """Return how each service of a unit is."""
        ...

    def tail(self, unit: Unit, service: str) -> str:
        """Return what a service wrote last."""
        ...

    def stop(self) -> None:
        """End everything."""
        ...


def targets_of(units: Sequence[Unit]) -> dict[int, int]:
    """Return where the host's ports lead when these units are live."""
    return {
        lead.host: lead.private
        for unit in units
        for run in unit.runs
        for lead in run.leads
        if lead.host and lead.private
    }


def listens(port: int, address: str = "127.0.0.1") -> bool:
    """Tell whether somebody listens on a port of this machine."""
    try:
        socket.create_connection((address, port), 2).close()
    except OSError:
        return False
    return True


class Supervised:
    """A supervisor's folder with fronts, and with whatever else shall be kept running.

    Args:
        folder: The supervisor's.
        address: Where fronts listen.
        port_map: Ports of the host that are others on this machine.
        clock: Where time comes from.
    """

    def __init__(
        self, folder: Path, *, address: str, port_map: Mapping[int, int] | None = None, clock: Clock | None = None
    ) -> None:
        self.folder = folder
        self._address = address
        self._port_map = dict(port_map or {})
        self._clock = clock or SystemClock()

    def fronts(self, targets: Mapping[int, int]) -> list[ProcessSpec]:
        """Return the processes that listen on the host's ports."""
        return [
            ProcessSpec(
                f"front-{host}",
                (
                    sys.executable,
                    switching_proxy.__file__,
                    str(self._port_map.get(host, host)),
                    str(self._target(host)),
                    self._address,
                ),
                stop_s=5.0,
            )
            for host in sorted(targets)
        ]

    def require_ports(self, targets: Mapping[int, int]) -> None:
        """Make sure that the host's ports can be had, or are had already.

        Raises:
            Conflict: another program has one.
        """
        ours = {spec.name for spec in self._told()}
        for host in targets:
            port = self._port_map.get(host, host)
            if f"front-{host}" in ours:
                continue
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((self._address, port))
                except OSError as error:
                    raise Conflict(
                        f"host port {port} cannot be had: {error.strerror}", hint="Another program listens there."
                    ) from error

    def await_fronts(self, targets: Mapping[int, int]) -> None:
        """Wait until every port of the host is listened on.

        Raises:
            Unavailable: one is not.
        """
        end = self._clock.monotonic() + _WITHIN_S
        address = "127.0.0.1" if self._address == "0.0.0.0" else self._address  # noqa: S104 - compared, not bound
        for host in targets:
            port = self._port_map.get(host, host)
            while not listens(port, address):
                if self._clock.monotonic() > end:
                    raise Unavailable(f"nobody listens on host port {port}: {log_tail(self.folder, f'front-{host}')}")
                self._clock.sleep(_POLL_S)

    def turned(self, targets: Mapping[int, int]) -> list[int]:
        """Return the ports whose front leads elsewhere now."""
        return [host for host, port in targets.items() if self._lead(host) not in (None, f"127.0.0.1:{port}")]

    def aim(self, targets: Mapping[int, int]) -> None:
        """Write where fronts lead; one that runs is told to read it again."""
        turned = self.turned(targets)
        for host, port in targets.items():
            target = self._target(host)
            if self._lead(host) != f"127.0.0.1:{port}":
                target.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(target, f"127.0.0.1:{port}\n", durable=False)
        states = process_states(self.folder)
        for host in turned:
            pid = states.get(f"front-{host}", {}).get("pid", 0)
            if pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGHUP)
        if turned:
            self._clock.sleep(_SETTLE_S)

    def keep(self, specs: Sequence[ProcessSpec]) -> bool:
        """Have these processes run and no others; returns whether anything had to change.

        Raises:
            Unavailable: the supervisor does not act.
        """
        if self._told() == list(specs) and (not specs or (is_up(self.folder) and has_read(self.folder))):
            return False
        tell(self.folder, specs)
        end = self._clock.monotonic() + _WITHIN_S
        while not has_read(self.folder):
            if self._clock.monotonic() > end:
                raise Unavailable(f"the supervisor of {self.folder} does not act", hint="Look into its log.")
            self._clock.sleep(_POLL_S)
        return True

    def others(self, specs: Sequence[ProcessSpec]) -> list[ProcessSpec]:
        """Return what runs now and is not among these."""
        names = {spec.name for spec in specs}
        return [spec for spec in self._told() if spec.name not in names]

    def _told(self) -> list[ProcessSpec]:
        with contextlib.suppress(FileNotFoundError):
            return read_specs(self.folder)
        return []

    def _target(self, host: int) -> Path:
        return self.folder / "targets" / str(host)

    def _lead(self, host: int) -> str | None:
        with contextlib.suppress(FileNotFoundError):
            return self._target(host).read_text(encoding="ascii").strip()
        return None


class ProcessRuntime:
    """Units as processes."""

    kind: Kind = "process"

    def __init__(self, supervised: Supervised) -> None:
        self._supervised = supervised

    def bring_images(self, images: Sequence[str], logins: Sequence[Login]) -> None:
        """Do nothing: a process needs none."""

    def apply(self, units: Sequence[Unit], targets: Mapping[int, int]) -> None:
        """Make these units run and no others, and lead ports of the host to private ones."""
        supervised = self._supervised
        specs = [*supervised.fronts(targets), *(_spec(unit, run) for unit in units for run in unit.runs)]
        if supervised.turned(targets):
            supervised.keep([*specs, *supervised.others(specs)])
        supervised.aim(targets)
        if supervised.keep(specs):
            supervised.await_fronts(targets)

    def require_ports(self, targets: Mapping[int, int]) -> None:
        """Make sure that the host's ports can be had."""
        self._supervised.require_ports(targets)

    def observe(self, unit: Unit) -> Mapping[str, ObservedService]:
        """Return how each service of a unit is."""
        states = process_states(self._supervised.folder)
        found = {}
        for run in unit.runs:
            state = states.get(_process(unit, run.name))
            if state is None:
                found[run.name] = ObservedService("Waiting", "ContainerCreating")
            elif state["state"] == "running":
                found[run.name] = ObservedService("Running", restarts=state["restarts"])
            else:
                found[run.name] = ObservedService("Waiting", "CrashLoopBackOff", state["last_exit"], state["restarts"])
        return found

    def tail(self, unit: Unit, service: str) -> str:
        """Return what a service wrote last."""
        return log_tail(self._supervised.folder, _process(unit, service))

    def stop(self) -> None:
        """End everything."""
        self._supervised.keep([])
        down(self._supervised.folder)


def _process(unit: Unit, service: str) -> str:
    return f"{unit.id}--{service}"


def _spec(unit: Unit, run: ServiceRun) -> ProcessSpec:
    return ProcessSpec(_process(unit, run.name), run.argv, dict(run.env), cwd=run.cwd, whole=True)
