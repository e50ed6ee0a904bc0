"""The launch plan: the local command that stands for a job. Pure; starts nothing.

Images, volumes and nodes do not apply here: the command of the workers' container runs under
``paddle.distributed.launch``, with as many processes as the job has pods.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloudedge.errors import InputError
from cloudedge.training.job import TrainingJob
from cloudedge.training.manifest import OUTPUT_ENV, Manifest, env_names, first_container, roles

__all__ = ["LocalPlan", "plan_local"]

_LAUNCHERS = {"paddle.distributed.launch", "paddle.distributed.fleet.launch", "fleetrun"}
_SHELLS = {"sh", "bash", "ash", "dash"}
_CTR_LAUNCHER = "paddle_k8s"
"""The program that the CTR example's image starts; ENTRY holds its training command."""
_CD = re.compile(r"cd\s+[^\s|&;<>()$`]+\s*&&\s*")
"""A change into a folder of the image, which does not exist here."""
_SHELL_SYNTAX = re.compile(r"[|&;<>()$`\\*?\[\]{}~\n#]")
_SET_BY_LAUNCHER = {
    "PADDLE_PORT",
    "PADDLE_PSERVERS_NUM",
    "PADDLE_TRAINERS_NUM",
    "PADDLE_TRAINING_ROLE",
    "TRAINING_ROLE",
}
"""Variables that the launcher sets for each process; the job's values describe pods that do not exist here."""
_WORKERS, _SERVERS = ("worker", "trainer"), ("ps", "pserver")
_MOST = 64


@dataclass(frozen=True)
class LocalPlan:
    """The command, environment and processes of a local run."""

    name: str
    mode: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    workers: int
    servers: int = 0
    notes: tuple[str, ...] = field(default=())
    """Parts of the job's description that do not apply here."""

    @property
    def needs_servers(self) -> bool:
        """True if Paddle's parameter servers must run."""
        return self.servers > 0

    def to_json(self) -> dict[str, Any]:
        """Return the plan for programs and for the folder of the run."""
        return {**vars(self), "argv": list(self.argv), "env": dict(self.env), "notes": list(self.notes)}


def plan_local(job: TrainingJob, folder: Path, *, python: str = sys.executable) -> LocalPlan:
    """Plan the local run of a job.

    Args:
        job: The job.
        folder: The folder of its logs and its model.
        python: The interpreter.

    Raises:
        InputError: this job cannot run locally; the message says why.
    """
    parts = {name: role for name, _, role in roles(job.manifest)}
    if "heter" in parts:
        raise InputError(f"{job.name} has heter workers, which need machines of different kinds and cannot run locally")
    worker = next((parts[name] for name in _WORKERS if name in parts), None)
    if worker is None and len(parts) == 1:
        worker = next(iter(parts.values()))
    if worker is None:
        raise InputError(f"{job.name} has no workers: none of {', '.join(parts)} is called worker or trainer")
    server = next((parts[name] for name in _SERVERS if name in parts), None)
    workers, servers = _count(job, worker), _count(job, server) if server else 0
    container = first_container(worker)
    words, dropped = _words(job, container)
    declared = env_names(container)
    given = {name: str(value) for name, value in declared.items() if value is not None and name not in _SET_BY_LAUNCHER}
    env = {**given, OUTPUT_ENV: str(folder / "output")}
    logs = ("--log_dir", str(folder / "logs"))
    if servers:
        how: Sequence[str] = ("--run_mode", "ps", "--server_num", str(servers), "--trainer_num", str(workers))
    else:
        how = ("--nproc_per_node", str(workers), "--backend", "gloo")
    argv = (python, "-u", "-m", "paddle.distributed.launch", *how, *logs, *words)
    notes = (
        *(f"launch options left out because they describe a cluster: {' '.join(dropped)}" for _ in dropped[:1]),
        *(f"the model goes to {folder / 'output'}, not to {job.output}" for _ in [0] if job.output),
        *("GPUs are not used: workers exchange gradients through gloo" for _ in _gpus(container)[:1]),
        *(
            f"the image {container['image']} is not used: the locally installed packages run"
            for _ in [0]
            if "image" in container
        ),
    )
    return LocalPlan(job.name, job.mode, argv, env, workers, servers, notes)


def _count(job: TrainingJob, role: Manifest) -> int:
    found = role.get("replicas")
    if not isinstance(found, int) or isinstance(found, bool) or not 1 <= found <= _MOST:
        raise InputError(f"{job.name} wants {found!r} pods of a role; a local run takes 1 to {_MOST} processes")
    return found


def _words(job: TrainingJob, container: Manifest) -> tuple[list[str], list[str]]:
    """Return the script and arguments of a container's command, and the launch options left out."""
    words = [str(word) for key in ("command", "args") for word in container.get(key) or []]
    if words and Path(words[0]).name == _CTR_LAUNCHER and env_names(container).get("ENTRY"):
        words = ["sh", "-c", _CD.sub("", str(env_names(container)["ENTRY"]), count=1)]
    if words and Path(words[0]).name in _SHELLS:
        words = _from_shell(job, words)
    if not words:
        raise InputError(
            f"{job.name} names no command, and the image's own is unknown here",
            hint="Write the command into the manifest: `command: [python, train.py]`.",
        )
    name = Path(words[0]).name
    if re.fullmatch(r"python[0-9.]*", name):
        rest = words[1:]
        while rest and rest[0] in {"-u", "-B", "-O"}:
            rest = rest[1:]
        if rest[:1] == ["-m"] and len(rest) > 1 and rest[1] in _LAUNCHERS:
            return _after_options(job, rest[2:])
        if rest and not rest[0].startswith("-"):
            return rest, []
    elif name in _LAUNCHERS:
        return _after_options(job, words[1:])
    raise InputError(
        f"{job.name} runs `{shlex.join(words)[:200]}`, which paddle.distributed.launch cannot start",
        hint="Name a Python file: `command: [python, train.py, ...]`.",
    )


def _from_shell(job: TrainingJob, words: list[str]) -> list[str]:
    script = words[2] if len(words) == 3 and words[1] in {"-c", "-lc", "-ec"} else None  # noqa: PLR2004 - sh -c script
    if script is None or _SHELL_SYNTAX.search(script):
        raise InputError(
            f"{job.name} runs a shell script, whose training command cannot be identified",
            hint="Write the command as words: `command: [python, train.py, ...]`.",
        )
    return shlex.split(script)


def _after_options(job: TrainingJob, words: list[str]) -> tuple[list[str], list[str]]:
    """Leave out the launcher's own options, each of which takes a value."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        at += 1 if "=" in words[at] else 2
    if at >= len(words):
        raise InputError(f"{job.name} names no file for paddle.distributed.launch to start")
    return words[at:], words[:at]


def _gpus(container: Manifest) -> list[str]:
    limits = (container.get("resources") or {}).get("limits") or {}
    return [name for name in limits if "gpu" in str(name)]
