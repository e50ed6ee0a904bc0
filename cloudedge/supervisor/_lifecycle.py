"""Start, stop and inspect a folder's supervised processes, from any terminal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from cloudedge.clock import Clock, SystemClock
from cloudedge.errors import Unavailable
from cloudedge.io import locked_by
from cloudedge.supervisor._supervisor import ProcessSpec, find_processes, save_specs, specs_digest

__all__ = ["change", "down", "has_read", "is_up", "log_tail", "process_states", "restart", "tell", "up"]

_POLL_S = 0.05
_TAIL_BYTES = 2000


def up(
    folder: Path,
    specs: Sequence[ProcessSpec],
    *,
    is_ready: Callable[[str], bool] = lambda _: True,
    within_s: float = 60.0,
    clock: Clock | None = None,
) -> None:
    """Start processes under a supervisor that outlives the caller, and wait for them; running ones are left alone.

    Args:
        folder: The target's folder.
        specs: The processes to run.
        is_ready: Returns whether a process, by name, does its work.
        within_s: How long to wait until all are ready.
        clock: The source of time.

    Raises:
        Unavailable: a process is not ready in time; the message ends with its last output. The others go on.
    """
    time = clock or SystemClock()
    tell(folder, specs)
    end = time.monotonic() + within_s
    waiting = [spec.name for spec in specs]
    wanted = specs_digest(folder)
    while waiting := [name for name in waiting if not (name in _running(folder, wanted) and is_ready(name))]:
        if time.monotonic() > end:
            raise Unavailable(
                f"{waiting[0]} is not ready after {within_s:.0f} s; its last output:\n{log_tail(folder, waiting[0])}",
                hint=f"Read its log, {folder / 'logs' / waiting[0]}.log. The supervisor goes on trying.",
                waiting=waiting,
            )
        time.sleep(_POLL_S)


def tell(folder: Path, specs: Sequence[ProcessSpec]) -> None:
    """Hand the supervisor its process list, starting it if there is none; returns before the processes run."""
    folder.mkdir(parents=True, exist_ok=True)
    save_specs(folder, list(specs))
    if not _tell(folder, signal.SIGHUP):
        (folder / "logs").mkdir(exist_ok=True)
        with (folder / "logs" / "supervisor.log").open("ab") as log:
            subprocess.Popen(
                [sys.executable, "-m", "cloudedge.supervisor", str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            ).returncode = 0  # it outlives this process, which does not wait for it


def has_read(folder: Path) -> bool:
    """Return whether the supervisor has acted on the latest process list: processes no longer listed have ended."""
    state = _state(folder)
    return bool(state["specs"] == specs_digest(folder) and state.get("supervisor") == _supervisor(folder))


def change(
    folder: Path,
    specs: Sequence[ProcessSpec],
    *,
    gone: Collection[str],
    within_s: float = 60.0,
    clock: Clock | None = None,
) -> None:
    """Replace the process list and wait until the `gone` processes end; with no supervisor, the next `up` ends them.

    Raises:
        Unavailable: a process does not end in time.
    """
    time = clock or SystemClock()
    save_specs(folder, list(specs))
    if not _tell(folder, signal.SIGHUP):
        return
    end = time.monotonic() + within_s
    while left := sorted(set(gone) & find_processes(folder).keys()):
        if time.monotonic() > end:
            raise Unavailable(f"still running after {within_s:.0f} s: {', '.join(left)}")
        time.sleep(_POLL_S)


def down(folder: Path, *, within_s: float = 60.0, clock: Clock | None = None) -> None:
    """End the supervisor and every process of a target.

    Raises:
        Unavailable: a process or the supervisor does not end in time.
    """
    time = clock or SystemClock()
    if not _tell(folder, signal.SIGTERM):
        for pid in find_processes(folder).values():  # their supervisor was killed
            _kill(pid, signal.SIGTERM)
    end = time.monotonic() + within_s
    while is_up(folder) or find_processes(folder):
        if time.monotonic() > end:
            raise Unavailable(
                f"still running after {within_s:.0f} s: {', '.join(find_processes(folder)) or 'the supervisor'}"
            )
        time.sleep(_POLL_S)


def restart(folder: Path, name: str) -> None:
    """Ask a process to end; its supervisor starts it again. Does nothing if it does not run."""
    pid = find_processes(folder).get(name)
    if pid is not None:
        _kill(pid, signal.SIGTERM)


def is_up(folder: Path) -> bool:
    """Return whether a supervisor runs for a folder."""
    return _supervisor(folder) is not None


def process_states(folder: Path) -> dict[str, Any]:
    """Return the state of each process as the supervisor last recorded it; empty without a record."""
    processes: dict[str, Any] = _state(folder)["processes"]
    return processes


def _state(folder: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {"specs": "", "processes": {}}
    return state


def _running(folder: Path, specs: str) -> set[str]:
    state = _state(folder)
    if state["specs"] != specs or state.get("supervisor") != _supervisor(folder):
        return set()  # recorded before the last change, or by a supervisor that is gone
    return {name for name, process in state["processes"].items() if process["state"] == "running"}


def _supervisor(folder: Path) -> int | None:
    """Return the pid of the supervisor that holds the lock."""
    holder = locked_by(folder / "supervisor.lock")
    return int(holder.note or 0) if holder else None


def _tell(folder: Path, number: signal.Signals) -> bool:
    pid = _supervisor(folder)
    return pid is not None and pid > 0 and _kill(pid, number)


def _kill(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def log_tail(folder: Path, name: str) -> str:
    """Return the last lines of a process's log, indented."""
    try:
        data = (folder / "logs" / f"{name}.log").read_bytes()[-_TAIL_BYTES:]
    except FileNotFoundError:
        return "  (nothing)"
    return "\n".join(f"  {line}" for line in data.decode(errors="replace").splitlines()[-12:]) or "  (nothing)"
