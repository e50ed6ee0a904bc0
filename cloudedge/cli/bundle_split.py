"""``cloudedge bundle split``: split a trained model into pieces that can be packed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cloudedge.cli._context import LOCAL, configuration, local_hub
from cloudedge.cli._output import DRY_RUN, JSON, json_out, say, table_out
from cloudedge.cli.bundle import describe, pair

if TYPE_CHECKING:
    from cloudedge.bundle import SplitReport

__all__ = ["app"]

app = typer.Typer()


@app.command("split")
def split_command(
    model: Path = typer.Argument(..., metavar="MODEL", help="A saved model: folder, prefix, .json or .pdmodel."),
    output: Path = typer.Option(..., metavar="DIR", help="A folder that does not exist yet."),
    samples: Path = typer.Option(None, metavar="FILE", help="Requests to compare with: .npz or .json, by input name."),
    seed: int = typer.Option(0, help="The seed of generated requests, if there are no samples."),
    keep: list[str] = typer.Option([], metavar="PARAMETER", help="Leave this embedding in the dense program."),
    table: list[str] = typer.Option([], metavar="PARAMETER=NAME", help="The name of a table."),
    feed_alias: list[str] = typer.Option([], metavar="INPUT=NAME", help="The clients' name for an input."),
    fetch_alias: list[str] = typer.Option([], metavar="OUTPUT=NAME", help="The clients' name for an output."),
    tolerance: float = typer.Option(1e-5, help="Largest absolute difference between whole and pieces."),
    pack: str = typer.Option("", metavar="NAME", help="Also pack the result as a bundle of this name."),
    version: str = typer.Option("auto", help="With --pack: an integer, major.minor.patch, or auto."),
    parent: str = typer.Option("", metavar="REF", help="With --pack: store only rows that differ from this bundle's."),
    local: Path = LOCAL,
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:
    """Split a trained model into a dense program and sparse tables, and compare their answers with the whole model's.

    Example: cloudedge bundle split out/ctr --output out/split --fetch-alias fetch_name_0=ctr --pack ctr
    """
    from cloudedge.bundle import Bundle, plan_split, split  # noqa: PLC0415 - numpy is not needed for --help

    names = dict(pair(item, "--table") for item in table)
    if dry_run:
        _show(plan_split(model, keep=keep, table_names=names), as_json=as_json)
        return
    done = split(
        model,
        output,
        samples=samples,
        seed=seed,
        keep=keep,
        table_names=names,
        feed_aliases=dict(pair(item, "--feed-alias") for item in feed_alias),
        fetch_aliases=dict(pair(item, "--fetch-alias") for item in fetch_alias),
        tolerance=tolerance,
    )
    if not pack:
        _show(done.report, as_json=as_json)
        sparse = "".join(f" --sparse {name}={path}" for name, path in done.tables.items())
        say(
            "next: cloudedge bundle pack {} --name NAME{} --signature {}",
            done.folder,
            sparse,
            output / "signature.json",
        )
        return
    hub = local_hub(local)
    bundle = Bundle.pack(
        done.folder,
        name=pack,
        version=version,
        sparse=done.tables,
        signature=done.signature,
        probes=done.probes,
        framework_version=done.report.framework_version,
        parent=Bundle.open(parent, hub=hub) if parent else None,
        hub=hub,
        limits=configuration().limits,
    )
    if as_json:
        json_out({"split": done.report.model_dump(mode="json"), "bundle": describe(bundle)})
        return
    _show(done.report, as_json=False)
    typer.echo(f"{pack}:{bundle.version} {bundle.digest}")
    say("next: cloudedge hub push {}:{} HUB", pack, bundle.version)


def _show(report: SplitReport, *, as_json: bool) -> None:
    if as_json:
        json_out(report.model_dump(mode="json"))
        return
    rows = [(name, t.parameter, f"{t.rows:,}", t.dim) for name, t in report.tables.items()]
    table_out(("table", "parameter", "rows", "dim"), rows)
    for parameter, why in report.kept.items():
        say("[yellow]note[/]: {} stays in the dense program: {}", parameter, why)
    if report.requests:
        worst = f"{report.max_abs_difference:.3g}"
        say("whole and pieces differ by at most {} in {} requests", worst, report.requests)
