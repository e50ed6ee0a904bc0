"""``cloudedge serving``: export bundles to stock Paddle Serving, and load them into running servers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cloudedge.cli._context import LOCAL, configuration, local_hub, named_hub
from cloudedge.cli._output import DRY_RUN, JSON, json_out, say, table_out
from cloudedge.cli.bundle import REF

if TYPE_CHECKING:
    from cloudedge.bundle import Bundle
    from cloudedge.serving import HotLoad
    from cloudedge.serving.conf import ClientVariant

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Hand bundles to a stock Paddle Serving 0.9.")

TARGET = typer.Option(
    "paddle-serving-0.9",
    "--for",
    metavar="TARGET",
    help="paddle-serving-0.9 (the C++ server) or paddle-serving-0.9-pipeline (the Pipeline service alone).",
)


@app.command()
def export(
    ref: str = REF,
    output: Path = typer.Option(..., metavar="DIR", help="A new folder."),
    target: str = TARGET,
    port: int = typer.Option(9393, help="Port of the C++ server."),
    http_port: int = typer.Option(18080, help="Port of the Pipeline service; its gRPC port is one below."),
    cube_conf: Path | None = typer.Option(None, metavar="FILE", help="A cube.conf, for a bundle with tables."),
    variant: list[str] = typer.Option(
        [], metavar="TAG:WEIGHT:HOST:PORT[,HOST:PORT]", help="Servers for predictors.prototxt; may be given again."
    ),
    local: Path = LOCAL,
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:
    """Write a folder that a stock Paddle Serving can run; refuse a bundle that it cannot run."""
    from cloudedge.bundle import Bundle  # noqa: PLC0415 - numpy is not needed for --help
    from cloudedge.serving import export as export_plan  # noqa: PLC0415
    from cloudedge.serving import plan_export  # noqa: PLC0415

    bundle = Bundle.open(ref, hub=local_hub(local))
    shards = cube_conf.read_text() if cube_conf else ""
    variants = [_variant(text) for text in variant]
    plan = plan_export(bundle, target, port=port, http_port=http_port, cube_conf=shards, variants=variants)
    if not dry_run:
        export_plan(bundle, plan, output)
    if as_json:
        json_out({"folder": str(output.absolute()), "target": target, "files": sorted(plan.files), "notes": plan.notes})
        return
    for note in plan.notes:
        say("[yellow]note[/]: {}", note)
    if dry_run:
        table_out(("file",), [(path,) for path in sorted(plan.files)])
        return
    typer.echo(output.absolute())
    if "proj.conf" in plan.files:
        say("next: cd {} && $SERVING_BIN --flagfile=proj.conf", output)
    else:
        say("next: cd {} && python web_service.py", output)


def _variant(text: str) -> ClientVariant:
    from cloudedge.serving.conf import ClientVariant  # noqa: PLC0415

    tag, _, rest = text.partition(":")
    weight, _, endpoints = rest.partition(":")
    if not (tag and weight.isdecimal() and endpoints):
        raise typer.BadParameter(f"{text!r} is not TAG:WEIGHT:HOST:PORT[,HOST:PORT]", param_hint="--variant")
    return ClientVariant(tag, tuple(endpoints.split(",")), int(weight))


@app.command("hot-load")
def hot_load(
    ref: str = REF,
    live: Path | None = typer.Option(None, metavar="DIR", help="The model directory of a running C++ server."),
    publish: Path | None = typer.Option(
        None, metavar="DIR", help="The folder that paddle_serving_server.monitor fetches from."
    ),
    model: str = typer.Option("model", help="With --publish: MODEL.tar, holding the folder MODEL."),
    donefile: str = typer.Option("donefile", help="With --publish: the file whose time announces a new model."),
    target: str = TARGET,
    source: str | None = typer.Option(None, "--from", metavar="HUB", help="Pull it from this hub first."),
    is_followed: bool = typer.Option(False, "--follow", help="Go on, and hand over each new bundle that REF names."),
    every_s: float = typer.Option(5.0, "--every", min=0.1, help="With --follow: seconds between two looks."),
    local: Path = LOCAL,
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:
    """Hand a bundle to running stock servers: into their model directory, or to the monitor that fills it.

    Example: cloudedge serving hot-load ctr:prod --from s3://models --live out/ctr/serving_server --follow
    """
    from cloudedge.bundle import Bundle  # noqa: PLC0415
    from cloudedge.errors import CloudEdgeError  # noqa: PLC0415
    from cloudedge.serving import follow, load_into, plan_export, publish_for_monitor  # noqa: PLC0415

    places = [place for place in (live, publish) if place is not None]
    if len(places) != 1:
        raise typer.BadParameter("give either --live or --publish", param_hint="--live")
    if is_followed and dry_run:
        raise typer.BadParameter("--follow changes servers repeatedly", param_hint="--dry-run")
    hub = local_hub(local)
    remote_hub = None if source is None else named_hub(source, configuration())

    def find() -> Bundle:
        return Bundle.open(ref, hub=hub) if remote_hub is None else Bundle.pull(ref, remote_hub, hub=hub)

    def hand_over(bundle: Bundle) -> HotLoad:
        plan = plan_export(bundle, target)
        if live is not None:
            return load_into(bundle, plan, live, dry_run=dry_run)
        return publish_for_monitor(bundle, plan, places[0], model=model, donefile=donefile, dry_run=dry_run)

    if not is_followed:
        bundle = find()
        _show(bundle, hand_over(bundle), as_json=as_json)
        return
    for event in follow(find, hand_over, every_s=every_s):
        if isinstance(event, CloudEdgeError):
            say("[yellow]not handed over[/]: {}", event.message)
        else:
            _show(*event, as_json=as_json)


def _show(bundle: Bundle, done: HotLoad, *, as_json: bool) -> None:
    if as_json:
        stamp = str(done.stamp) if done.stamp else None
        json_out({"written": done.written, "removed": done.removed, "stamp": stamp, "digest": bundle.digest})
        return
    if done.stamp is None:
        say("{}:{} is loaded already", bundle.name, bundle.version)
    rows = [*(("write", name) for name in done.written), *(("remove", name) for name in done.removed)]
    table_out(("", "file"), rows)
