"""Services of models in containers: their settings, and the execution of their plans."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cloudedge.errors import InputError, NotFound, Unavailable
from cloudedge.images import Build, build, local_name
from cloudedge.serving.docker._containers import Containers
from cloudedge.serving.docker._service_plan import ServiceStep, WantedService, plan_run, plan_stop

__all__ = ["DockerService", "own_runtime", "stock_runtime"]

OWN_IMAGE, STOCK_IMAGE = local_name("serving"), local_name("paddle-serving")
OWN_PORT, OWN_GRPC_PORT, STOCK_PORT, STOCK_RPC_PORT = 9393, 9395, 9998, 18080
MODELS, CUBE, HOOKS = "/models", "/cube/cube.conf", "/hooks"


def own_runtime(
    name: str, reference: str, digest: str, hub: Path, *, port: int, image: str = "",
    cube: Path | None = None, on_missing_shard: str = "", ops: str = "",
) -> WantedService:  # fmt: skip
    """Return the service that serves a bundle with cloudedge's runtime; the local hub is mounted read-only.

    Args:
        name: Name of the service.
        reference: The bundle.
        digest: The bundle's digest: other bytes under the same reference get another container.
        hub: Directory of the hub.
        port: Port of this machine.
        image: Image instead of the usual one.
        cube: A cube.conf, mounted too; its addresses are those that the container reaches.
        on_missing_shard: As in `cloudedge serve`.
        ops: Hooks, as in `cloudedge serve`; a file of this machine is mounted too.

    Raises:
        InputError: A file does not exist.
    """
    # Open, because only the front shares its network.
    listen = ("--open", "--host", "0.0.0.0", "--port", str(OWN_PORT), "--grpc-port", str(OWN_GRPC_PORT))  # noqa: S104
    command = [reference, "--hub", MODELS, "--service", name, *listen]
    mounts, environment = {MODELS: str(hub.absolute())}, {"CLOUDEDGE_BUNDLE": digest}
    if cube is not None:
        command += ["--cube", CUBE]
        mounts[CUBE], environment["CLOUDEDGE_CUBE_CONF"] = _file(cube)
    if on_missing_shard:
        command += ["--on-missing-shard", on_missing_shard]
    if ops:
        file, _, hooks = ops.rpartition(":")
        inside = f"{HOOKS}/{Path(file).name}" if file.endswith(".py") else file
        command += ["--ops", f"{inside}:{hooks}"]
        if file.endswith(".py"):
            mounts[inside], environment["CLOUDEDGE_HOOKS"] = _file(Path(file))
    return WantedService(
        name, image or OWN_IMAGE, "", tuple(command), mounts, OWN_PORT, port, environment, grpc_port=OWN_GRPC_PORT
    )


def _file(path: Path) -> tuple[str, str]:
    """Return the path and the digest of a file: other bytes get another container."""
    try:
        return str(path.absolute()), hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}", path=str(path)) from error


def stock_runtime(name: str, model: Path, *, port: int, image: str = "") -> WantedService:
    """Return the service that serves a model directory, or an export with one, with stock Paddle Serving."""
    if (model / "serving_server").is_dir():
        model /= "serving_server"
    if not (model / "serving_server_conf.prototxt").is_file():
        raise InputError(
            f"{model} is not a model of Paddle Serving: it has no serving_server_conf.prototxt",
            hint="Write one with `cloudedge serving export`.",
        )
    command = (MODELS, name, str(STOCK_RPC_PORT), str(STOCK_PORT))
    mounts = {MODELS: str(model.absolute())}
    return WantedService(name, image or STOCK_IMAGE, "", command, mounts, STOCK_PORT, port, grpc_port=STOCK_RPC_PORT)


@dataclass
class DockerService:
    """One service on one Docker engine."""

    containers: Containers
    ready_timeout_s: float = 180
    drain_s: float = 5
    """Time that requests under way get in a container that is replaced; longer ones are cut."""

    def plan(self, wanted: WantedService) -> tuple[WantedService, list[ServiceStep]]:
        """Look at the engine and list the steps to the wanted service."""
        wanted = replace(wanted, image_id=self.containers.image_id(wanted.image))
        return wanted, plan_run(wanted, self.containers.found(wanted.name))

    def run(
        self,
        wanted: WantedService,
        how: Callable[[], Build],
        *,
        what: str,
        progress: Callable[[str], None] = lambda _: None,
    ) -> WantedService:
        """Bring a service to its wanted state; idempotent.

        Args:
            wanted: The wanted service.
            how: Returns the build of the image; called only if the engine does not have the image.
            what: A description of the model, for the list of services.
            progress: Called with a line for every step.

        Raises:
            InputError: The image is missing and cannot be built.
            Unavailable: The new container does not get ready; the previous one goes on answering.
        """
        wanted, steps = self.plan(wanted)
        if steps and steps[0].kind == "build":
            progress(f"building {wanted.image}")
            build(self.containers.client, wanted.image, how(), progress)
            wanted, steps = self.plan(wanted)
        for step in steps:
            progress(f"{step.kind} {step.subject}: {step.reason}")
            self._do(step, wanted, what)
        return wanted

    def _do(self, step: ServiceStep, wanted: WantedService, what: str) -> None:
        if step.kind == "start-model":
            self.containers.start_model(wanted, what)
        elif step.kind == "await-ready":
            try:
                self.containers.await_ready(wanted.model_container, self.ready_timeout_s)
            except Unavailable:
                self.containers.remove(wanted.model_container, grace_s=0)  # the engine would restart it forever
                raise
        elif step.kind == "start-front":
            self.containers.start_front(wanted)
        elif step.kind == "switch":
            self.containers.switch(wanted)
        elif step.kind == "drain":
            time.sleep(self.drain_s)
        elif step.kind == "remove":
            self.containers.remove(step.subject)

    def stop(self, name: str, *, dry_run: bool = False) -> Sequence[ServiceStep]:
        """End a service; return the steps, done or planned.

        Raises:
            NotFound: There is no service of that name.
        """
        steps = plan_stop(self.containers.found(name))
        if not steps:
            raise NotFound(f"no service {name!r} runs on this engine", hint="List them with `cloudedge serving ps`.")
        for step in () if dry_run else steps:
            self.containers.remove(step.subject)
        return steps
