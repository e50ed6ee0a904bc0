"""The supervisor: keeps the processes of a folder running, whatever ends them.

It is a process of its own (``python -m cloudedge.supervisor FOLDER``), detached from the terminal. Its folder holds:

    processes.json    the processes to run (written by `cloudedge up`; read at the start, on SIGHUP and on a change)
    state.json        the processes that do run, for people and for `cloudedge status`
    logs/NAME.log     the output of each process, and the supervisor's own; limited in size, one older file beside it
    supervisor.lock   held while it runs

A process that ends is started again, after a pause that doubles while it keeps ending. The supervisor finds its
processes by a mark in their environment, not by a remembered pid: a killed supervisor leaves them running, and the next
one adopts them. SIGTERM ends them in the reverse order, each with time to drain.

A process that has a health URL is probed. One that hangs is ended, by SIGTERM and after a grace by SIGKILL, and started
again; the log and ``last_exit`` say so. `_health` has the rule.

A full disk ends nothing: the supervisor goes on, writes what is missing once there is room, and reports the failure in
its own log as far as that can be written.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import selectors
import signal
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from cloudedge.clock import Clock, SystemClock, rfc3339
from cloudedge.errors import Conflict, StorageError
from cloudedge.io import FileLock
from cloudedge.supervisor._files import write_json
from cloudedge.supervisor._health import HealthCheck, cpu_seconds

__all__ = [
    "MARK",
    "ProcessSpec",
    "Supervisor",
    "find_processes",
    "pause_before_restart",
    "read_specs",
    "save_specs",
    "specs_digest",
]

MARK = "CLOUDEDGE_PROCESS"
"""The environment variable that names a process of ours: the folder, a colon, the process's name."""

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 30.0
_STEADY_S = 60.0
"""A process that ran this long did not fail because of how it was started."""
_HUNG_GRACE_S = 3.0
"""Time from SIGTERM to SIGKILL of a process that hangs: a stopped one cannot take the first."""
_LOG_BYTES = 16 * 1024 * 1024
_LOG_CHECK_S = 5.0
"""Time between two checks of the sizes of the logs."""


@dataclass(frozen=True)
class ProcessSpec:
    """A process to run."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the supervisor's own environment."""
    stop_s: float = 15.0
    """Time from SIGTERM to SIGKILL."""
    cwd: str = ""
    whole: bool = False
    """Signal the processes it started too: a shell script does not pass signals on, and leaves its server behind."""
    health: str = ""
    """An HTTP URL that it answers while it is well; one that stops answering is restarted. Empty: not probed."""


@dataclass
class _Running:
    """A listed process and its current state."""

    spec: ProcessSpec
    pid: int = 0
    pidfd: int = -1
    since: str = ""
    started: float = 0.0
    short_lives: int = 0
    restarts: int = 0
    due: float = 0.0
    last_exit: str = ""
    check: HealthCheck | None = None
    hangs: int = 0
    hung: str = ""
    """The reason why it is being ended; empty while it is well."""
    kill_due: float = 0.0


def pause_before_restart(short_lives: int) -> float:
    """Return the pause before the restart of a process that ended early `short_lives` times in a row."""
    return 0.0 if short_lives == 0 else min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(short_lives - 1, 30))


def read_specs(folder: Path) -> list[ProcessSpec]:
    """Read the list of processes to run."""
    specs = json.loads((folder / "processes.json").read_text(encoding="utf-8"))
    return [ProcessSpec(**{**spec, "argv": tuple(spec["argv"])}) for spec in specs]


def specs_digest(folder: Path) -> str:
    """Return the digest of the process list, to compare with the one the supervisor has read."""
    return hashlib.sha256((folder / "processes.json").read_bytes()).hexdigest()


def find_processes(folder: Path) -> dict[str, int]:
    """Find the running processes of a folder: pids by name.

    Only session leaders count: the processes they start carry the mark too.
    """
    return {name: pid for name, pid, is_leader in _marked(folder) if is_leader}


def _marked(folder: Path) -> Iterator[tuple[str, int, bool]]:
    wanted = f"{MARK}={folder}:".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError):  # it ended meanwhile, or belongs to another user
            for variable in (entry / "environ").read_bytes().split(b"\0"):
                if variable.startswith(wanted):
                    pid = int(entry.name)
                    yield variable[len(wanted) :].decode(), pid, os.getsid(pid) == pid


class Supervisor:
    """Keeps the processes of one folder running until SIGTERM or SIGINT.

    Args:
        folder: The folder with ``processes.json``.
        clock: The source of time.

    Raises:
        Conflict: another supervisor runs for this folder.
    """

    def __init__(self, folder: Path, *, clock: Clock | None = None) -> None:
        self.folder = folder
        self._clock = clock or SystemClock()
        self._running: dict[str, _Running] = {}
        self._selector = selectors.DefaultSelector()
        self._stop = False
        self._reload = True
        self._specs_digest = ""
        self._specs_mark: tuple[int, int] | None = None
        self._saved: dict[str, Any] = {}
        self._complaints: dict[str, str] = {}
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        supervised = Conflict(f"another supervisor runs for {folder.name} already")
        self._lock = FileLock.take(folder / "supervisor.lock", refusal=lambda _: supervised)
        self._lock.write("")

    def run(self) -> None:
        """Keep the processes running until SIGTERM or SIGINT, then end them."""
        with self._signals():
            self._lock.write(str(os.getpid()))  # only now: an earlier signal would have ended it
            adopted = find_processes(self.folder)
            while not self._stop:
                if self._reload:
                    self._reload = False
                    self._take_specs(adopted)
                    adopted = {}
                self._start_due()
                self._end_hung()
                self._save()
                self._wait()
                self._rotate()
                # The process that changed the list may have been killed before it sent SIGHUP.
                self._reload = self._reload or _mark(self.folder) not in (None, self._specs_mark)
            self._end(list(self._running.values())[::-1])
        self._running = {}
        self._save()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(reader, selectors.EVENT_READ, None)

        def stop(*_: object) -> None:
            self._stop = True

        def reload(*_: object) -> None:
            self._reload = True

        handlers = {signal.SIGTERM: stop, signal.SIGINT: stop, signal.SIGHUP: reload}
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        woken = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(woken)
            for number, handler in before.items():
                signal.signal(number, handler)
            self._selector.unregister(reader)
            os.close(reader)
            os.close(writer)

    def _take_specs(self, adopted: Mapping[str, int]) -> None:
        self._specs_mark = _mark(self.folder)
        self._specs_digest = specs_digest(self.folder)
        wanted = {spec.name: spec for spec in read_specs(self.folder)}
        gone = [run for name, run in self._running.items() if wanted.get(name) != run.spec]
        self._end(gone[::-1])
        for run in gone:
            del self._running[run.spec.name]
        for name, spec in wanted.items():
            if name not in self._running:
                self._running[name] = run = _Running(spec)
                if name in adopted:
                    self._hold(run, adopted[name])
        strangers = [_Running(ProcessSpec(name, ())) for name in adopted if name not in wanted]
        for run in strangers:
            self._hold(run, adopted[run.spec.name])
        self._end(strangers)

    def _start_due(self) -> None:
        for run in self._running.values():
            if run.pidfd < 0 and run.due <= self._clock.monotonic():
                self._start(run)

    def _start(self, run: _Running) -> None:
        log = self.folder / "logs" / f"{run.spec.name}.log"
        environ = {**os.environ, **run.spec.env, MARK: f"{self.folder}:{run.spec.name}"}
        self._signal_rest(run, signal.SIGKILL)  # remains of it that a killed supervisor left
        with self._append_to(log) as output:
            try:
                process = subprocess.Popen(
                    run.spec.argv,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=environ,
                    cwd=run.spec.cwd or None,
                    start_new_session=True,
                )
            except OSError as error:
                self._ended(run, f"could not be started: {error}")
                return
        self._hold(run, process.pid)
        process.returncode = 0  # its descriptor is waited for, not this object

    def _append_to(self, log: Path) -> BinaryIO:
        try:
            output = log.open("ab")
        except OSError as error:
            self._complain(log.name, f"its output is lost: {error}")
            return open(os.devnull, "ab")  # noqa: PTH123 - not a file
        self._complain(log.name, "")
        return output

    def _hold(self, run: _Running, pid: int) -> None:
        try:
            run.pidfd = os.pidfd_open(pid)
        except OSError:
            return  # it ended meanwhile
        run.pid = pid
        run.since = rfc3339(self._clock.now())
        run.started = self._clock.monotonic()
        self._selector.register(run.pidfd, selectors.EVENT_READ, run)
        if run.spec.health:
            run.check = HealthCheck(run.spec.health, self._selector, partial(cpu_seconds, pid))

    def _end_hung(self) -> None:
        """Probe the processes; send SIGTERM to one that hangs, and SIGKILL once its grace is over."""
        now = self._clock.monotonic()
        for run in self._running.values():
            if run.check is None:
                continue
            if run.hung:
                if now >= run.kill_due:
                    run.kill_due = float("inf")
                    _signal(run.pidfd, signal.SIGKILL)
            elif run.check.step(now):
                run.hung = f"hung: no answer for {run.check.record.silent_s(now):.0f} s"
                run.hangs += 1
                run.kill_due = now + _HUNG_GRACE_S
                self._report(run.spec.name, f"{run.hung} from {run.spec.health}; it is ended and started again")
                _signal(run.pidfd, signal.SIGTERM)

    def _wait(self) -> None:
        now = self._clock.monotonic()
        due = [max(0.0, run.due - now) for run in self._running.values() if run.pidfd < 0]
        due += [
            max(0.0, run.kill_due - now) if run.hung else run.check.due_in(now)
            for run in self._running.values()
            if run.check is not None
        ]
        for key, _ in self._selector.select(min([_LOG_CHECK_S, *due])):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    os.read(key.fd, 4096)
            elif isinstance(key.data, HealthCheck):
                key.data.on_event(self._clock.monotonic())
            else:
                self._let_go(key.data)
                self._ended(key.data, key.data.last_exit)

    def _let_go(self, run: _Running) -> None:
        """Reap a process that has ended and record how."""
        try:
            code = os.waitstatus_to_exitcode(os.waitpid(run.pid, 0)[1])
            run.last_exit = f"exit {code}" if code >= 0 else signal.Signals(-code).name
        except ChildProcessError:
            run.last_exit = "ended (started by an earlier supervisor)"
        run.last_exit, run.hung = run.hung or run.last_exit, ""
        if run.check is not None:
            run.check.close()
            run.check = None
        self._signal_rest(run, signal.SIGKILL)
        self._selector.unregister(run.pidfd)
        os.close(run.pidfd)
        run.pid, run.pidfd = 0, -1

    def _ended(self, run: _Running, how: str) -> None:
        lived = self._clock.monotonic() - run.started
        run.short_lives = 1 if lived >= _STEADY_S else run.short_lives + 1
        run.restarts += 1
        run.last_exit = how
        run.due = self._clock.monotonic() + pause_before_restart(run.short_lives)

    def _end(self, runs: list[_Running]) -> None:
        """End processes: send SIGTERM to all at once, and SIGKILL to those that exceed their time."""
        alive = [run for run in runs if run.pidfd >= 0]
        for run in alive:
            _signal(run.pidfd, signal.SIGTERM)
            self._signal_rest(run, signal.SIGTERM)
        begun = self._clock.monotonic()
        for run in alive:
            left = begun + run.spec.stop_s - self._clock.monotonic()
            with selectors.DefaultSelector() as one:
                one.register(run.pidfd, selectors.EVENT_READ)
                if not one.select(max(0.0, left)):
                    _signal(run.pidfd, signal.SIGKILL)
                    one.select()
            self._let_go(run)

    def _signal_rest(self, run: _Running, number: signal.Signals) -> None:
        """Signal the processes that a process started, if its spec asks for it."""
        if not run.spec.whole:
            return
        for name, pid, _ in list(_marked(self.folder)):
            if name == run.spec.name and pid != run.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def _rotate(self) -> None:
        for name in ("supervisor", *self._running):
            log = self.folder / "logs" / f"{name}.log"
            try:
                if log.stat().st_size > _LOG_BYTES:
                    # The process appends to this very file and cannot be made to open another one.
                    log.with_suffix(".log.1").write_bytes(log.read_bytes())
                    os.truncate(log, 0)
            except FileNotFoundError:
                continue
            except OSError as error:
                self._complain(f"{log.name}.1", f"{log.name} goes on growing: {error}")
            else:
                self._complain(f"{log.name}.1", "")

    def _save(self) -> None:
        path = self.folder / "state.json"
        processes = {
            name: {
                "pid": run.pid,
                "state": "running" if run.pidfd >= 0 else "waiting",
                "since": run.since,
                "restarts": run.restarts,
                "hangs": run.hangs,
                "last_exit": run.last_exit,
            }
            for name, run in self._running.items()
        }
        state = {"supervisor": os.getpid(), "specs": self._specs_digest, "processes": processes}
        if state == self._saved and path.exists():
            return
        try:
            write_json(path, state)
        except StorageError as error:
            self._complain(path.name, error.message)
        else:
            self._saved = state
            self._complain(path.name, "")

    def _complain(self, of: str, problem: str) -> None:
        """Report a problem once, and once its end."""
        if problem == self._complaints.get(of, ""):
            return
        self._complaints[of] = problem
        self._report(of, problem or "can be written again")

    def _report(self, of: str, event: str) -> None:
        """Write a line to the supervisor's own log."""
        with contextlib.suppress(OSError):  # the disk may be full
            os.write(2, f"{rfc3339(self._clock.now())} {of}: {event}\n".encode())


def _mark(folder: Path) -> tuple[int, int] | None:
    """Identify the current process list without reading it: each change replaces the file."""
    try:
        found = (folder / "processes.json").stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _signal(pidfd: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, number)


def save_specs(folder: Path, specs: list[ProcessSpec]) -> None:
    """Write the list of processes to run."""
    write_json(folder / "processes.json", [asdict(spec) for spec in specs])
