"""Plans for services in containers: the steps from the containers found to the wanted service. Touches no engine.

A service is one front, which owns the published port, and one model container behind it. A model container is never
changed: any difference gets a new container. The plan waits until that is ready, switches the front to it, and only
then stops the previous one. Every step can be repeated, so the next run finishes an interrupted one.
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
    """The wanted state of a service."""

    name: str
    image: str
    image_id: str
    """Empty while the image is missing; part of the container's identity, so that a new build replaces it."""
    command: tuple[str, ...]
    mounts: Mapping[str, str]
    """Paths of this machine by path in the container, read-only."""
    container_port: int
    host_port: int
    environment: Mapping[str, str] = field(default_factory=dict)
    grpc_port: int = 0
    """The container's gRPC port; the front forwards gRPC to it from the same published port. 0: none."""

    @property
    def digest(self) -> str:
        """Hash of everything that distinguishes a model container from another."""
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
    """A container on the engine."""

    name: str
    role: Role
    running: bool
    ready: bool = False
    """Its health check passes."""
    host_port: int = 0
    """The published port of a front."""
    image_id: str = ""


@dataclass(frozen=True)
class ServiceStep:
    """One step of a plan, with its reason."""

    kind: Kind
    subject: str
    reason: str


def plan_run(wanted: WantedService, found: Sequence[Found]) -> list[ServiceStep]:
    """List the steps from the containers found to the wanted service."""
    models = {container.name: container for container in found if container.role == "model"}
    front = next((container for container in found if container.role == "front"), None)
    current = models.get(wanted.model_container) if wanted.image_id else None
    steps = []
    if not wanted.image_id:
        steps.append(ServiceStep("build", wanted.image, "the engine does not have it"))
    if current is not None and not current.running:
        steps.append(ServiceStep("remove", current.name, "it has ended"))
        current = None
    if current is None:
        steps.append(ServiceStep("start-model", wanted.image, "no container runs this"))
    if current is None or not current.ready:
        steps.append(ServiceStep("await-ready", wanted.name, "only a ready container may get requests"))
    if front is not None and (not front.running or front.host_port != wanted.host_port):
        reason = "it has ended" if not front.running else f"it listens on port {front.host_port}"
        steps.append(ServiceStep("remove", front.name, reason))
        front = None
    if front is None:
        steps.append(ServiceStep("start-front", wanted.front_container, f"port {wanted.host_port} needs a listener"))
    else:
        steps.append(
            ServiceStep("switch", wanted.front_container, "new requests go to the wanted container from here on")
        )
    others = [container for name, container in models.items() if current is None or name != current.name]
    others = [container for container in others if container.name != wanted.model_container]
    if front is not None and any(container.running for container in others):
        steps.append(ServiceStep("drain", wanted.name, "requests under way end where they began"))
    steps += [ServiceStep("remove", container.name, "it gets no more requests") for container in others]
    return steps


def plan_stop(found: Sequence[Found]) -> list[ServiceStep]:
    """List the steps that end a service: the front first, so that no request reaches a container that stops."""
    order = sorted(found, key=lambda container: container.role != "front")
    return [ServiceStep("remove", container.name, "the service ends") for container in order]
