"""Kubernetes events about an object, and its state in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cloudedge.kube.objects._kinds import Object

__all__ = ["Notice", "read_events", "selector_of", "state_of"]

_LONGEST_TEXT = 300


@dataclass(frozen=True)
class Notice:
    """One Kubernetes event; `Event` is a change that a watch reports."""

    type: str
    """Normal or Warning."""
    reason: str
    message: str
    about: str
    """``Pod/ctr-0``."""
    at: str
    """The last time it happened."""
    count: int = 1

    def __str__(self) -> str:
        times = f" ({self.count} times)" if self.count > 1 else ""
        return f"{self.type} {self.reason} {self.about}: {self.message}{times}"


def selector_of(obj: Object) -> str:
    """Return the field selector for events about an object: by uid, so that a namesake's events do not match."""
    metadata = obj.get("metadata") or {}
    if metadata.get("uid"):
        return f"involvedObject.uid={metadata['uid']}"
    kind = f",involvedObject.kind={obj['kind']}" if obj.get("kind") else ""
    return f"involvedObject.name={metadata.get('name', '')}{kind}"


def read_events(found: Iterable[Object]) -> list[Notice]:
    """Convert Kubernetes events, the oldest first."""
    return sorted((_notice(each) for each in found), key=lambda notice: notice.at)


def _notice(event: Object) -> Notice:
    about = event.get("involvedObject") or {}
    series = event.get("series") or {}
    when = (
        series.get("lastObservedTime")
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or (event.get("metadata") or {}).get("creationTimestamp")
    )
    return Notice(
        type=str(event.get("type") or "Normal"),
        reason=str(event.get("reason") or ""),
        message=" ".join(str(event.get("message") or "").split())[:_LONGEST_TEXT],
        about=f"{about.get('kind', '')}/{about.get('name', '')}",
        at=str(when or ""),
        count=int(event.get("count") or series.get("count") or 1),
    )


def state_of(obj: Mapping[str, Any] | None) -> str:
    """Describe an object's state in a few words: its phase, replicas and the conditions that do not hold."""
    if obj is None:
        return "it does not exist"
    status = obj.get("status") or {}
    words = _deletion(obj.get("metadata") or {})
    if status.get("phase"):
        words.append(f"phase {status['phase']}")
    if isinstance(status.get("state"), Mapping) and status["state"].get("phase"):
        words.append(f"phase {status['state']['phase']}")
    wanted = (obj.get("spec") or {}).get("replicas")
    if wanted is not None and "replicas" in status:
        words.append(f"{status.get('readyReplicas', 0)} of {wanted} replicas ready")
    words += [_condition(each) for each in status.get("conditions") or [] if _is_notable(each)]
    words += [text for each in status.get("containerStatuses") or [] if (text := _container(each))]
    return "; ".join(words) or "it has no status yet"


def _deletion(metadata: Mapping[str, Any]) -> list[str]:
    if not metadata.get("deletionTimestamp"):
        return []
    held = metadata.get("finalizers") or []
    return [f"it is being deleted, and waits for {', '.join(held)}" if held else "it is being deleted"]


def _is_notable(condition: Mapping[str, Any]) -> bool:
    bad = "Failed" in str(condition.get("type")) or "Failure" in str(condition.get("type"))
    return condition.get("status") == ("True" if bad else "False") or condition.get("status") == "Unknown"


def _condition(condition: Mapping[str, Any]) -> str:
    detail = " ".join(filter(None, (condition.get("reason"), condition.get("message"))))
    return f"{condition.get('type')} is {condition.get('status')}" + (f" ({detail[:_LONGEST_TEXT]})" if detail else "")


def _container(container: Mapping[str, Any]) -> str:
    waiting = (container.get("state") or {}).get("waiting")
    if waiting:
        detail = " ".join(filter(None, (waiting.get("reason"), waiting.get("message"))))
        return f"container {container.get('name')} waits: {detail[:_LONGEST_TEXT]}"
    ended = (container.get("state") or {}).get("terminated")
    if ended and ended.get("exitCode"):
        return f"container {container.get('name')} ended with {ended['exitCode']} {ended.get('reason') or ''}".rstrip()
    return ""
