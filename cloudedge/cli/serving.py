"""``cloudedge serving``: bundles for the Paddle Serving that is there already."""

from __future__ import annotations

from pathlib import Path

import typer

from cloudedge.cli._context import LOCAL, local_hub
from cloudedge.cli._output import DRY_RUN, JSON, json_out, say, table_out
from cloudedge.cli.bundle import REF

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
    output: Path = typer.Option(..., metavar="DIR", help="A folder that is not there yet."),
    target: str = TARGET,
    port: int = typer.Option(9393, help="Port of the C++ server."),
    http_port: int = typer.Option(18080, help="Port of the Pipeline service; its gRPC port is one below."),
    cube_conf: Path | None = typer.Option(None, metavar="FILE", help="A cube.conf, for a bundle with tables."),
    local: Path = LOCAL,
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:
    """Write a folder that a stock Paddle Serving can run, or say why it could not run it."""
    from cloudedge.bundle import Bundle  # noqa: PLC0415 - numpy is not needed for --help
    from cloudedge.serving import export as export_plan  # noqa: PLC0415
    from cloudedge.serving import plan_export  # noqa: PLC0415

    bundle = Bundle.open(ref, hub=local_hub(local))
    shards = cube_conf.read_text() if cube_conf else ""
    plan = plan_export(bundle, target, port=port, http_port=http_port, cube_conf=shards)
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


@app.command("hot-load")
def hot_load(
    ref: str = REF,
    live: Path | None = typer.Option(None, metavar="DIR", help="The model directory of a running C++ server."),
    publish: Path | None = typer.Option(None, metavar="DIR", help="Where paddle_serving_server.monitor fetches from."),
    model: str = typer.Option("model", help="With --publish: MODEL.tar, holding the folder MODEL."),
    donefile: str = typer.Option("donefile", help="With --publish: the file whose time tells of a new model."),
    target: str = TARGET,
    local: Path = LOCAL,
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:
    """Hand a bundle to running stock servers: into their model directory, or to the monitor that fills it."""
    from cloudedge.bundle import Bundle  # noqa: PLC0415
    from cloudedge.serving import load_into, plan_export, publish_for_monitor  # noqa: PLC0415

    places = [place for place in (live, publish) if place is not None]
    if len(places) != 1:
        raise typer.BadParameter("give either --live or --publish", param_hint="--live")
    bundle = Bundle.open(ref, hub=local_hub(local))
    plan = plan_export(bundle, target)
    if live is not None:
        done = load_into(bundle, plan, live, dry_run=dry_run)
    else:
        done = publish_for_monitor(bundle, plan, places[0], model=model, donefile=donefile, dry_run=dry_run)
    if as_json:
        stamp = str(done.stamp) if done.stamp else None
        json_out({"written": done.written, "removed": done.removed, "stamp": stamp, "digest": bundle.digest})
        return
    if done.stamp is None:
        say("{}:{} is there already", bundle.name, bundle.version)
    rows = [*(("write", name) for name in done.written), *(("remove", name) for name in done.removed)]
    table_out(("", "file"), rows)
