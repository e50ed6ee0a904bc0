"""The runtime of a node: runs units as processes, and routes the host's ports to the live ones.

A port of the host belongs to a `cloudedge.http1.switching_proxy`, a process that stays while versions change and
passes requests on to the private port of the live one. So the next version starts and is tried beside the live one,
and the hand-over is a file that the proxy reads again: requests under way end where they began, and no connection is
refused.
Fronts and apps are processes of their own supervisor: they outlive the node's agent and are restarted after a crash.
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
"""Time between the switch of a front to the new target and the end of the old one."""


@dataclass(frozen=True)
class ObservedService:
    """The observed state of one service of a unit."""

    state: str
    """Running, Waiting or Terminated, in BIE's words."""
    reason: str = ""
    """One word, as in Kubernetes."""
    detail: str = ""
    restarts: int = 0


@dataclass(frozen=True)
class Login:
    """The login of a registry; never written to disk."""

    address: str
    username: str
    password: str = field(repr=False)


class Runtime(Protocol):
    """Runs units on this machine."""

    kind: Kind

    def bring_images(self, images: Sequence[str], logins: Sequence[Login]) -> None:
        """Pull the needed images that are missing.

        Raises:
            NotFound: There is no such image.
            Rejected: The registry refuses it.
        """
        ...

    def apply(self, units: Sequence[Unit], targets: Mapping[int, int]) -> None:
        """Run exactly these units, and route ports of the host to private ones. Idempotent.

        If a target moves, the new unit starts and the front switches before the old unit ends.
        """
        ...

    def require_ports(self, targets: Mapping[int, int]) -> None:
        """Check that the host's ports are available.

        Raises:
            Conflict: Another program has one of them.
        """
        ...

    def observe(self, unit: Unit) -> Mapping[str, ObservedService]:
        """Return the state of each service of a unit."""
        ...

    def tail(self, unit: Unit, service: str) -> str:
        """Return the last output of a service."""
        ...

    def stop(self) -> None:
        """End all units and fronts."""
        ...


def targets_of(units: Sequence[Unit]) -> dict[int, int]:
    """Return the private port of each host port when these units are live."""
    return {
        lead.host: lead.private
        for unit in units
        for run in unit.runs
        for lead in run.leads
        if lead.host and lead.private
    }


def listens(port: int, address: str = "127.0.0.1") -> bool:
    """Return True if a program listens on a port of this machine."""
    try:
        socket.create_connection((address, port), 2).close()
    except OSError:
        return False
    return True


class Supervised:
    """A supervisor's folder with fronts and the other processes to keep running.

    Args:
        folder: The supervisor's folder.
        address: Address that fronts listen on.
        port_map: Other ports of this machine for ports that apps name.
        clock: Source of time.
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
        """Check that the host's ports are available, or are the node's already.

        Raises:
            Conflict: Another program has one of them.
        """
        ours = {spec.name for spec in self._current_specs()}
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
                        f"host port {port} is not available: {error.strerror}", hint="Stop the program that uses it."
                    ) from error

    def await_fronts(self, targets: Mapping[int, int]) -> None:
        """Wait until a front listens on every host port.

        Raises:
            Unavailable: One has no listener.
        """
        end = self._clock.monotonic() + _WITHIN_S
        address = "127.0.0.1" if self._address == "0.0.0.0" else self._address  # noqa: S104 - compared, not bound
        for host in targets:
            port = self._port_map.get(host, host)
            while not listens(port, address):
                if self._clock.monotonic() > end:
                    raise Unavailable(f"nothing listens on host port {port}: {log_tail(self.folder, f'front-{host}')}")
                self._clock.sleep(_POLL_S)

    def turned(self, targets: Mapping[int, int]) -> list[int]:
        """Return the ports whose front has another target now."""
        return [host for host, port in targets.items() if self._lead(host) not in (None, f"127.0.0.1:{port}")]

    def aim(self, targets: Mapping[int, int]) -> None:
        """Write the targets of fronts; running ones read them again."""
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
        """Run exactly these processes; return True if that changed anything.

        Raises:
            Unavailable: The supervisor does not act.
        """
        if self._current_specs() == list(specs) and (not specs or (is_up(self.folder) and has_read(self.folder))):
            return False
        tell(self.folder, specs)
        end = self._clock.monotonic() + _WITHIN_S
        while not has_read(self.folder):
            if self._clock.monotonic() > end:
                raise Unavailable(f"the supervisor of {self.folder} does not act", hint="Read its log.")
            self._clock.sleep(_POLL_S)
        return True

    def others(self, specs: Sequence[ProcessSpec]) -> list[ProcessSpec]:
        """Return the running processes that are not among these."""
        names = {spec.name for spec in specs}
        return [spec for spec in self._current_specs() if spec.name not in names]

    def _current_specs(self) -> list[ProcessSpec]:
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
        """Do nothing: a process needs no image."""

    def apply(self, units: Sequence[Unit], targets: Mapping[int, int]) -> None:
        """Run exactly these units, and route ports of the host to private ones."""
        supervised = self._supervised
        specs = [*supervised.fronts(targets), *(_spec(unit, run) for unit in units for run in unit.runs)]
        if supervised.turned(targets):
            supervised.keep([*specs, *supervised.others(specs)])
        supervised.aim(targets)
        if supervised.keep(specs):
            supervised.await_fronts(targets)

    def require_ports(self, targets: Mapping[int, int]) -> None:
        """Check that the host's ports are available."""
        self._supervised.require_ports(targets)

    def observe(self, unit: Unit) -> Mapping[str, ObservedService]:
        """Return the state of each service of a unit."""
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
        """Return the last output of a service."""
        return log_tail(self._supervised.folder, _process(unit, service))

    def stop(self) -> None:
        """End all units and fronts."""
        self._supervised.keep([])
        down(self._supervised.folder)


def _process(unit: Unit, service: str) -> str:
    return f"{unit.id}--{service}"


def _spec(unit: Unit, run: ServiceRun) -> ProcessSpec:
    return ProcessSpec(_process(unit, run.name), run.argv, dict(run.env), cwd=run.cwd, whole=True)
