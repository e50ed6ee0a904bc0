"""The keeper: a process that outlives the terminal, runs the launcher and records how it ended.

FOLDER/job.yaml      the submitted job
FOLDER/plan.json     the local command for it
FOLDER/state.json    the run's state; written atomically
FOLDER/lock          held while the keeper lives: without its keeper, the "running" of state.json is out of date
FOLDER/logs/         one file per process
FOLDER/output/       the model
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cloudedge.clock import SystemClock, rfc3339
from cloudedge.io import FileLock, locked_by, who, write_atomically
from cloudedge.training.local import _guard

__all__ = ["Keeper", "is_kept", "read_state", "write_json"]

_REGULAR_END = b"."
_PR_SET_CHILD_SUBREAPER = 36
_GRACE_S = 15.0
LAUNCH_LOG = "launch.log"


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a file atomically; a power cut may lose it, since it describes processes that end then too."""
    write_atomically(path, json.dumps(value, indent=1), durable=False)


def read_state(folder: Path) -> dict[str, Any]:
    """Return the recorded state; empty if there is none yet."""
    try:
        found = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def is_kept(folder: Path) -> bool:
    """Return whether a keeper lives: only a keeper holds the lock."""
    try:
        return locked_by(folder / "lock") is not None
    except OSError:
        return False


class Keeper:
    """Runs one job to its end.

    Args:
        folder: The run's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._clock = SystemClock()
        self._started = ""
        self._stopping = False
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        """Start the launcher and stay until it has ended."""
        with FileLock.take(self._folder / "lock", owner=who()):
            signal.signal(signal.SIGTERM, self._stop)
            # Adopt workers whose launcher is gone, so that they can be ended.
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            plan = json.loads((self._folder / "plan.json").read_text(encoding="utf-8"))
            self._started = rfc3339(self._clock.now())
            with (self._folder / "logs" / LAUNCH_LOG).open("ab") as log:
                self._process = subprocess.Popen(
                    plan["argv"],
                    cwd=plan["cwd"],
                    env=os.environ | plan["env"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            guard = self._start_guard(self._process.pid)
            self._write("running")
            if self._stopping:
                self._process.terminate()
            code = self._wait()
            _guard.end_below(os.getpid(), spare={guard.pid})  # processes the launcher left behind
            done = "stopped" if self._stopping else "succeeded" if code == 0 else "failed"
            self._write(done, ended=rfc3339(self._clock.now()), exit_code=code)
            guard.communicate(_REGULAR_END)

    @staticmethod
    def _start_guard(launcher: int) -> subprocess.Popen[bytes]:
        """Start the guard, which ends the launcher's processes if the keeper is killed: no training runs unobserved."""
        command = [sys.executable, "-I", _guard.__file__, str(launcher)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def _wait(self) -> int:
        if self._process is None:
            return 1
        kill_at: float | None = None
        while True:
            try:
                return self._process.wait(0.2)
            except subprocess.TimeoutExpired:
                now = self._clock.monotonic()
                kill_at = (kill_at or now + _GRACE_S) if self._stopping else None
                if kill_at is not None and now > kill_at:
                    self._process.kill()

    def _stop(self, *_: object) -> None:
        self._stopping = True
        if self._process is not None:
            self._process.terminate()

    def _write(self, state: str, **more: Any) -> None:
        found = {"state": state, "pid": os.getpid(), "started": self._started, **more}
        write_json(self._folder / "state.json", found)
