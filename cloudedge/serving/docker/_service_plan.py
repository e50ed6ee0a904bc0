"""Decides what has to happen so that a service runs in containers as wanted. Touches no engine.

A service is one front, which owns the published port, and one model container behind it. A model container is never
changed: what differs in anything gets a container of its own, is waited for, and the front is turned to it; only then
the one before is stopped. Every step can be repeated, so a run that was cut short is finished by the next one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

__all__ = ["Found", "ServiceStep", "WantedService", "plan_run", "plan_stop"]

Role = Literal["front", "model"]
Kind = Literal["build", "start-model", "await-ready", "start-front", "switch", "drain", "remove"]


@dataclass(frozen=True)
class WantedService:
    """A service as it should be."""

    name: str
    image: str
    image_id: str
    """Empty while the image is not there; part of what a container is, so that a new build replaces it."""
    command: tuple[str, ...]
    mounts: Mapping[str, str]
    """Paths of this machine by where the container sees them, read-only."""
    container_port: int
    host_port: int
    environment: Mapping[str, str] = field(default_factory=dict)
    grpc_port: int = 0
    """Of the container; the front passes gRPC on to it from the same published port. 0: it speaks none."""

    @property
    def digest(self) -> str:
        """Name everything that makes a model container different from another."""
        facts = asdict(self)
        del facts["host_port"]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def model_container(self) -> str:
        return f"cloudedge-{self.name}-{self.digest}"

    @property
    def front_container(self) -> str:
        return f"cloudedge-{self.name}-front"


@dataclass(frozen=True)
class Found:
    """A container that the engine has."""

    name: str
    role: Role
    running: bool
    ready: bool = False
    """Its health check passes."""
    host_port: int = 0
    """Where a front listens."""
    image_id: str = ""


@dataclass(frozen=True)
class ServiceStep:
    """One thing to do, and why."""

    kind: Kind
    subject: str
    reason: str


def plan_run(wanted: WantedService, found: Sequence[Found]) -> list[ServiceStep]:
    """List what brings a service from what was found to what is wanted."""
    models = {container.name: container for container in found if container.role == "model"}
    front = next((container for container in found if container.role == "front"), None)
    ours = models.get(wanted.model_container) if wanted.image_id else None
    steps = []
    if not wanted.image_id:
        steps.append(ServiceStep("build", wanted.image, "the engine does not have it"))
    if ours is not None and not ours.running:
        steps.append(ServiceStep("remove", ours.name, "it has ended"))
        ours = None
    if ours is None:
        steps.append(ServiceStep("start-model", wanted.image, "no container runs this"))
    if ours is None or not ours.ready:
        steps.append(ServiceStep("await-ready", wanted.name, "only what answers may be switched to"))
    if front is not None and (not front.running or front.host_port != wanted.host_port):
        why = "it has ended" if not front.running else f"it listens on port {front.host_port}"
        steps.append(ServiceStep("remove", front.name, why))
        front = None
    if front is None:
        steps.append(
            ServiceStep("start-front", wanted.front_container, f"port {wanted.host_port} has to be listened on")
        )
    else:
        steps.append(
            ServiceStep("switch", wanted.front_container, "new requests go to the wanted container from here on")
        )
    others = [container for name, container in models.items() if ours is None or name != ours.name]
    others = [container for container in others if container.name != wanted.model_container]
    if front is not None and any(container.running for container in others):
        steps.append(ServiceStep("drain", wanted.name, "requests under way end where they began"))
    steps += [ServiceStep("remove", container.name, "nothing goes to it any more") for container in others]
    return steps


def plan_stop(found: Sequence[Found]) -> list[ServiceStep]:
    """List what ends a service: the front first, so that nobody is sent to what is going away."""
    order = sorted(found, key=lambda container: container.role != "front")
    return [ServiceStep("remove", container.name, "the service ends") for container in order]
