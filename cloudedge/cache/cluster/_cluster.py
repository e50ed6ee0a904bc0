"""Operations on a cluster's data sets: SampleSets and SampleJobs, with the waits and explanations they lack."""

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
"""A SampleJob without a phase after this time has a mistake that only events report."""


class ClusterDatasets:
    """The data sets of one namespace."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def create(self, wanted: SampleSet, *, dry_run: bool = False) -> Object:
        """Create or update a SampleSet.

        The name is checked against other namespaces only with permission to list them.

        Raises:
            InputError: it could not work.
            Conflict: a data set of that name exists in another namespace, and both would share one volume.
        """
        manifest = wanted.manifest(self._cluster.capabilities().paddle_flavour)
        namespace = wanted.namespace or self._cluster.namespace
        for other in self._everywhere():
            place = other["metadata"]["namespace"]
            if other["metadata"]["name"] == wanted.name and place != namespace:
                raise Conflict(
                    f"a SampleSet {wanted.name!r} exists in the namespace {place}",
                    hint="Choose another name: both would share one volume, since volumes have no namespace.",
                )
        return self._cluster.apply(manifest, dry_run=dry_run)

    def list(self) -> list[SampleSetStatus]:
        """List every data set."""
        return [read_sample_set(each) for each in self._cluster.list(Kind.SAMPLE_SET)]

    def status(self, name: str, *, namespace: str = "") -> SampleSetStatus:
        """Return a data set's state and, if it is not ready, the reason.

        Raises:
            NotFound: the data set does not exist.
        """
        where = namespace or self._cluster.namespace
        found = self._cluster.get(Kind.SAMPLE_SET, name, where)
        if found is None:
            raise NotFound(f"the SampleSet {name!r} does not exist in {where}")
        return read_sample_set(found, self._warnings(found), self._pod_problems(found))

    def wait(self, name: str, *, timeout_s: float = _READY_S) -> SampleSetStatus:
        """Wait until a data set can be used.

        Raises:
            Rejected: copying from its source failed.
            DeadlineExceeded: it is not ready; with its state and events.
        """

        def ready(now: Object | None) -> bool:
            if now is None:
                raise NotFound(f"the SampleSet {name!r} does not exist in {self._cluster.namespace}")
            status = read_sample_set(now)
            if status.has_failed:
                warnings = self._warnings(now)
                raise Rejected(
                    f"SampleSet {name!r}: copying from the source failed{': ' + warnings[-1] if warnings else ''}",
                    hint="Correct the source or its secret and create it again, or set no_sync.",
                )
            return status.is_ready

        what = f"waiting for data set {name}"
        found = self._cluster.wait(Kind.SAMPLE_SET, name, ready, timeout_s=timeout_s, what=what, pods=_pods_of(name))
        if found is None:
            raise NotFound(f"SampleSet {name!r} was deleted during the wait")
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
            job: The operation.
            schedule: The schedule that runs it. SampleJobs left by its failed or killed earlier runs are removed.
            timeout_s: The time limit.
            on_change: Called with every phase.

        Raises:
            Conflict: the data set is not ready, or a job of that name exists.
            Rejected: the operation failed; the message says why.
            DeadlineExceeded: the operation has not ended in time; it goes on.
        """
        manifest = job.manifest()
        where = job.namespace or self._cluster.namespace
        status = self.status(job.sample_set, namespace=where)
        if not status.is_ready:
            raise Conflict(
                f"data set {job.sample_set!r} is not ready: {status.why}",
                hint=f"Run `cloudedge dataset status {job.sample_set} --cluster` to see its state.",
            )
        if schedule:
            self._remove_jobs_of(schedule, where)
            manifest["metadata"]["labels"] = {SCHEDULE: schedule}
        made = self._cluster.create(manifest)
        uid, began = made["metadata"]["uid"], self._cluster.clock.monotonic()
        last = ""

        def done(now: Object | None) -> bool:
            nonlocal last
            if now is None or now["metadata"]["uid"] != uid:
                raise NotFound(f"SampleJob {job.name!r} was deleted while it ran")
            silent = not (now.get("status") or {}).get("phase") and self._cluster.clock.monotonic() - began > _SILENT_S
            state = read_job(now, self._warnings(now) if silent else ())
            if state.phase != last:
                last = state.phase
                on_change(state)
            if state.has_failed or (silent and state.why):
                warnings = self._warnings(now)
                why = warnings[-1] if warnings else "no reason given"
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
        """Run ``cloudedge dataset ...`` at fixed times. Idempotent.

        Args:
            name: The schedule's name.
            cron: Five fields: ``0 3 * * *``, by the clock of the cluster's controllers.
            command: The words after ``cloudedge dataset``: ``["warmup", "criteo"]``.
            image: An image that contains cloudedge.
            dry_run: Let the server validate it and change nothing.

        Returns:
            The objects sent: the CronJob, and an account with only the permissions it needs.

        Raises:
            InputError: an argument is not valid.
            Conflict: an object of that name exists that cloudedge did not make.
        """
        version = self._cluster.served("CronJob", CRON_VERSIONS).api_version
        objects = scheduled(name, cron, command, image=image, namespace=self._cluster.namespace, version=version)
        for each in objects:
            existing = self._cluster.get(self._cluster.kind_of(each), name)
            if existing is not None and not _is_ours(existing):
                raise Conflict(
                    f"a {each['kind']} {name!r} exists that cloudedge did not make", hint="Choose another name."
                )
        for each in objects:
            self._cluster.apply(each, dry_run=dry_run)
        return objects

    def unschedule(self, name: str) -> None:
        """Remove a schedule; an operation that runs at this moment goes on.

        Raises:
            NotFound: the schedule does not exist.
        """
        cron = self._cluster.served("CronJob", CRON_VERSIONS)
        found = self._cluster.get(cron, name)
        if found is None or not _is_ours(found):
            raise NotFound(f"the schedule {name!r} does not exist in {self._cluster.namespace}")
        self._remove_jobs_of(name, self._cluster.namespace, only_ended=True)
        # The CronJob goes last: while it exists, this command can be repeated.
        for kind in (Kind.ROLE_BINDING, Kind.ROLE, Kind.SERVICE_ACCOUNT, cron):
            self._cluster.delete(kind, name)

    def job_name(self, sample_set: str, operation: Operation) -> str:
        """Return a new job name: every run needs its own."""
        now = self._cluster.clock.now().astimezone(timezone.utc)
        name = f"{sample_set[:30].rstrip('-')}-{operation}-{now:%y%m%d%H%M%S}"
        if self._cluster.get(Kind.SAMPLE_JOB, name) is not None:
            raise Conflict(f"a SampleJob {name!r} exists already", hint="Try again in a second.")
        return name

    def _remove_jobs_of(self, schedule: str, namespace: str, *, only_ended: bool = False) -> None:
        for left in self._cluster.list(Kind.SAMPLE_JOB, selector=f"{SCHEDULE}={schedule}", namespace=namespace):
            state = read_job(left)
            if state.is_done or state.has_failed or not only_ended:
                name, uid = left["metadata"]["name"], left["metadata"]["uid"]
                self._cluster.delete(Kind.SAMPLE_JOB, name, namespace=namespace, uid=uid)

    def _everywhere(self) -> Sequence[Object]:
        """List the data sets of all namespaces; none without permission to look beyond this one."""
        with suppress(Rejected):
            return self._cluster.list(Kind.SAMPLE_SET, everywhere=True)
        return ()

    def _pod_problems(self, sample_set: Object) -> Sequence[str]:
        """Collect the problems of its runtime pods that are not ready; past problems of ready pods do not count."""
        name, where = sample_set["metadata"]["name"], sample_set["metadata"]["namespace"]
        problems: list[str] = []
        if (sample_set.get("status") or {}).get("phase") == "Ready":
            return problems
        with suppress(Rejected):  # without permission to read pods, the phase must do
            runtime = self._cluster.get(Kind.STATEFUL_SET, f"{name}-runtime", where)
            problems += self._warnings(runtime) if runtime else []
            for pod in self._cluster.list(Kind.POD, selector=_pods_of(name), namespace=where):
                if not _is_ready(pod):
                    problems += self._warnings(pod) or [f"Pod/{pod['metadata']['name']}: {state_of(pod)}"]
        return problems

    def _warnings(self, obj: Object) -> Sequence[str]:
        if not obj.get("metadata", {}).get("uid"):
            raise InputError("cannot read events: the object does not come from a cluster")
        return [str(notice) for notice in self._cluster.events(obj) if notice.type == "Warning"]


def _pods_of(name: str) -> str:
    return f"paddlepaddle.org/juicefs-{name}=true"


def _is_ready(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _hint(job: SampleJob, why: str) -> str:
    if job.operation == "warmup" and "file exists" in why.lower():
        return f"A warm-up crashed and left {LEFTOVER} behind. Run `cloudedge dataset unblock {job.sample_set}`."
    return "The job is kept for inspection. The next run gets a new name."


def _is_ours(obj: Object) -> bool:
    return MANAGED.items() <= (obj["metadata"].get("labels") or {}).items()
