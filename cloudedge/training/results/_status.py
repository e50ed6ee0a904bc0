"""The status of a job, derived from its Kubernetes objects: one set of states for the phases of two controllers.

Pure: objects in, a status out. Phases lag behind the pods by one step, may flip while pods start, and never appear when
no controller watches the namespace; this module compensates for all of that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from cloudedge.training.manifest import Manifest, roles, section
from cloudedge.training.results._explain import explain

__all__ = ["FINAL", "Debounce", "JobStatus", "RoleStatus", "State", "status_of"]

State = Literal["waiting", "running", "succeeded", "failed", "stopped", "deleting", "gone", "unknown"]
FINAL: frozenset[State] = frozenset({"succeeded", "failed", "stopped", "gone"})

_PADDLE: Mapping[str, State] = {
    "": "waiting",
    "Pending": "waiting",
    "Starting": "waiting",
    "Running": "running",
    "Completed": "succeeded",
    "Succeed": "succeeded",
    "Failed": "failed",
    "Aborted": "failed",
    "Terminated": "failed",
    "Terminating": "deleting",
}
_VOLCANO: Mapping[str, State] = {
    "": "waiting",
    "Pending": "waiting",
    "Restarting": "waiting",
    "Running": "running",
    "Completing": "running",
    "Completed": "succeeded",
    "Failed": "failed",
    "Terminating": "running",
    "Terminated": "failed",
    "Aborting": "running",
    "Aborted": "stopped",
}
_COUNTED = {"Pending": "pending", "Running": "running", "Succeeded": "succeeded", "Failed": "failed"}


@dataclass(frozen=True)
class RoleStatus:
    """The progress of the pods of one role."""

    wanted: int
    pending: int = 0
    starting: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0

    def __str__(self) -> str:
        counts = [f"{n} {word}" for word, n in vars(self).items() if n and word != "wanted"]
        return f"{', '.join(counts) or 'no pods'} of {self.wanted}"


@dataclass(frozen=True)
class JobStatus:
    """The state of a job, its pods and the reasons for a delay."""

    name: str
    namespace: str
    state: State
    phase: str = ""
    """The controller's own word."""
    mode: str = ""
    roles: Mapping[str, RoleStatus] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    """The reasons it is not further, from pods and events, with the remedy."""
    started: str = ""
    ended: str = ""
    uid: str = ""

    @property
    def is_final(self) -> bool:
        """True if the state will not change any more."""
        return self.state in FINAL

    def to_json(self) -> dict[str, Any]:
        """Return the status for programs."""
        return {
            **vars(self),
            "roles": {name: vars(role) for name, role in self.roles.items()},
            "reasons": list(self.reasons),
        }


def status_of(
    job: Manifest | None,
    *,
    name: str,
    namespace: str,
    pods: Sequence[Manifest] = (),
    events: Sequence[Any] = (),
    groups: Sequence[Manifest] = (),
    now: datetime,
    ps_done_when_workers_done: bool = False,
) -> JobStatus:
    """Derive the status of a job.

    Args:
        job: The object; None if it does not exist.
        name: Its name.
        namespace: Its namespace.
        pods: The job's pods.
        events: The cluster's events about the job and its pods.
        groups: The job's PodGroups.
        now: The time, to distinguish a slow start from a stuck one.
        ps_done_when_workers_done: Count a job whose workers all succeeded as done, though servers never end.
    """
    if job is None:
        return JobStatus(name, namespace, "gone")
    volcano, status, metadata = job.get("kind") == "Job", section(job, "status"), section(job, "metadata")
    phase = str(section(status, "state").get("phase") if volcano else status.get("phase") or "") or ""
    phase = "" if phase == "None" else phase
    state = (_VOLCANO if volcano else _PADDLE).get(phase, "unknown")
    counts = _from_pods(job, pods) if pods else _from_tasks(job, status) if volcano else _from_status(job, status)
    if metadata.get("deletionTimestamp"):
        state = "deleting"
    elif not volcano:
        state = _caught_up(state, counts, done_early=ps_done_when_workers_done)
    reasons = explain(job, state=state, pods=pods, events=events, groups=groups, now=now)
    return JobStatus(
        name,
        namespace,
        state,
        phase,
        str(status.get("mode") or "") if not volcano else "Tasks",
        counts,
        tuple(reasons),
        str(status.get("startTime") or metadata.get("creationTimestamp") or ""),
        str(status.get("completionTime") or ""),
        str(metadata.get("uid") or ""),
    )


def _from_pods(job: Manifest, pods: Sequence[Manifest]) -> dict[str, RoleStatus]:
    found: dict[str, RoleStatus] = {}
    for name, _, role in roles(job):
        mine = [pod for pod in pods if role_of(pod) == name]
        phases = [_COUNTED.get(str(section(pod, "status").get("phase")), "pending") for pod in mine]
        ready = [_is_ready(pod) for pod in mine]
        words = ["starting" if p == "running" and not r else p for p, r in zip(phases, ready, strict=True)]
        found[name] = RoleStatus(int(role.get("replicas") or 0), **{w: words.count(w) for w in set(words)})
    return found


def _from_status(job: Manifest, status: Manifest) -> dict[str, RoleStatus]:
    """Read the controller's own counters: zeros are omitted, and all are lost when pods are cleaned up."""
    found = {}
    for name, _, role in roles(job):
        counters = section(status, name)
        known = {
            word: int(counters.get(word) or 0) for word in ("pending", "starting", "running", "succeeded", "failed")
        }
        found[name] = RoleStatus(int(role.get("replicas") or 0), **known)
    return found


def _from_tasks(job: Manifest, status: Manifest) -> dict[str, RoleStatus]:
    """Read Volcano's counters, by task and by the phase of its pods."""
    found = {}
    for name, _, task in roles(job):
        phases = section(status, "taskStatusCount", name, "phase")
        known = {word: int(phases.get(phase) or 0) for phase, word in _COUNTED.items()}
        found[name] = RoleStatus(int(task.get("replicas") or 0), **known)
    return found


def _is_ready(pod: Manifest) -> bool:
    containers = section(pod, "status").get("containerStatuses") or []
    return bool(containers) and all(each.get("ready") for each in containers if isinstance(each, dict))


def _caught_up(state: State, counts: Mapping[str, RoleStatus], *, done_early: bool) -> State:
    """Correct a phase that lags behind the pods."""
    workers = counts.get("worker")
    if state in {"succeeded", "failed"}:
        return state
    if any(role.failed for role in counts.values()):
        return "failed"
    if counts and all(role.succeeded == role.wanted > 0 for role in counts.values()):
        return "succeeded"
    if done_early and workers and workers.succeeded == workers.wanted > 0:
        return "succeeded"
    return state


def role_of(pod: Manifest) -> str:
    """Return the role or task of a pod."""
    labels = section(pod, "metadata", "labels")
    annotations = section(pod, "metadata", "annotations")
    return str(
        labels.get("paddle-res-type")
        or annotations.get("paddle-resource")
        or labels.get("volcano.sh/task-spec")
        or annotations.get("volcano.sh/task-spec")
        or ""
    )


class Debounce:
    """Reports a state once it has lasted, or at once if it is final: phases flip while pods start.

    Args:
        settle_s: How long a state must last.
    """

    def __init__(self, settle_s: float = 2.0) -> None:
        self._settle_s = settle_s
        self._shown: State | None = None
        self._coming: tuple[State, float] | None = None

    def settled(self, state: State, now_s: float) -> bool:
        """Record an observed state; return whether it is a change to report."""
        if state == self._shown:
            self._coming = None
            return False
        if self._shown is None or state in FINAL:
            self._shown, self._coming = state, None
            return True
        if self._coming is None or self._coming[0] != state:
            self._coming = (state, now_s)
        if now_s - self._coming[1] >= self._settle_s:
            self._shown, self._coming = state, None
            return True
        return False
