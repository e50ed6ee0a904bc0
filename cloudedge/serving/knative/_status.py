"""What a PaddleService's Knative Service and its revisions say of themselves. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cloudedge.serving.knative._parts import Endpoint

__all__ = ["ALL", "ServiceStatus", "has_failed", "readiness", "shares", "split"]

ALL = 100
"""Percent."""


@dataclass(frozen=True)
class ServiceStatus:
    """A service as Knative has it."""

    name: str
    ready: bool
    reason: str
    """Why not; empty if it is."""
    url: str
    """From outside."""
    address: str
    """From inside the cluster."""
    traffic: Mapping[str, int]
    """Percent by revision, as it really is."""
    default: Endpoint
    canary: Endpoint | None
    canary_percent: int | None


def split(name: str, percent: int) -> dict[str, int]:
    """Return what each revision gets if the canary gets so much; who gets nothing is left out."""
    both = {f"{name}-default": ALL - percent, f"{name}-canary": percent}
    return {revision: share for revision, share in both.items() if share}


def shares(status: Mapping[str, Any]) -> dict[str, int]:
    """Read from a Knative Service's status what each revision gets."""
    found: dict[str, int] = {}
    for each in status.get("traffic") or ():
        if each.get("percent"):
            revision = each.get("revisionName", "")
            found[revision] = found.get(revision, 0) + each["percent"]
    return found


def has_failed(obj: Mapping[str, Any]) -> bool:
    """Tell whether Knative gave up; as long as it tries, the condition is `Unknown`."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each.get("status") == "False" for each in conditions)


def readiness(obj: Mapping[str, Any]) -> tuple[bool, str]:
    """Read the condition `Ready` by its type, of this generation and not the one before."""
    status = obj.get("status") or {}
    if status.get("observedGeneration") != (obj.get("metadata") or {}).get("generation"):
        return False, "Knative has not looked at the change yet"
    conditions: dict[str, Mapping[str, Any]] = {each["type"]: each for each in status.get("conditions") or ()}
    ready = conditions.get("Ready", {})
    if ready.get("status") == "True":
        return True, ""
    told = ": ".join(text for text in (ready.get("reason", ""), ready.get("message", "")) if text)
    return False, told or "no condition Ready yet"
