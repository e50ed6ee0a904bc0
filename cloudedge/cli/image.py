"""``cloudedge image``: the images in `dockerfiles/`, built, pushed and listed through the Docker SDK."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path

import typer

from cloudedge.cli._output import DRY_RUN, JSON, ProgressBar, json_out, progress_bar, say, size, table_out

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Build, push and list container images.")

IMAGES = typer.Argument(..., metavar="IMAGE...", help="cube, serving, paddle-serving, trainer, pipeline; or all.")
TAG = typer.Option("", "--tag", metavar="TAG", help="The images' tag; latest, for Paddle Serving 0.9.0, if left out.")
DOCKERFILES = typer.Option(None, "--dockerfiles", metavar="DIR", help="Where the Dockerfiles are; our own.")
EXTRAS = typer.Option([], "--extra", metavar="EXTRA", help="Of cloudedge, beside what an image needs: s3, bos, k8s ...")
_ENGINE_TIMEOUT_S = 600  # an engine says nothing while it takes in a gigabyte of wheels


@app.command()
def build(
    images: list[str] = IMAGES,
    tag: str = TAG,
    base: list[str] = typer.Option([], metavar="BASE", help="Base image; IMAGE=BASE is for that one only."),
    wheelhouse: list[str] = typer.Option(
        [], metavar="DIR", help="Wheels to build from, without a network; IMAGE=DIR is for that one only."
    ),
    extra: list[str] = EXTRAS,
    dockerfiles: Path | None = DOCKERFILES,
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:
    """Build images. What has not changed since the last time is taken from the engine's cache.

    Example: cloudedge image build cube serving --wheelhouse wheels --base my-debian-with-python
    """
    from cloudedge.images import build as build_image  # noqa: PLC0415
    from cloudedge.images import connect, kinds_of, plan_build  # noqa: PLC0415

    planned = plan_build(
        kinds_of(images), tag=tag, bases=base, wheelhouses=wheelhouse, extras=extra, dockerfiles=dockerfiles
    )
    rows = [
        {
            "image": image,
            "dockerfile": str(how.dockerfile),
            "base": how.base,
            "wheels": str(how.wheelhouse) if how.is_offline else "",
            "installs": how.requirement,
        }
        for image, how in planned
    ]
    if not dry_run:
        client = connect(_ENGINE_TIMEOUT_S)
        for row, (image, how) in zip(rows, planned, strict=True):
            say("building {}", image)
            row["id"] = build_image(client, image, how, lambda line: say("  {}", line))
    if as_json:
        json_out(rows)
    elif dry_run:
        table_out(tuple(rows[0]), [tuple(row.values()) for row in rows])
    else:
        table_out(("image", "id"), [(row["image"], row["id"]) for row in rows])
        say("next: cloudedge image push {} --registry HOST{}", " ".join(images), f" --tag {tag}" if tag else "")


@app.command()
def push(
    images: list[str] = IMAGES,
    registry: str = typer.Option(..., metavar="HOST[:PORT][/PATH]", help="Where to; the engine's logins are used."),
    tag: str = TAG,
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:
    """Push images to a registry and print the names to pin them by. Layers that are there already are not sent.

    Example: cloudedge image push serving --registry registry.example/ads --tag 3
    """
    from cloudedge.images import connect, kinds_of, plan_push  # noqa: PLC0415
    from cloudedge.images import push as push_image  # noqa: PLC0415

    planned = plan_push(kinds_of(images), registry, tag=tag)
    if dry_run:
        todo = [asdict(each) for each in planned]
        json_out(todo) if as_json else table_out(tuple(todo[0]), [tuple(row.values()) for row in todo])
        return
    client = connect(_ENGINE_TIMEOUT_S)
    done = []
    for each in planned:
        say("pushing {}", each.target)
        with progress_bar(each.target) as bar:

            def moved(settled: int, total: int, bar: ProgressBar = bar) -> None:
                bar.expect(total)
                bar(settled)

            done.append(push_image(client, each, moved))
        if not as_json:
            typer.echo(done[-1].pinned)  # at once: the next push may fail
    if as_json:
        json_out([asdict(pushed) | {"pinned": pushed.pinned} for pushed in done])


@app.command("list")
def list_(as_json: bool = JSON) -> None:
    """List the images this machine's engine has, and the digests of those that are in a registry."""
    from cloudedge.images import connect, listed  # noqa: PLC0415

    rows = listed(connect())
    if as_json:
        json_out([asdict(row) for row in rows])
        return
    columns = ("kind", "image", "size", "created", "pinned")
    table_out(columns, [(row.kind, row.image, size(row.size), row.created[:19], row.pinned) for row in rows])
    if not rows:
        say("none; next: cloudedge image build all")


@app.command()
def wheelhouse(
    folder: Path = typer.Argument(..., metavar="DIR", help="Filled with wheels; made if it is not there."),
    images: list[str] = IMAGES,
    python: str = typer.Option("", help="Of the base image's version; this one, for paddle-serving python3.9."),
    source: Path | None = typer.Option(None, help="A checkout or a wheel of cloudedge; what this program runs from."),
    extra: list[str] = EXTRAS,
    dockerfiles: Path | None = DOCKERFILES,
    dry_run: bool = DRY_RUN,
) -> None:
    """Fill a directory with the wheels that images are built from: cloudedge and all it needs there.

    Example: cloudedge image wheelhouse wheels cube serving trainer
    """
    from cloudedge.images import kinds_of, make_wheelhouse, wheel_commands  # noqa: PLC0415

    kinds = kinds_of(images)
    commands = wheel_commands(folder, kinds, python=python, source=source, extras=extra, dockerfiles=dockerfiles)
    if dry_run:
        for command in commands:
            typer.echo(shlex.join(command))
        return
    make_wheelhouse(commands, lambda line: say("  {}", line))
    say("next: cloudedge image build {} --wheelhouse {}", " ".join(kinds), folder)
