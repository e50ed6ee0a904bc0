"""The Docker runtime of a node: units as containers, through Docker's SDK, behind fronts that own the host's ports.

A container publishes its ports on loopback only, each on its unit's private port, so that two versions run side by
side. The engine keeps containers running, also without the agent. Images that the engine does not have are pulled.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cloudedge.edge_bie.node._assemble import Kind
from cloudedge.edge_bie.node._runtime import Login, ObservedService, Supervised
from cloudedge.edge_bie.node._units import ServiceRun, Unit
from cloudedge.errors import NotFound, Rejected, Unavailable
from cloudedge.images import connect, engine_errors
from cloudedge.supervisor import down

__all__ = ["DockerRuntime"]

_NODE, _UNIT, _SERVICE = (f"cloudedge.edge.{name}" for name in ("node", "unit", "service"))
_STOP_S = 15
_TAIL_LINES, _TAIL_BYTES = 12, 4096
"""A server may write a whole model into one line, and BIE keeps 64 KiB of a report."""
_UNITS = {
    "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40,
    "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
}  # fmt: skip


class DockerRuntime:
    """Units as containers.

    Args:
        supervised: Keeps fronts running.
        folder: The node's folder, which identifies its containers.
    """

    kind: Kind = "docker"

    def __init__(self, supervised: Supervised, folder: Path) -> None:
        self._supervised = supervised
        self._mark = hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:12]
        self._client = connect(timeout_s=120)

    def bring_images(self, images: Sequence[str], logins: Sequence[Login]) -> None:
        """Pull images that the engine does not have, with the logins of the app's registries."""
        for image in images:
            if self._known(image):
                continue
            login = next((each for each in logins if image.startswith(f"{each.address.split('://')[-1]}/")), None)
            auth = {"username": login.username, "password": login.password} if login else None
            with engine_errors(f"pull the image {image}"):
                self._client.images.pull(image, auth_config=auth)

    def _known(self, image: str) -> str:
        """Return the engine's name of an image; empty: it has no such image.

        An image that was built here and never pushed has no registry digest; its ID pins it as well.
        """
        for name in (image, image.rpartition("@")[2]):
            with contextlib.suppress(NotFound), engine_errors(f"look for the image {image}"):
                self._client.images.get(name)
                return name
        return ""

    def apply(self, units: Sequence[Unit], targets: Mapping[int, int]) -> None:
        """Run exactly these units, and route ports of the host to private ones."""
        wanted = {self._name(unit, run.name): (unit, run) for unit in units for run in unit.runs}
        found = {str(container.name): container for container in self._containers()}
        for name, (unit, run) in wanted.items():
            container = found.get(name)
            if container is not None and container.labels.get(_SERVICE) != _digest(run):
                self._remove(container)  # an earlier try, with other ports
                container = None
            if container is None:
                self._start(name, unit, run)
            elif container.status in ("created", "exited"):
                with engine_errors(f"start {name}"):
                    container.start()
        self._supervised.aim(targets)
        if self._supervised.keep(self._supervised.fronts(targets)):
            self._supervised.await_fronts(targets)
        for name, container in found.items():
            if name not in wanted:
                self._remove(container)

    def require_ports(self, targets: Mapping[int, int]) -> None:
        """Check that the host's ports are available."""
        self._supervised.require_ports(targets)

    def observe(self, unit: Unit) -> Mapping[str, ObservedService]:
        """Return the state of each service of a unit."""
        try:
            found = {str(container.name): container for container in self._containers()}
        except (NotFound, Rejected, Unavailable) as error:
            return {run.name: ObservedService("Waiting", "NoEngine", error.message) for run in unit.runs}
        return {run.name: _observed(found.get(self._name(unit, run.name))) for run in unit.runs}

    def tail(self, unit: Unit, service: str) -> str:
        """Return the last output of a service."""
        with contextlib.suppress(NotFound, Unavailable, Rejected), engine_errors("read a log"):
            container = self._client.containers.get(self._name(unit, service))
            return str(container.logs(tail=_TAIL_LINES)[-_TAIL_BYTES:].decode(errors="replace"))
        return ""

    def stop(self) -> None:
        """End all units and fronts."""
        self._supervised.keep([])
        down(self._supervised.folder)
        for container in self._containers():
            self._remove(container)

    def _containers(self) -> list[Any]:
        with engine_errors("list containers"):
            return list(
                self._client.containers.list(all=True, filters={"label": f"{_NODE}={self._mark}"}, ignore_removed=True)
            )

    def _name(self, unit: Unit, service: str) -> str:
        return f"cloudedge-{self._mark}-{unit.id}-{service}"

    def _start(self, name: str, unit: Unit, run: ServiceRun) -> None:
        with engine_errors(f"start {name} from {run.image}"):
            self._client.containers.run(
                self._known(run.image) or run.image,
                list(run.argv[run.entry_words :]) or None,
                entrypoint=list(run.argv[: run.entry_words]) or None,
                name=name,
                detach=True,
                labels={_NODE: self._mark, _UNIT: unit.id, _SERVICE: _digest(run)},
                environment=dict(run.env),
                working_dir=run.cwd or None,
                ports={f"{lead.container}/tcp": ("127.0.0.1", lead.private) for lead in run.leads},
                volumes={
                    bind.source: {"bind": bind.path, "mode": "ro" if bind.read_only else "rw"} for bind in run.binds
                },
                restart_policy={"Name": "unless-stopped"},
                healthcheck={"test": ["NONE"]},  # the image's own knows neither this port nor the probes
                log_config={"Type": "json-file", "Config": {"max-size": "20m", "max-file": "3"}},
                privileged=run.privileged,
                **_limits(run),
            )

    def _remove(self, container: Any) -> None:
        with contextlib.suppress(NotFound), engine_errors(f"remove {container.name}"):
            container.stop(timeout=_STOP_S)
            container.remove(force=True)


def _digest(run: ServiceRun) -> str:
    return hashlib.sha256(repr(run).encode()).hexdigest()[:16]


def _limits(run: ServiceRun) -> dict[str, Any]:
    """Return an app's limits in the engine's form: "2" or "500m" processors, "4Gi" of memory, GPUs by count."""
    limits: dict[str, Any] = {}
    if run.cpus:
        limits["nano_cpus"] = int(float(run.cpus[:-1]) * 1e6 if run.cpus.endswith("m") else float(run.cpus) * 1e9)
    if run.memory:
        unit = next((unit for unit in _UNITS if run.memory.endswith(unit)), "")
        limits["mem_limit"] = int(float(run.memory.removesuffix(unit)) * _UNITS.get(unit, 1))
    if run.gpus:
        from docker.types import DeviceRequest  # noqa: PLC0415 - an extra

        # Like `docker run --gpus 2`; an engine without NVIDIA's runtime fails when the container starts.
        limits["device_requests"] = [DeviceRequest(count=run.gpus, capabilities=[["gpu"]])]
    return limits


def _observed(container: Any) -> ObservedService:
    if container is None:
        return ObservedService("Waiting", "ContainerCreating")
    state, restarts = container.attrs["State"], int(container.attrs.get("RestartCount", 0))
    if container.status == "running":
        return ObservedService("Running", restarts=restarts)
    if state.get("OOMKilled"):
        return ObservedService("Waiting", "OOMKilled", restarts=restarts)
    if container.status == "restarting" or restarts:
        return ObservedService("Waiting", "CrashLoopBackOff", f"exit {state.get('ExitCode')}", restarts)
    if container.status == "exited":
        return ObservedService(
            "Terminated", "Error", f"exit {state.get('ExitCode')} {state.get('Error') or ''}".strip(), restarts
        )
    return ObservedService("Waiting", "ContainerCreating", container.status, restarts)
