"""Data sets of a cluster: what SampleSets and SampleJobs do, with the waiting and the explaining they leave out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timezone
from typing import TYPE_CHECKING

from cloudedge.cache.cluster._samplejob import LEFTOVER, Operation, SampleJob
from cloudedge.cache.cluster._sampleset import SampleSet
from cloudedge.cache.cluster._schedule import CRON_VERSIONS, MANAGED, SCHEDULE, scheduled
from cloudedge.cache.cluster._status import JobStatus, SampleSetStatus, read_job, read_sample_set
from cloudedge.errors import Conflict, InputError, NotFound, Rejected
from cloudedge.kube import Kind, Object, state_of

if TYPE_CHECKING:
    from cloudedge.kube import Cluster

__all__ = ["ClusterDatasets"]

_READY_S, _JOB_S, _GONE_S = 1800.0, 6 * 3600.0, 600.0
_SILENT_S = 30.0
"""A SampleJob that has no phase after so long has a mistake that only events tell of."""


class ClusterDatasets:
    """The data sets of one namespace."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def create(self, wanted: SampleSet, *, dry_run: bool = False) -> Object:
        """Make a SampleSet, or have it be as given.

        Whether the name is free in other namespaces is looked at only by those who may look there.

        Raises:
            InputError: it could not work.
            Conflict: a data set of that name is in another namespace, and the volume would be the same.
        """
        manifest = wanted.manifest(self._cluster.capabilities().paddle_flavour)
        namespace = wanted.namespace or self._cluster.namespace
        for other in self._everywhere():
            place = other["metadata"]["namespace"]
            if other["metadata"]["name"] == wanted.name and place != namespace:
                raise Conflict(
                    f"there is a SampleSet {wanted.name!r} in the namespace {place}",
                    hint="Both would be the same volume, which has no namespace: choose another name.",
                )
        return self._cluster.apply(manifest, dry_run=dry_run)

    def list(self) -> list[SampleSetStatus]:
        """List every data set."""
        return [read_sample_set(each) for each in self._cluster.list(Kind.SAMPLE_SET)]

    def status(self, name: str, *, namespace: str = "") -> SampleSetStatus:
        """Say what a data set is up to, and why if it is not ready.

        Raises:
            NotFound: there is none of that name.
        """
        where = namespace or self._cluster.namespace
        found = self._cluster.get(Kind.SAMPLE_SET, name, where)
        if found is None:
            raise NotFound(f"there is no SampleSet {name!r} in {where}")
        return read_sample_set(found, self._warnings(found), self._about_pods(found))

    def wait(self, name: str, *, timeout_s: float = _READY_S) -> SampleSetStatus:
        """Wait until a data set can be used.

        Raises:
            Rejected: copying from its source failed.
            DeadlineExceeded: it is not ready; with its state and events.
        """

        def ready(now: Object | None) -> bool:
            if now is None:
                raise NotFound(f"there is no SampleSet {name!r} in {self._cluster.namespace}")
            status = read_sample_set(now)
            if status.has_failed:
                told = self._warnings(now)
                raise Rejected(
                    f"SampleSet {name!r}: copying from the source failed{': ' + told[-1] if told else ''}",
                    hint="Correct the source or its secret and apply it again, or set no_sync.",
                )
            return status.is_ready

        what = f"waiting for data set {name}"
        found = self._cluster.wait(Kind.SAMPLE_SET, name, ready, timeout_s=timeout_s, what=what, pods=_pods_of(name))
        if found is None:
            raise NotFound(f"SampleSet {name!r} went away while it was waited for")
        return read_sample_set(found)

    def run(
        self,
        job: SampleJob,
        *,
        schedule: str = "",
        timeout_s: float = _JOB_S,
        on_change: Callable[[JobStatus], None] = lambda _: None,
    ) -> JobStatus:
        """Run an operation to its end and remove the job.

        Args:
            job: What to do.
            schedule: On whose behalf. What its runs before left, because they failed or were killed, is removed.
            timeout_s: How long.
            on_change: Told of every phase.

        Raises:
            Conflict: the data set is not ready, or there is a job of that name.
            Rejected: the operation failed; says why.
            DeadlineExceeded: it has not ended; it goes on.
        """
        manifest = job.manifest()
        where = job.namespace or self._cluster.namespace
        status = self.status(job.sample_set, namespace=where)
        if not status.is_ready:
            raise Conflict(f"data set {job.sample_set!r} is not ready: {status.why}", hint="Wait for it first.")
        if schedule:
            self._remove_jobs_of(schedule, where)
            manifest["metadata"]["labels"] = {SCHEDULE: schedule}
        made = self._cluster.create(manifest)
        uid, began = made["metadata"]["uid"], self._cluster.clock.monotonic()
        last = ""

        def done(now: Object | None) -> bool:
            nonlocal last
            if now is None or now["metadata"]["uid"] != uid:
                raise NotFound(f"SampleJob {job.name!r} was deleted by somebody while it ran")
            silent = not (now.get("status") or {}).get("phase") and self._cluster.clock.monotonic() - began > _SILENT_S
            state = read_job(now, self._warnings(now) if silent else ())
            if state.phase != last:
                last = state.phase
                on_change(state)
            if state.has_failed or (silent and state.why):
                told = self._warnings(now)
                why = told[-1] if told else "no reason given"
                raise Rejected(
                    f"SampleJob {job.name!r} ({job.operation}) failed: {why}",
                    hint=_hint(job, why),
                    job=job.name,
                )
            return state.is_done

        what = f"{job.operation} of {job.sample_set}"
        self._cluster.wait(Kind.SAMPLE_JOB, job.name, done, timeout_s=timeout_s, what=what, namespace=where)
        self._cluster.delete(Kind.SAMPLE_JOB, job.name, namespace=where, uid=uid)
        return JobStatus(job.name, "Succeeded")

    def delete(self, name: str, *, wait_s: float = _GONE_S) -> None:
        """Remove a data set's cache from the cluster. Its data, in the object store, stays.

        Raises:
            DeadlineExceeded: a pod still uses it.
        """
        self._cluster.delete(Kind.SAMPLE_SET, name, wait_s=wait_s)

    def schedule(
        self, name: str, cron: str, command: Sequence[str], *, image: str, dry_run: bool = False
    ) -> Sequence[Object]:
        """Have ``cloudedge dataset ...`` run at fixed times; the same again changes nothing.

        Args:
            name: Of the schedule.
            cron: Five fields: ``0 3 * * *``, by the clock of the cluster's controllers.
            command: What follows ``cloudedge dataset``: ``["warmup", "criteo"]``.
            image: An image with cloudedge in it.
            dry_run: Let the server check it and change nothing.

        Returns:
            What was sent: the CronJob, and an account that may do no more than it needs.

        Raises:
            InputError: one of these cannot be.
            Conflict: somebody else has something of that name.
        """
        version = self._cluster.served("CronJob", CRON_VERSIONS).api_version
        objects = scheduled(name, cron, command, image=image, namespace=self._cluster.namespace, version=version)
        for each in objects:
            there = self._cluster.get(self._cluster.kind_of(each), name)
            if there is not None and not _is_ours(there):
                raise Conflict(f"there is a {each['kind']} {name!r} that is not ours", hint="Choose another name.")
        for each in objects:
            self._cluster.apply(each, dry_run=dry_run)
        return objects

    def unschedule(self, name: str) -> None:
        """Take a schedule away; what it runs at this moment goes on.

        Raises:
            NotFound: there is none of that name.
        """
        cron = self._cluster.served("CronJob", CRON_VERSIONS)
        found = self._cluster.get(cron, name)
        if found is None or not _is_ours(found):
            raise NotFound(f"there is no schedule {name!r} in {self._cluster.namespace}")
        self._remove_jobs_of(name, self._cluster.namespace, only_ended=True)
        # The CronJob last: as long as it is there, this can be run again.
        for kind in (Kind.ROLE_BINDING, Kind.ROLE, Kind.SERVICE_ACCOUNT, cron):
            self._cluster.delete(kind, name)

    def job_name(self, sample_set: str, operation: Operation) -> str:
        """Return a name no job had before: every run needs one of its own."""
        now = self._cluster.clock.now().astimezone(timezone.utc)
        name = f"{sample_set[:30].rstrip('-')}-{operation}-{now:%y%m%d%H%M%S}"
        if self._cluster.get(Kind.SAMPLE_JOB, name) is not None:
            raise Conflict(f"there is a SampleJob {name!r} already", hint="Try again in a second.")
        return name

    def _remove_jobs_of(self, schedule: str, namespace: str, *, only_ended: bool = False) -> None:
        for left in self._cluster.list(Kind.SAMPLE_JOB, selector=f"{SCHEDULE}={schedule}", namespace=namespace):
            state = read_job(left)
            if state.is_done or state.has_failed or not only_ended:
                name, uid = left["metadata"]["name"], left["metadata"]["uid"]
                self._cluster.delete(Kind.SAMPLE_JOB, name, namespace=namespace, uid=uid)

    def _everywhere(self) -> Sequence[Object]:
        """List the data sets of all namespaces; of none, where only one namespace may be looked at."""
        with suppress(Rejected):
            return self._cluster.list(Kind.SAMPLE_SET, everywhere=True)
        return ()

    def _about_pods(self, sample_set: Object) -> Sequence[str]:
        """Collect what keeps its runtime pods from getting ready; nothing of those that are, and nothing of before."""
        name, where = sample_set["metadata"]["name"], sample_set["metadata"]["namespace"]
        told: list[str] = []
        if (sample_set.get("status") or {}).get("phase") == "Ready":
            return told
        with suppress(Rejected):  # who may not look at pods is told of the phase alone
            runtime = self._cluster.get(Kind.STATEFUL_SET, f"{name}-runtime", where)
            told += self._warnings(runtime) if runtime else []
            for pod in self._cluster.list(Kind.POD, selector=_pods_of(name), namespace=where):
                if not _is_ready(pod):
                    told += self._warnings(pod) or [f"Pod/{pod['metadata']['name']}: {state_of(pod)}"]
        return told

    def _warnings(self, obj: Object) -> Sequence[str]:
        if not obj.get("metadata", {}).get("uid"):
            raise InputError("an object that is not in a cluster has no events")
        return [str(notice) for notice in self._cluster.events(obj) if notice.type == "Warning"]


def _pods_of(name: str) -> str:
    return f"paddlepaddle.org/juicefs-{name}=true"


def _is_ready(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _hint(job: SampleJob, why: str) -> str:
    if job.operation == "warmup" and "file exists" in why.lower():
        return f"A warm-up crashed and left {LEFTOVER} behind: cloudedge dataset unblock {job.sample_set}"
    return "The job stays, for you to look at; every run has a name of its own."


def _is_ours(obj: Object) -> bool:
    return MANAGED.items() <= (obj["metadata"].get("labels") or {}).items()
