"""``cloudedge image``: build, push and list the images in `dockerfiles/` through the Docker SDK."""

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
DOCKERFILES = typer.Option(
    None, "--dockerfiles", metavar="DIR", help="The folder of the Dockerfiles; cloudedge's own if left out."
)
EXTRAS = typer.Option(
    [], "--extra", metavar="EXTRA", help="An extra of cloudedge besides those an image needs: s3, bos ..."
)
_ENGINE_TIMEOUT_S = 600  # an engine is silent while it reads a gigabyte of wheels


@app.command()
def build(
    images: list[str] = IMAGES,
    tag: str = TAG,
    base: list[str] = typer.Option([], metavar="BASE", help="Base image; IMAGE=BASE applies to that one only."),
    wheelhouse: list[str] = typer.Option(
        [], metavar="DIR", help="Wheels for a build without network; IMAGE=DIR applies to that one only."
    ),
    extra: list[str] = EXTRAS,
    strict: bool = typer.Option(
        False, "--strict", help="For releases: refuse bases without a digest, packages without hashes, and no tag."
    ),
    dockerfiles: Path | None = DOCKERFILES,
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:
    """Build images. Unchanged layers come from the engine's cache.

    Example: cloudedge image build cube serving --wheelhouse wheels --base my-debian-with-python
    """
    from cloudedge.images import build as build_image  # noqa: PLC0415
    from cloudedge.images import connect, kinds_of, plan_build  # noqa: PLC0415

    planned = plan_build(
        kinds_of(images),
        tag=tag,
        bases=base,
        wheelhouses=wheelhouse,
        extras=extra,
        dockerfiles=dockerfiles,
        strict=strict,
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
    registry: str = typer.Option(..., metavar="HOST[:PORT][/PATH]", help="The registry; the engine's logins apply."),
    tag: str = TAG,
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:
    """Push images to a registry and print their names by digest. Layers the registry has are not sent.

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
    """List the images of the local engine, with the digests of those in a registry."""
    from cloudedge.images import connect, listed  # noqa: PLC0415

    rows = listed(connect())
    if as_json:
        json_out([asdict(row) for row in rows])
        return
    columns = ("kind", "image", "size", "created", "pinned")
    table_out(columns, [(row.kind, row.image, size(row.size), row.created[:19], row.pinned) for row in rows])
    if not rows:
        say("no images; next: cloudedge image build all")


@app.command()
def wheelhouse(
    folder: Path = typer.Argument(..., metavar="DIR", help="The directory to fill; created if missing."),
    images: list[str] = IMAGES,
    python: str = typer.Option(
        "", help="An interpreter of the base image's version; this one, or python3.9 for paddle-serving, if left out."
    ),
    source: Path | None = typer.Option(
        None, help="A checkout or a wheel of cloudedge; this program's own source if left out."
    ),
    extra: list[str] = EXTRAS,
    dockerfiles: Path | None = DOCKERFILES,
    dry_run: bool = DRY_RUN,
) -> None:
    """Fill a directory with the wheels that images are built from: cloudedge and its dependencies.

    Example: cloudedge image wheelhouse wheels cube serving trainer
    """
    from cloudedge.images import kinds_of, lock_wheels, make_wheelhouse, wheel_commands  # noqa: PLC0415

    kinds = kinds_of(images)
    commands = wheel_commands(folder, kinds, python=python, source=source, extras=extra, dockerfiles=dockerfiles)
    if dry_run:
        for command in commands:
            typer.echo(shlex.join(command))
        return
    make_wheelhouse(commands, lambda line: say("  {}", line))
    lock_wheels(folder)
    say("next: cloudedge image build {} --wheelhouse {}", " ".join(kinds), folder)


@app.command()
def lock(folder: Path = typer.Argument(..., metavar="DIR", help="A directory of wheels.")) -> None:
    """Write the hashes of a directory of wheels; a build accepts those wheels and no others.

    `image wheelhouse` does this too. Run it after you replaced a wheel by hand.

    Example: cloudedge image lock wheels
    """
    from cloudedge.images import lock_wheels  # noqa: PLC0415

    typer.echo(lock_wheels(folder))
