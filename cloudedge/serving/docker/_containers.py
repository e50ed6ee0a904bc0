"""The containers of services on a Docker engine, through its SDK: labels, one network, and the front's target."""

from __future__ import annotations

import contextlib
import io
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudedge.errors import NotFound, Unavailable
from cloudedge.http1 import switching_proxy
from cloudedge.images import connect, engine_errors
from cloudedge.serving.docker._service_plan import Found, WantedService

if TYPE_CHECKING:
    from docker.models.containers import Container

__all__ = ["Containers", "engine_errors"]

SERVICE, ROLE, PORT, WHAT = (f"cloudedge.serving.{name}" for name in ("service", "role", "port", "what"))
NETWORK = "cloudedge-serving"
FRONT_PORT = 8080
FRONT = Path(switching_proxy.__file__)
FRONT_FOLDER = "/front"


class Containers:
    """The containers of services on one engine."""

    def __init__(self) -> None:
        self.client = connect()

    def found(self, service: str) -> list[Found]:
        """List the containers of one service."""
        with engine_errors(f"list the containers of {service}"):
            return [_found(container) for container in self._labelled(f"{SERVICE}={service}")]

    def services(self) -> list[dict[str, Any]]:
        """List all services with state and address, for people and programs."""
        with engine_errors("list services"):
            containers = self._labelled(SERVICE)
            rows = []
            for container in containers:
                found = _found(container)
                state = "ready" if found.ready else container.status
                rows.append(
                    {
                        "service": container.labels[SERVICE],
                        "role": found.role,
                        "container": found.name,
                        "state": state,
                        "address": f"127.0.0.1:{found.host_port}" if found.host_port else "",
                        "serves": container.labels.get(WHAT, ""),
                    }
                )
            return sorted(rows, key=lambda row: (row["service"], row["role"]))

    def _labelled(self, label: str) -> list[Container]:
        listed: list[Container] = self.client.containers.list(all=True, filters={"label": label}, ignore_removed=True)
        return listed

    def image_id(self, image: str) -> str:
        """Return the id of an image; empty if the engine does not have it."""
        with contextlib.suppress(NotFound), engine_errors(f"look for the image {image}"):
            return str(self.client.images.get(image).id)
        return ""

    def start_model(self, wanted: WantedService, what: str) -> None:
        """Start the model container; it gets no requests yet, and no port of this machine leads to it."""
        with engine_errors(f"start {wanted.model_container}"):
            self._network()
            self.client.containers.run(
                wanted.image,
                list(wanted.command),
                name=wanted.model_container,
                labels={SERVICE: wanted.name, ROLE: "model", WHAT: what},
                network=NETWORK,
                environment=dict(wanted.environment),
                volumes={source: {"bind": inside, "mode": "ro"} for inside, source in wanted.mounts.items()},
                restart_policy={"Name": "unless-stopped"},
                **_confined(),
            )

    def start_front(self, wanted: WantedService) -> None:
        """Start the front with the wanted container as its target."""
        with engine_errors(f"start {wanted.front_container} on port {wanted.host_port}"):
            self._network()
            container = self.client.containers.create(
                wanted.image,
                [f"{FRONT_FOLDER}/front.py", str(FRONT_PORT), f"{FRONT_FOLDER}/target"],
                entrypoint=["python3"],
                name=wanted.front_container,
                labels={SERVICE: wanted.name, ROLE: "front", PORT: str(wanted.host_port)},
                network=NETWORK,
                ports={f"{FRONT_PORT}/tcp": ("127.0.0.1", wanted.host_port)},
                healthcheck={"test": ["NONE"]},
                restart_policy={"Name": "unless-stopped"},
                **_confined(),
            )
            try:
                container.put_archive("/", _tar({f"{FRONT_FOLDER}/front.py": FRONT.read_bytes(), **_target(wanted)}))
                container.start()
            except BaseException:
                container.remove(force=True)
                raise

    def switch(self, wanted: WantedService) -> None:
        """Switch the front to the wanted container."""
        with engine_errors(f"turn {wanted.front_container} to {wanted.model_container}"):
            front = self.client.containers.get(wanted.front_container)
            front.put_archive("/", _tar(_target(wanted)))
            front.kill("HUP")

    def await_ready(self, name: str, timeout_s: float) -> None:
        """Wait until a container's health check passes.

        Raises:
            Unavailable: It ended, or was not ready in time; the hint is its last output.
        """
        deadline = time.monotonic() + timeout_s
        with engine_errors(f"wait for {name}"):
            container = self.client.containers.get(name)
            while not _is_ready(container):
                restarts = container.attrs.get("RestartCount", 0)
                if container.status == "exited" or restarts or time.monotonic() > deadline:
                    last = container.logs(tail=20).decode(errors="replace").strip()
                    reason = "it ended" if container.status == "exited" or restarts else f"not within {timeout_s:g} s"
                    raise Unavailable(f"{name} does not get ready: {reason}", hint=last, container=name)
                time.sleep(0.2)
                container.reload()

    def remove(self, name: str, grace_s: int = 30) -> None:
        """Let a container finish, stop and remove it; a missing one is no error."""
        with contextlib.suppress(NotFound), engine_errors(f"remove {name}"):
            container = self.client.containers.get(name)
            container.stop(timeout=grace_s)
            container.remove(force=True)

    def logs(self, name: str, *, tail: int, follow: bool) -> Iterator[str]:
        """Yield the output of a container, line by line or piece by piece."""
        with engine_errors(f"read the output of {name}"):
            container = self.client.containers.get(name)
            if not follow:
                yield container.logs(tail=tail).decode(errors="replace")
                return
            for piece in container.logs(tail=tail, follow=True, stream=True):
                yield piece.decode(errors="replace")

    def _network(self) -> None:
        if not self.client.networks.list(names=[f"^{NETWORK}$"]):
            self.client.networks.create(NETWORK, driver="bridge", check_duplicate=True)


def _confined() -> dict[str, Any]:
    return {
        "detach": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "log_config": {"Type": "json-file", "Config": {"max-size": "20m", "max-file": "3"}},
    }


def _found(container: Container) -> Found:
    labels = container.labels
    return Found(
        name=container.name or "",
        role="front" if labels.get(ROLE) == "front" else "model",
        running=container.status == "running",
        ready=_is_ready(container),
        host_port=int(labels.get(PORT, 0)),
        image_id=container.attrs["Image"],
    )


def _is_ready(container: Container) -> bool:
    state = container.attrs["State"]
    health = state.get("Health") or {}
    # A front has no health check: it answers as soon as it runs, or it ends.
    return bool(state["Running"]) and health.get("Status", "none") in {"healthy", "none"}


def _target(wanted: WantedService) -> dict[str, bytes]:
    ports = {"target": wanted.container_port, "target.grpc": wanted.grpc_port or wanted.container_port}
    return {f"{FRONT_FOLDER}/{file}": f"{wanted.model_container}:{port}\n".encode() for file, port in ports.items()}


def _tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, content in files.items():
            member = tarfile.TarInfo(path.lstrip("/"))
            member.size, member.mode = len(content), 0o644
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()
