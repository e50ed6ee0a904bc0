"""Runs a model as a service in containers: plans, then does."""

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
    """Say how our runtime serves a bundle of a local hub: the hub is mounted read-only.

    Args:
        name: Of the service.
        reference: The bundle.
        digest: Its own: other bytes under the same reference are another container.
        hub: Where it is.
        port: Of this machine.
        image: Other than the usual one.
        cube: A cube.conf, mounted too; the addresses in it are those that the container reaches.
        on_missing_shard: As `cloudedge serve` takes it.
        ops: Hooks, as `cloudedge serve` takes them; a file of this machine is mounted too.

    Raises:
        InputError: a file is not there.
    """
    # Its own network has the front in it and nobody else.
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
    """Return where a file is and what its bytes are: others in it are another container, too."""
    try:
        return str(path.absolute()), hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}", path=str(path)) from error


def stock_runtime(name: str, model: Path, *, port: int, image: str = "") -> WantedService:
    """Say how stock Paddle Serving serves a directory in its own form, or an export that holds one, read-only."""
    if (model / "serving_server").is_dir():
        model /= "serving_server"
    if not (model / "serving_server_conf.prototxt").is_file():
        raise InputError(
            f"{model} is not a model of Paddle Serving: it has no serving_server_conf.prototxt",
            hint="cloudedge serving export writes one",
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
    """How long requests may still be under way in a container that is replaced; longer ones are cut."""

    def plan(self, wanted: WantedService) -> tuple[WantedService, list[ServiceStep]]:
        """Look at the engine and list what has to be done."""
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
        """Make a service be as wanted; doing it twice is doing it once.

        Args:
            wanted: The service as it should be.
            how: Says how to build the image; asked only where the engine does not have it.
            what: What is served, for people who list services.
            progress: Told of every step.

        Raises:
            InputError: the image is to be built and cannot be.
            Unavailable: the new container does not get ready; what ran before goes on running.
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
                self.containers.remove(wanted.model_container, grace_s=0)  # or it would be started over and over
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
        """End a service; returns what was done, or would be.

        Raises:
            NotFound: there is none of that name.
        """
        steps = plan_stop(self.containers.found(name))
        if not steps:
            raise NotFound(f"no service {name!r} runs on this engine", hint="cloudedge serving ps")
        for step in () if dry_run else steps:
            self.containers.remove(step.subject)
        return steps
