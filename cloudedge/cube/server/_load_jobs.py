"""Background jobs of a cube server's admin API: staging and loading of versions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from cloudedge.admin import error_fields, states
from cloudedge.cube.formats import Artifact, Source
from cloudedge.cube.server._server import Server
from cloudedge.cube.server._version_store import VersionStore
from cloudedge.errors import Conflict, InputError

__all__ = ["Jobs", "Load", "Stage"]

_FETCHES = 2  # at the same time: one waits for the network while the other hashes


@dataclass
class _Job:
    """A job that was asked for: ``queued``, under way, then ``failed``, or listed among the versions instead."""

    name: str
    state: str = states.QUEUED
    error: str = ""
    hint: str = ""
    kind: str = ""
    """The error's class."""


@dataclass
class Load(_Job):
    """Load a version from a path, or from its staged files when there is none."""

    path: str = ""
    base: str | None = None
    activate: bool = False


@dataclass
class Stage(_Job):
    """Stage a version's files."""

    artifact: Artifact | None = None
    sources: tuple[Source, ...] = field(default=(), repr=False)
    deadline_s: float = 600.0
    shipped_bytes: int = 0


class Jobs:
    """Loads versions one after the other and stages a few at a time, in the background; remembers failures."""

    def __init__(self, server: Server, store: VersionStore | None) -> None:
        self._server = server
        self._store = store
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="cube-load")
        self._fetcher = ThreadPoolExecutor(_FETCHES, thread_name_prefix="cube-stage")
        self._lock = threading.Lock()
        self._jobs: dict[str, _Job] = {}
        self._shipped: dict[str, int] = {}

    def load(self, job: Load) -> None:
        """Begin to load a version.

        Raises:
            Conflict: it is loaded, or a job works on it.
        """
        if not job.path and self._store is None:
            raise InputError("path is a non-empty string: this server keeps no versions of its own")
        if any(version.name == job.name for version in self._server.versions()):
            raise Conflict(f"version {job.name!r} is loaded already, and a version does not change under its name")
        self._begin(self._loader, job, states.LOADING, lambda: self._load(job))

    def stage(self, job: Stage) -> None:
        """Begin to stage a version's files.

        Raises:
            InputError: this server keeps no versions.
            Conflict: a job works on it.
        """
        if self._store is None:
            raise InputError("this server keeps no versions of its own", hint="Start it with `--state DIR`.")
        self._begin(self._fetcher, job, states.STAGING, lambda: self._stage(job))

    def require_idle(self, name: str) -> None:
        """Require that no job works on a version.

        Raises:
            Conflict: one does.
        """
        with self._lock:
            before = self._jobs.get(name)
            if before is not None and before.state != states.FAILED:
                raise Conflict(f"version {name!r} is being fetched or loaded already")
            self._jobs.pop(name, None)

    def _begin(self, pool: ThreadPoolExecutor, job: _Job, doing: str, work: Callable[[], None]) -> None:
        with self._lock:
            before = self._jobs.get(job.name)
            if before is not None and before.state != states.FAILED:
                raise Conflict(f"version {job.name!r} is being fetched or loaded already")
            self._jobs[job.name] = job
        pool.submit(self._run, job, doing, work)

    def _run(self, job: _Job, doing: str, work: Callable[[], None]) -> None:
        job.state = doing
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the version's state reports any failure
            about = error_fields(error)
            job.error, job.hint, job.kind = about["error"], about["hint"], about["kind"]
            job.state = states.FAILED
            return
        with self._lock:
            del self._jobs[job.name]

    def _load(self, job: Load) -> None:
        if self._store is None:
            self._server.load(job.path, job.name, base=job.base, activate=job.activate)
            return
        self._store.load(job.name, path=job.path, base=job.base)
        if job.activate:
            self._store.activate(job.name)

    def _stage(self, job: Stage) -> None:
        if self._store is not None and job.artifact is not None:
            shipped = self._store.staging.stage(job.name, job.artifact, job.sources, deadline_s=job.deadline_s)
            self._shipped[job.name] = self._shipped.get(job.name, 0) + shipped

    def forget(self, name: str) -> None:
        """Forget that a job failed.

        Raises:
            Conflict: the job is still under way.
        """
        with self._lock:
            job = self._jobs.get(name)
            if job is not None and job.state != states.FAILED:
                raise Conflict(f"version {name!r} is being fetched or loaded")
            self._jobs.pop(name, None)
            self._shipped.pop(name, None)

    def list(self) -> list[dict[str, Any]]:
        """List loaded and staged versions, and jobs that are under way or failed."""
        if self._store is None:
            there = [{**asdict(version), "state": states.LOADED} for version in self._server.versions()]
        else:
            there = self._store.describe()
        with self._lock:
            waiting = {job.name: _about(job) for job in self._jobs.values()}
            shipped = dict(self._shipped)
        loaded = {each["name"] for each in there if each["state"] == states.LOADED}
        found = [
            {**each, "shipped_bytes": shipped.get(each["name"], 0)} if each["state"] == states.STAGED else each
            for each in there
            if each["name"] in loaded or each["name"] not in waiting
        ]
        return found + [job for name, job in waiting.items() if name not in loaded]

    def close(self) -> None:
        """Begin no further jobs; those under way end first."""
        self._fetcher.shutdown(cancel_futures=True)
        self._loader.shutdown(cancel_futures=True)


def _about(job: _Job) -> dict[str, Any]:
    shown = ("name", "state", "error", "hint", "kind", "path", "base", "activate")
    return {key: getattr(job, key) for key in shown if hasattr(job, key)}
