"""``cloudedge serving run | stop | ps | logs``: services in Docker containers on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cloudedge.cli._context import LOCAL, local_hub
from cloudedge.cli._output import DRY_RUN, JSON, json_out, say, table_out
from cloudedge.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from cloudedge.serving.docker import WantedService

__all__ = ["app"]

app = typer.Typer(help="Run services in containers.", no_args_is_help=True)

NAME = typer.Argument(..., help="The service; `cloudedge serving ps` lists them.")


@app.command()
def run(
    model: str = typer.Argument(..., metavar="BUNDLE", help="In the local hub; with --stock an exported folder."),
    docker: bool = typer.Option(False, "--docker", help="In containers of this machine's Docker engine."),
    stock: bool = typer.Option(False, "--stock", help="Run stock Paddle Serving 0.9.0 instead of cloudedge's runtime."),
    name: str = typer.Option("", help="Name of the service; the bundle's, or the folder's, if left out."),
    port: int = typer.Option(9393, min=1, max=65535, help="Port on 127.0.0.1, for HTTP, gRPC and baidu_std."),
    cube: Path | None = typer.Option(None, metavar="CUBE.CONF", help="Read rows from these shards; not with --stock."),
    on_missing_shard: str = typer.Option("", help="error, or default: zeros, counted and reported; not with --stock."),
    ops: str = typer.Option("", metavar="MODULE:NAME", help="Hooks, file.py:Name as well; not with --stock."),
    image: str = typer.Option("", help="Use or make this image; the usual one if left out."),
    base: str = typer.Option("", help="Base of an image that has to be built."),
    wheelhouse: Path | None = typer.Option(None, help="Wheels to build an image from; then no network is needed."),
    dockerfiles: Path | None = typer.Option(None, help="Folder of the Dockerfiles; cloudedge's own if left out."),
    timeout_s: float = typer.Option(180, min=1, help="Longest time for a new container to get ready."),
    drain_s: float = typer.Option(5, min=0, help="Time for requests under way in the replaced container."),
    local: Path = LOCAL,
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:
    """Run a service in containers, or replace its model without downtime.

    A new container starts beside the old one. Once it is ready, a front, which owns the port, sends it all new
    requests, also those on connections that clients keep open. The old one ends after its last request.

    Example: cloudedge serving run ctr:3 --docker --port 9393
    """
    from cloudedge.images import Build  # noqa: PLC0415 - not needed for --help
    from cloudedge.serving.docker import Containers, DockerService  # noqa: PLC0415

    if not docker:
        raise ConfigError(
            "a service runs in containers only with --docker",
            hint=f"Add `--docker`, or run `cloudedge serve {model}` without containers.",
        )
    more = {"cube": cube, "on_missing_shard": on_missing_shard, "ops": ops}
    if stock and any(more.values()):
        raise ConfigError("stock Paddle Serving has no --cube, --on-missing-shard and --ops")
    wanted, what = _stock(model, name, port, image) if stock else _own(model, name, port, image, local, more)
    service = DockerService(Containers(), ready_timeout_s=timeout_s, drain_s=drain_s)
    if dry_run:
        _, steps = service.plan(wanted)
        rows = [(step.kind, step.subject, step.reason) for step in steps]
        columns = ("step", "what", "why")
        json_out([dict(zip(columns, row, strict=True)) for row in rows]) if as_json else table_out(columns, rows)
        return
    wanted = service.run(
        wanted,
        lambda: Build(
            "paddle-serving" if stock else "serving", dockerfiles=dockerfiles, base=base, wheelhouse=wheelhouse
        ),
        what=what,
        progress=lambda line: say("{}", line),
    )
    if as_json:
        json_out({"service": wanted.name, "address": f"127.0.0.1:{port}", "container": wanted.model_container})
        return
    typer.echo(f"http://127.0.0.1:{port}/{wanted.name}/prediction")
    say("next: cloudedge serving logs {}", wanted.name)


def _own(
    reference: str, name: str, port: int, image: str, local: Path | None, more: dict[str, Any]
) -> tuple[WantedService, str]:
    from cloudedge.bundle import Bundle  # noqa: PLC0415
    from cloudedge.config import home  # noqa: PLC0415 - slow to import
    from cloudedge.serving.docker import own_runtime  # noqa: PLC0415

    bundle = Bundle.open(reference, hub=local_hub(local))
    hub = local or home() / "hub"
    wanted = own_runtime(
        name or bundle.name, f"{bundle.name}:{bundle.version}", bundle.digest, hub, port=port, image=image, **more
    )
    return wanted, f"{bundle.name}:{bundle.version}"


def _stock(folder: str, name: str, port: int, image: str) -> tuple[WantedService, str]:
    from cloudedge.serving.docker import stock_runtime  # noqa: PLC0415

    path = Path(folder)
    return stock_runtime(name or path.absolute().name, path, port=port, image=image), str(path.absolute())


@app.command()
def stop(name: str = NAME, dry_run: bool = DRY_RUN) -> None:
    """End a service: its front first, then its model container."""
    from cloudedge.serving.docker import Containers, DockerService  # noqa: PLC0415

    for step in DockerService(Containers()).stop(name, dry_run=dry_run):
        say("{} {}: {}", "would remove" if dry_run else "removed", step.subject, step.reason)


@app.command()
def ps(as_json: bool = JSON) -> None:
    """List services and their containers."""
    from cloudedge.serving.docker import Containers  # noqa: PLC0415

    rows = Containers().services()
    if as_json:
        json_out(rows)
        return
    columns = ("service", "role", "state", "address", "serves", "container")
    table_out(columns, [tuple(row[column] for column in columns) for row in rows])


@app.command()
def logs(
    name: str = NAME,
    tail: int = typer.Option(100, min=1, help="Number of last lines."),
    follow: bool = typer.Option(False, "--follow", "-f", help="Go on as the service writes more."),
) -> None:
    """Print the output of a service's model containers."""
    from cloudedge.serving.docker import Containers  # noqa: PLC0415

    containers = Containers()
    models = [found.name for found in containers.found(name) if found.role == "model"]
    if not models:
        raise NotFound(f"no service {name!r} runs on this engine", hint="List them with `cloudedge serving ps`.")
    for model in models:
        for text in containers.logs(model, tail=tail, follow=follow):
            typer.echo(text, nl=False)
