"""Start of a job on this machine: its complete folder first, then the keeper process."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from cloudedge.clock import SystemClock
from cloudedge.errors import Conflict, InputError, Unavailable
from cloudedge.io import storage_errors
from cloudedge.training.job import TrainingJob
from cloudedge.training.local._keeper import read_state, write_json
from cloudedge.training.local._launch_plan import LocalPlan, plan_local
from cloudedge.training.local._run import START_S, LocalRun

__all__ = ["plan", "submit", "supports_servers"]

_PROBE = "from paddle.base import core; raise SystemExit(0 if hasattr(core, 'DistFleetWrapper') else 3)"


def submit(
    job: TrainingJob, *, replace: bool = False, workdir: str | Path = ".", python: str = sys.executable
) -> LocalRun:
    """Start a job on this machine, in processes that outlive the caller. Idempotent.

    Args:
        job: The job.
        replace: Stop and remove a run of that name first.
        workdir: The folder in which the command starts; relative file names refer to it.
        python: An interpreter with Paddle installed.

    Raises:
        InputError: this job cannot run locally; the message says why.
        Conflict: another run has that name.
        Unavailable: the job did not start.
    """
    run = LocalRun(job.name)
    planned = plan(job, python=python)
    if planned.needs_servers and not supports_servers(python):
        raise InputError(
            "the installed paddlepaddle has no parameter servers (its wheels are built without them)",
            hint="Submit it to a cluster whose image has them, or remove ps (or pserver) to train with workers only.",
        )
    if run.folder.exists():
        same = run.job.digest == job.digest
        if same and not replace and not (run.status().is_final and run.status().state != "succeeded"):
            return run
        if not replace:
            raise Conflict(
                f"a run {job.name} exists on this machine already (it is {run.status().state})",
                hint="Submit with `--replace`, which stops it and removes its logs and its model.",
            )
        run.delete()
    _prepare(run.folder, job, planned, Path(workdir).absolute())
    _start(run, python)
    return run


def plan(job: TrainingJob, *, python: str = sys.executable) -> LocalPlan:
    """Plan the local run of a job; starts nothing.

    Raises:
        InputError: this job cannot run locally; the message says why.
    """
    return plan_local(job, LocalRun(job.name).folder, python=python)


@cache
def supports_servers(python: str = sys.executable) -> bool:
    """Return whether an interpreter's Paddle has parameter servers; tested in a separate process."""
    try:
        return subprocess.run([python, "-c", _PROBE], capture_output=True, check=False, timeout=120).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _prepare(folder: Path, job: TrainingJob, planned: LocalPlan, workdir: Path) -> None:
    if not workdir.is_dir():
        raise InputError(f"the folder {workdir} does not exist")
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    with storage_errors("writing", folder):
        for name in ("logs", "output"):
            (temporary / name).mkdir(parents=True)
        (temporary / "job.yaml").write_text(job.to_yaml(), encoding="utf-8")
        write_json(temporary / "plan.json", planned.to_json() | {"cwd": str(workdir)})
        (temporary / "lock").touch()
        try:
            temporary.rename(folder)
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise Conflict(f"another process just started {job.name}") from error


def _start(run: LocalRun, python: str) -> None:
    with (run.folder / "logs" / "keeper.log").open("ab") as log:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "cloudedge.training.local", str(run.folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    clock = SystemClock()
    end = clock.monotonic() + START_S
    while not read_state(run.folder):
        if keeper.poll() is not None or clock.monotonic() > end:
            output = (run.folder / "logs" / "keeper.log").read_text(errors="replace")[-500:]
            raise Unavailable(
                f"{run.name} did not start with {python}: {output}", hint="Submit it again with `--replace`."
            )
        clock.sleep(0.05)
    # The keeper outlives this process on purpose; this silences subprocess's warning about it.
    keeper.returncode = 0
