"""The status of a PaddleService, read from its Knative Service and its revisions. Pure."""

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
    """The state of a service on Knative."""

    name: str
    ready: bool
    reason: str
    """The reason why it is not ready; empty if it is."""
    url: str
    """Address from outside the cluster."""
    address: str
    """Address from inside the cluster."""
    traffic: Mapping[str, int]
    """Actual percentage by revision."""
    default: Endpoint
    canary: Endpoint | None
    canary_percent: int | None


def split(name: str, percent: int) -> dict[str, int]:
    """Return the share of each revision for a share of the canary; shares of 0 are left out."""
    both = {f"{name}-default": ALL - percent, f"{name}-canary": percent}
    return {revision: share for revision, share in both.items() if share}


def shares(status: Mapping[str, Any]) -> dict[str, int]:
    """Read the share of each revision from a Knative Service's status."""
    found: dict[str, int] = {}
    for each in status.get("traffic") or ():
        if each.get("percent"):
            revision = each.get("revisionName", "")
            found[revision] = found.get(revision, 0) + each["percent"]
    return found


def has_failed(obj: Mapping[str, Any]) -> bool:
    """Return True if Knative gave up; as long as it tries, the condition is `Unknown`."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each.get("status") == "False" for each in conditions)


def readiness(obj: Mapping[str, Any]) -> tuple[bool, str]:
    """Read the condition `Ready` of the current generation; return it with the reason if it is not true."""
    status = obj.get("status") or {}
    if status.get("observedGeneration") != (obj.get("metadata") or {}).get("generation"):
        return False, "Knative has not processed the change yet"
    conditions: dict[str, Mapping[str, Any]] = {each["type"]: each for each in status.get("conditions") or ()}
    ready = conditions.get("Ready", {})
    if ready.get("status") == "True":
        return True, ""
    reason = ": ".join(text for text in (ready.get("reason", ""), ready.get("message", "")) if text)
    return False, reason or "no condition Ready yet"
