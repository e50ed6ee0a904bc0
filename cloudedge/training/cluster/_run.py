"""A job on a cluster: its status, logs, outputs and deletion."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from cloudedge.config import home
from cloudedge.errors import CloudEdgeError, Conflict, DeadlineExceeded, InputError, NotFound, Unavailable
from cloudedge.kube import Cluster, Kind, LogLine
from cloudedge.training.manifest import Manifest, roles, section
from cloudedge.training.results import Debounce, JobStatus, Outputs, TrainingFailed, role_of, status_of

if TYPE_CHECKING:
    from cloudedge.training.job import TrainingJob

__all__ = ["Run", "attach", "list_runs"]

_POLL_S = 1.5
_DELETE_S = 120.0
_LAST_LINES = 20
_PODS_WITH_EVENTS = 5
"""Number of pods whose events are read: those of the others repeat them."""
Watcher = Callable[[JobStatus], None]


class Run:
    """One submitted job; the same name with another uid is another run.

    Args:
        cluster: The cluster it runs on.
        kind: PaddleJob or Volcano Job.
        name: Its name.
        namespace: Its namespace.
        uid: Its identity; empty for any job of that name.
    """

    def __init__(self, cluster: Cluster, kind: Kind, name: str, namespace: str, uid: str = "") -> None:
        self.cluster = cluster
        self.kind = kind
        self.name = name
        self.namespace = namespace
        self.uid = uid

    def __repr__(self) -> str:
        return f"Run({self.kind} {self.namespace}/{self.name})"

    def get(self) -> Manifest | None:
        """Return the job's object; None if it is gone, or another job has its name."""
        found = self.cluster.get(self.kind, self.name, self.namespace)
        is_mine = found is not None and self.uid in {"", section(found, "metadata").get("uid")}
        return found if is_mine else None

    def pods(self, job: Manifest | None = None) -> list[Manifest]:
        """List the pods the job owns."""
        owner = section(job or self.get() or {}, "metadata").get("uid")
        label = f"volcano.sh/job-name={self.name}" if self.kind == Kind.VOLCANO_JOB else "paddle-res-type"
        found = self.cluster.list(Kind.POD, selector=label, namespace=self.namespace)
        return [pod for pod in found if owner and owner in _owners(pod)]

    def status(self, *, ps_done_when_workers_done: bool = False) -> JobStatus:
        """Return the job's state and the reasons it is not further."""
        job = self.get()
        pods = self.pods(job) if job else []
        stuck = [pod for pod in pods if section(pod, "status").get("phase") not in {"Running", "Succeeded"}]
        alive = [pod for pod in pods if section(pod, "status").get("phase") not in {"Failed", "Succeeded"}]
        explained = [job, *stuck[:_PODS_WITH_EVENTS]] if job else []
        events = [notice for obj in explained for notice in self.cluster.events(obj)]
        return status_of(
            job,
            name=self.name,
            namespace=self.namespace,
            pods=pods,
            events=events,
            groups=self._groups(job) if job and not alive else [],
            now=self.cluster.clock.now(),
            ps_done_when_workers_done=ps_done_when_workers_done,
        )

    def wait(
        self,
        *,
        timeout_s: float = 24 * 3600.0,
        on_change: Watcher | None = None,
        ps_done_when_workers_done: bool = False,
        settle_s: float = 2.0,
    ) -> JobStatus:
        """Wait until the job has succeeded.

        Args:
            timeout_s: The time limit.
            on_change: Called with every state that lasts.
            ps_done_when_workers_done: Count the job as done once all workers succeeded, though servers never end.
            settle_s: How long a state must last before it is reported; final ones are reported at once.

        Raises:
            TrainingFailed: the job failed, was stopped or was deleted; with its last output.
            DeadlineExceeded: the time is over; the message says what the job waits for. The job goes on.
            Unavailable: the time is over, and the API server does not answer.
        """
        clock, news = self.cluster.clock, Debounce(settle_s)
        end = clock.monotonic() + timeout_s
        while True:
            try:
                now = self.status(ps_done_when_workers_done=ps_done_when_workers_done)
            except Unavailable:
                # A restarting API server says nothing about the job, which goes on.
                if clock.monotonic() >= end:
                    raise
                clock.sleep(_POLL_S)
                continue
            if news.settled(now.state, clock.monotonic()) and on_change:
                on_change(now)
            if now.state == "succeeded":
                return now
            if now.is_final:
                raise self._failure(now)
            if clock.monotonic() >= end:
                why = "".join(f"\n  {reason}" for reason in now.reasons)
                raise DeadlineExceeded(
                    f"{self.namespace}/{self.name} is {now.state} after {timeout_s:.0f} s{why}",
                    hint=f"The job goes on. Run `cloudedge train status {self.name} -n {self.namespace}`.",
                    status=now.to_json(),
                )
            clock.sleep(_POLL_S * (0.8 + 0.4 * clock.random()))

    def logs(
        self,
        *,
        role: str = "",
        index: int | None = None,
        follow: bool = False,
        tail: int | None = None,
        timeout_s: float = 24 * 3600.0,
    ) -> Iterator[LogLine]:
        """Read the logs of the job's pods, interleaved by time.

        Args:
            role: Only these pods: ``worker``, ``ps``, or a Volcano task.
            index: Only this one of them.
            follow: Go on until all of them have ended.
            tail: Only this many earlier lines of each.
            timeout_s: How long to follow.

        Raises:
            NotFound: the job does not exist, or its pods are gone.
        """
        job = self.get()
        if job is None:
            raise self._missing()
        present = {str(section(pod, "metadata")["name"]) for pod in self.pods(job) if role in {"", role_of(pod)}}
        names = [
            f"{self.name}-{each}-{i}"
            for each, _, spec in roles(job)
            if role in {"", each}
            for i in range(int(spec.get("replicas") or 0))
            if index in {None, i}
        ]
        wanted = names if follow else sorted(present & set(names))
        if not wanted or (follow and not present and self.status().is_final):
            policy = section(job, "spec").get("cleanPodPolicy", "OnCompletion")
            raise NotFound(
                f"{self.name} has no such pods now, and logs are deleted with their pods",
                hint=f"cleanPodPolicy is {policy}. Never keeps the pods." if self.kind == Kind.PADDLE_JOB else "",
            )
        return self.cluster.logs(
            pods=wanted,
            namespace=self.namespace,
            follow=follow,
            tail=tail,
            timeout_s=timeout_s,
            is_over=self._is_over,
        )

    def _is_over(self) -> bool:
        with suppress(Unavailable):
            return self.status().is_final
        return False

    def keep_logs(self, folder: Path | None = None) -> Path:
        """Write the log of every pod to its own file; return the folder."""
        job = self.get() or {}
        uid = str(section(job, "metadata").get("uid") or self.uid)[:8]
        target = folder or home() / "training" / "logs" / self.namespace / f"{self.name}-{uid}"
        target.mkdir(parents=True, exist_ok=True)
        for pod in self.pods(job):
            name = str(section(pod, "metadata")["name"])
            with (target / f"{name}.log").open("w", encoding="utf-8") as file, suppress(NotFound):
                for line in self.cluster.logs(pods=[name], namespace=self.namespace):
                    file.write(f"{line.at} {line.text}\n")
        return target

    def stop(self, *, wait_s: float = _DELETE_S) -> Path:
        """End the job and keep its logs; return their folder.

        A PaddleJob cannot be suspended, since its controller would create the pods again: the job is deleted. A Volcano
        Job is aborted where the cluster accepts commands, and can be resumed.
        """
        job = self.get()
        if job is None:
            raise self._missing()
        kept = self.keep_logs()
        if self.kind == Kind.VOLCANO_JOB:
            with suppress(NotFound):
                self.cluster.create(_abort(job))
                return kept
        self.delete(wait_s=wait_s)
        return kept

    def delete(self, *, wait_s: float = _DELETE_S) -> None:
        """Delete the job with its pods and logs, and wait until it is gone.

        Raises:
            DeadlineExceeded: the job still exists; the message names what its deletion waits for.
        """
        job = self.get()
        if job is None:
            return
        uid = str(section(job, "metadata")["uid"])
        self.cluster.delete(self.kind, self.name, namespace=self.namespace, uid=uid, wait_s=wait_s)

    def scale(self, workers: int) -> None:
        """Change the number of workers of an elastic job.

        Raises:
            InputError: the job is not elastic: the other workers would never learn of the new ones.
        """
        job = self.get()
        if job is None:
            raise self._missing()
        if "elastic" not in section(job, "spec"):
            raise InputError(
                f"{self.name} is not elastic: its pods learn their number only at the start",
                hint="Delete it and submit it again with other replicas.",
            )
        if workers < 1:
            raise InputError(f"{workers} workers: wanted 1 or more")
        change = {"spec": {"worker": {"replicas": workers}}}
        self.cluster.patch(self.kind, self.name, change, namespace=self.namespace)

    @property
    def outputs(self) -> Outputs:
        """The trained model: to be fetched, or packed as a bundle.

        Raises:
            NotFound: the job does not exist.
        """
        job = self.get()
        if job is None:
            raise self._missing()
        return Outputs.of_cluster(job, self.cluster)

    def _groups(self, job: Manifest) -> Sequence[Manifest]:
        """List the job's PodGroups: by owner, since a Volcano Job's group carries the uid in its name."""
        if not self.cluster.capabilities().has(Kind.POD_GROUP):
            return []
        uid = section(job, "metadata").get("uid")
        found = self.cluster.list(Kind.POD_GROUP, namespace=self.namespace)
        return [g for g in found if uid in _owners(g) or section(g, "metadata").get("name") == self.name]

    def _failure(self, status: JobStatus) -> CloudEdgeError:
        if status.state == "gone":
            return TrainingFailed(f"{self.namespace}/{self.name} was deleted", status=status.to_json(), log=[])
        lines: list[str] = []
        with suppress(CloudEdgeError):
            lines = [f"{line.pod}: {line.text}" for line in self.logs(tail=_LAST_LINES)][-_LAST_LINES:]
        why = "".join(f"\n  {text}" for text in (*status.reasons, *lines))
        pods = " Delete the job, not its pods: deleted pods run again." if self.kind == Kind.PADDLE_JOB else ""
        return TrainingFailed(
            f"{self.namespace}/{self.name} {status.state}{why}",
            hint=f"A failed job is never restarted. Fix it, then submit it again with `--replace`.{pods}",
            status=status.to_json(),
            log=lines,
        )

    def _missing(self) -> NotFound:
        return NotFound(
            f"{self.kind.kind} {self.name} does not exist in {self.namespace}",
            hint="Run `cloudedge train list --all-namespaces` to list the jobs.",
        )


def attach(name: str, *, cluster: Cluster, namespace: str = "") -> Run:
    """Return the run of a job that exists on a cluster.

    Raises:
        NotFound: no job has that name.
        Conflict: a PaddleJob and a Volcano Job have that name.
    """
    where = namespace or cluster.namespace
    found = []
    for kind in (Kind.PADDLE_JOB, Kind.VOLCANO_JOB):
        if cluster.capabilities().has(kind):
            job = cluster.get(kind, name, where)
            found += [Run(cluster, kind, name, where, str(section(job, "metadata")["uid"]))] if job else []
    if len(found) > 1:
        raise Conflict(f"{where} has a PaddleJob and a Volcano Job {name}", hint="Delete one of them with `kubectl`.")
    if not found:
        raise NotFound(
            f"the training job {name} does not exist in {where}",
            hint="Run `cloudedge train list --all-namespaces` to list the jobs.",
        )
    return found[0]


def list_runs(*, cluster: Cluster, namespace: str = "", everywhere: bool = False) -> list[JobStatus]:
    """List the training jobs of a namespace, or of all of them, by the status their controllers wrote."""
    found = []
    for kind in (Kind.PADDLE_JOB, Kind.VOLCANO_JOB):
        if cluster.capabilities().has(kind):
            for job in cluster.list(kind, namespace=namespace or None, everywhere=everywhere):
                metadata = section(job, "metadata")
                name, where = str(metadata["name"]), str(metadata["namespace"])
                found.append(status_of(job, name=name, namespace=where, now=cluster.clock.now()))
    return found


def run_of(job: TrainingJob, cluster: Cluster, namespace: str, uid: str = "") -> Run:
    """Return the run that a job has or will have."""
    kind = Kind.VOLCANO_JOB if job.is_volcano else Kind.PADDLE_JOB
    return Run(cluster, kind, job.name, namespace, uid)


def _owners(obj: Manifest) -> set[str]:
    return {str(each.get("uid")) for each in section(obj, "metadata").get("ownerReferences") or []}


def _abort(job: Manifest) -> Manifest:
    metadata = section(job, "metadata")
    owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": metadata["name"], "uid": metadata["uid"]}
    return {
        "apiVersion": Kind.VOLCANO_COMMAND.api_version,
        "kind": Kind.VOLCANO_COMMAND.kind,
        "metadata": {
            "generateName": f"{metadata['name']}-abort-",
            "namespace": metadata["namespace"],
            "ownerReferences": [owner | {"controller": True}],
        },
        "action": "AbortJob",
        "target": owner,
    }
