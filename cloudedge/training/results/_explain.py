"""Reasons why a job is not further, derived from its pods, groups and events, with the remedy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from cloudedge.training.manifest import Manifest, mappings, section

__all__ = ["explain"]

GRACE_S = 120.0
"""The time for which CreateContainerConfigError is normal: containers wait for a ConfigMap that the controller writes
once all pods have an address."""
SILENCE_S = 20.0
"""The time a controller may take to react at all."""
_MOST = 8
_LONGEST = 300

_WAITING = {
    "ErrImagePull": "The image cannot be pulled: check its name and imagePullSecrets.",
    "ImagePullBackOff": "The image cannot be pulled: check its name and imagePullSecrets.",
    "ErrImageNeverPull": "The node does not have the image, and imagePullPolicy is Never.",
    "InvalidImageName": "The image's name is not valid.",
    "CrashLoopBackOff": "The container ends again and again; see its log.",
    "CreateContainerError": "",
    "RunContainerError": "",
}


def explain(
    job: Manifest,
    *,
    state: str,
    pods: Sequence[Manifest],
    events: Sequence[Any],
    groups: Sequence[Manifest],
    now: datetime,
) -> list[str]:
    """Return the known reasons, the most informative first."""
    if state == "deleting":
        return list(_deletion(job, now))
    found = [reason for pod in pods for reason in _pod(pod, pods, now)]
    if state in {"waiting", "unknown"}:
        found += [reason for group in groups for reason in _group(group)]
        found += _nothing_happens(job, pods, events, groups, now)
    if state in {"succeeded", "failed"} and job.get("kind") == "PaddleJob":
        found += [reason for group in groups for reason in _left_behind(group)]
    if state != "succeeded":
        warnings = [event for event in events if getattr(event, "type", "") == "Warning"]
        found += [f"{event.about}: {event.reason}: {event.message}"[:_LONGEST] for event in warnings[-_MOST:]]
    return list(dict.fromkeys(found))[:_MOST]


def _pod(pod: Manifest, pods: Sequence[Manifest], now: datetime) -> Iterator[str]:
    name, status = section(pod, "metadata").get("name"), section(pod, "status")
    if status.get("reason") in {"Evicted", "NodeLost", "OutOfcpu", "OutOfmemory", "DeadlineExceeded"}:
        yield f"pod {name}: {status['reason']}: {status.get('message', '')}"[:_LONGEST]
    for each in mappings(status.get("conditions")):
        if each.get("type") == "PodScheduled" and each.get("status") == "False":
            yield f"pod {name} has no node: {each.get('message', '')}"[:_LONGEST]
    for each in (*mappings(status.get("initContainerStatuses")), *mappings(status.get("containerStatuses"))):
        yield from _container(str(name), each, pod, pods, now)


def _container(name: str, status: Manifest, pod: Manifest, pods: Sequence[Manifest], now: datetime) -> Iterator[str]:
    ended = section(status, "state", "terminated")
    if ended and ended.get("exitCode"):
        why = f" ({ended['reason']})" if ended.get("reason") not in {None, "Error"} else ""
        more = " It needs more memory than its limit." if ended.get("reason") == "OOMKilled" else ""
        yield f"pod {name} ended with {ended['exitCode']}{why}.{more}"
    waiting = section(status, "state", "waiting")
    reason = waiting.get("reason")
    if reason == "CreateContainerConfigError":
        if _age_s(pod, now) > GRACE_S:
            missing = [section(p, "metadata").get("name") for p in pods if not section(p, "status").get("podIP")]
            addressless = f" Without an address: {', '.join(map(str, missing))}." if missing else ""
            problem = (
                f"pod {name} waits for its configuration for more than {GRACE_S:.0f} s: {waiting.get('message', '')}"
            )
            yield f"{problem}.{addressless}"[:_LONGEST]
    elif reason in _WAITING:
        yield f"pod {name}: {reason}: {waiting.get('message', '')} {_WAITING[str(reason)]}".rstrip()[:_LONGEST]


def _group(group: Manifest) -> Iterator[str]:
    name, status = section(group, "metadata").get("name"), section(group, "status")
    if status.get("phase") in {"Pending", "Unknown"}:
        words = [f"{each.get('reason')}: {each.get('message')}" for each in mappings(status.get("conditions"))[-1:]]
        queue = section(group, "spec").get("queue") or "default"
        reason = f"Volcano has not admitted PodGroup {name} (queue {queue}): {'; '.join(words) or 'no reason given'}."
        yield f"{reason} A full queue looks like this. Run `kubectl get queue {queue}` to see it."


def _left_behind(group: Manifest) -> Iterator[str]:
    name = section(group, "metadata").get("name")
    yield (
        f"PodGroup {name} is left behind: PaddleCloud and paddle-operator's sampleset branch do not delete it when "
        "the job ends. Run `cloudedge train delete` to delete it with the job."
    )


def _nothing_happens(
    job: Manifest, pods: Sequence[Manifest], events: Sequence[Any], groups: Sequence[Manifest], now: datetime
) -> Iterator[str]:
    if pods or _age_s(job, now) < SILENCE_S:
        return
    where = section(job, "metadata").get("namespace")
    volcano = job.get("kind") == "Job"
    if not section(job, "status") and not events:
        yield (
            f"nothing has touched this job for {_age_s(job, now):.0f} s: no controller watches the namespace {where}. "
            + (
                "Check that Volcano's controller runs."
                if volcano
                else "PaddleCloud watches its release's namespace only, paddle-operator's Helm chart paddle-system."
            )
        )
    elif not volcano and not groups and section(job, "spec").get("schedulingPolicy") is not None:
        yield "no pods and no PodGroup yet: check that the controller runs with --scheduling=volcano."


def _deletion(job: Manifest, now: datetime) -> Iterator[str]:
    finalizers = section(job, "metadata").get("finalizers") or []
    since = _moment(section(job, "metadata").get("deletionTimestamp"))
    if finalizers and since and (now - since).total_seconds() > SILENCE_S:
        yield (
            f"deletion waits for {', '.join(map(str, finalizers))}: the controller that removes it does not run, or "
            "does not watch this namespace. Start it, or, if it is gone for good, patch metadata.finalizers to null."
        )


def _age_s(obj: Mapping[str, Any], now: datetime) -> float:
    made = _moment(section(obj, "metadata").get("creationTimestamp"))
    return (now - made).total_seconds() if made else 0.0


def _moment(text: Any) -> datetime | None:
    try:
        return datetime.strptime(str(text), "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
    except ValueError:
        return None
