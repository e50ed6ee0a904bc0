"""A job on this machine, with the interface of a job on a cluster."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cloudedge.clock import Clock, SystemClock
from cloudedge.config import home
from cloudedge.errors import DeadlineExceeded, InputError, NotFound, StorageError
from cloudedge.io import storage_errors
from cloudedge.training.job import TrainingJob
from cloudedge.training.local._keeper import LAUNCH_LOG, is_kept, read_state
from cloudedge.training.results import JobStatus, Outputs, RoleStatus, State, TrainingFailed, lineage_of

__all__ = ["START_S", "LocalRun", "LogLine", "attach", "list_runs"]

START_S = 20.0
"""The time a run may take to start."""
_STOP_S, _POLL_S = 40.0, 0.2
_LAST_LINES = 20
_LONGEST_LINE = 64 * 1024
_BLOCK = 1 << 20
"""Bytes of a log read at a time."""
_STATES: dict[str, State] = {"running": "running", "succeeded": "succeeded", "failed": "failed", "stopped": "stopped"}
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_LOG_FILE = re.compile(r"(worker|server)log\.(\d+)")


@dataclass(frozen=True)
class LogLine:
    """A line of a process's log."""

    pod: str
    """The process in the form of a pod name's ending: ``worker-0``."""
    text: str
    at: str = ""


class LocalRun:
    """One job on this machine.

    Args:
        name: Its name.
        clock: The source of time.
    """

    def __init__(self, name: str, *, clock: Clock | None = None) -> None:
        if not _NAME.fullmatch(name):
            raise InputError(f"{name!r} cannot be a job's name; use lower-case letters, digits and dashes")
        self.name = name
        self.namespace = "local"
        self.folder = _root() / name
        self._clock = clock or SystemClock()

    def __repr__(self) -> str:
        return f"LocalRun({self.name})"

    @property
    def job(self) -> TrainingJob:
        """The submitted job."""
        self._require()
        return TrainingJob.from_yaml(self.folder / "job.yaml")

    def status(self) -> JobStatus:
        """Return the job's state."""
        if not (self.folder / "job.yaml").is_file():
            return JobStatus(self.name, self.namespace, "gone")
        found, kept = read_state(self.folder), is_kept(self.folder)
        state: State = _STATES.get(str(found.get("state")), "waiting")
        reasons: list[str] = []
        if state in {"running", "waiting"} and not kept and not self._just_begun():
            state = "failed"
            reasons.append("its keeper process was killed; submit it again with `--replace`")
        elif state == "failed":
            reasons.append(f"paddle.distributed.launch ended with {found.get('exit_code')}")
        job = self.job
        word = {"waiting": "pending", "running": "running", "succeeded": "succeeded", "failed": "failed"}.get(state)
        roles = {name: RoleStatus(n, **({word: n} if word else {})) for name, n in job.replicas.items()}
        return JobStatus(
            self.name,
            self.namespace,
            state,
            str(found.get("state") or ""),
            job.mode,
            roles,
            tuple(reasons),
            str(found.get("started") or ""),
            str(found.get("ended") or ""),
            str(found.get("pid") or ""),
        )

    def wait(
        self,
        *,
        timeout_s: float = 24 * 3600.0,
        on_change: Callable[[JobStatus], None] | None = None,
    ) -> JobStatus:
        """Wait until the job has succeeded.

        Raises:
            TrainingFailed: the job failed or was stopped; with its last output.
            DeadlineExceeded: the time is over; the job goes on.
        """
        end = self._clock.monotonic() + timeout_s
        before: State | None = None
        while True:
            now = self.status()
            if now.state != before and on_change:
                on_change(now)
            before = now.state
            if now.state == "succeeded":
                return now
            if now.is_final:
                lines = (
                    [f"{line.pod}: {line.text}" for line in self.logs(tail=_LAST_LINES)] if self.folder.is_dir() else []
                )
                why = "".join(f"\n  {text}" for text in (*now.reasons, *lines[-_LAST_LINES:]))
                raise TrainingFailed(f"{self.name} {now.state}{why}", status=now.to_json(), log=lines)
            if self._clock.monotonic() >= end:
                hint = f"The job goes on. Run `cloudedge train status {self.name} --local`."
                raise DeadlineExceeded(f"{self.name} is {now.state} after {timeout_s:.0f} s", hint=hint)
            self._clock.sleep(_POLL_S)

    def logs(
        self,
        *,
        role: str = "",
        index: int | None = None,
        follow: bool = False,
        tail: int | None = None,
        timeout_s: float = 24 * 3600.0,
    ) -> Iterator[LogLine]:
        """Read the logs of the job's processes; ``role="launch"`` selects the launcher's own.

        Raises:
            NotFound: the job does not exist.
        """
        self._require()
        read: dict[Path, int] = {}
        end = self._clock.monotonic() + timeout_s
        while True:
            is_final = self.status().is_final
            for file, pod in self._log_files(role, index):
                if file not in read:
                    read[file] = max(0, file.stat().st_size - _BLOCK) if tail is not None else 0
                    last = tail
                else:
                    last = None
                lines, read[file] = _new_lines(file, read[file], whole=follow and not is_final)
                yield from (LogLine(pod, line) for line in (lines if last is None else lines[-last:] if last else []))
            if self._all_read(read) and (not follow or is_final or self._clock.monotonic() > end):
                return
            if follow and not is_final:
                self._clock.sleep(_POLL_S)

    def stop(self, *, wait_s: float = _STOP_S) -> Path:
        """End the job and keep its logs; return their folder.

        Raises:
            DeadlineExceeded: the job has not ended in time.
        """
        self._require()
        end = self._clock.monotonic() + wait_s
        if is_kept(self.folder):
            pid = read_state(self.folder).get("pid")
            if isinstance(pid, int):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
        while is_kept(self.folder):
            if self._clock.monotonic() >= end:
                raise DeadlineExceeded(
                    f"{self.name} still runs after {wait_s:.0f} s",
                    hint=f"Run `cloudedge train stop {self.name} --local` again.",
                )
            self._clock.sleep(_POLL_S)
        return self.folder / "logs"

    def delete(self, *, wait_s: float = _STOP_S) -> None:
        """Stop the job and remove its logs and its model."""
        if self.folder.is_dir():
            self.stop(wait_s=wait_s)
            with storage_errors("removing", self.folder):
                shutil.rmtree(self.folder)

    @property
    def outputs(self) -> Outputs:
        """The model the job made."""
        job = self.job
        started = read_state(self.folder).get("started", "")
        return Outputs(str(self.folder / "output"), lineage_of(job.manifest, f"local/{self.name}@{started}", job.image))

    def _require(self) -> None:
        if not (self.folder / "job.yaml").is_file():
            raise NotFound(
                f"the job {self.name} does not exist on this machine",
                hint="Run `cloudedge train list --local` to list the jobs.",
            )

    def _all_read(self, read: dict[Path, int]) -> bool:
        return all(at >= file.stat().st_size for file, at in read.items())

    def _just_begun(self) -> bool:
        return self._clock.now().timestamp() - (self.folder / "job.yaml").stat().st_mtime < START_S

    def _log_files(self, role: str, index: int | None) -> list[tuple[Path, str]]:
        found = []
        for file in sorted((self.folder / "logs").glob("*log*")):
            match = _LOG_FILE.fullmatch(file.name)
            if match:
                name = {"worker": "worker", "server": "ps"}[match[1]]
                if role in {"", name} and index in {None, int(match[2])}:
                    found.append((file, f"{name}-{match[2]}"))
            elif file.name == LAUNCH_LOG and role == "launch":
                found.append((file, "launch"))
        return found


def attach(name: str) -> LocalRun:
    """Return a run on this machine.

    Raises:
        NotFound: no run has that name.
    """
    run = LocalRun(name)
    _ = run.job
    return run


def list_runs() -> list[JobStatus]:
    """List the runs on this machine."""
    names = sorted(path.parent.name for path in _root().glob("*/job.yaml") if _NAME.fullmatch(path.parent.name))
    return [LocalRun(name).status() for name in names]


def _root() -> Path:
    return home() / "training" / "local"


def _new_lines(file: Path, start: int, *, whole: bool) -> tuple[list[str], int]:
    """Read the new lines; an unfinished line waits for its end unless the job has ended."""
    try:
        with file.open("rb") as opened:
            opened.seek(start)
            data = opened.read(_BLOCK)
    except OSError as error:
        raise StorageError(f"cannot read {file}: {error.strerror}") from error
    # A block may end within a line too; the rest comes with the next one.
    cut = data.rfind(b"\n") + 1 if whole or (len(data) == _BLOCK and b"\n" in data) else len(data)
    lines = data[:cut].decode(errors="replace").splitlines()
    return [line[:_LONGEST_LINE] for line in lines], start + cut
