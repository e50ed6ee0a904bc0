"""``cloudedge cube dump | build | inspect | check``: the commands that work on files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cloudedge.cli._output import DRY_RUN, JSON, json_out, progress_bar, renamed_option, say, size, table_out

if TYPE_CHECKING:
    from cloudedge.cube import BuildPlan, BuildReport, CheckReport

__all__ = ["app"]

_OLD_DICT = renamed_option("--dict", "--table")

app = typer.Typer(no_args_is_help=True, help="Sparse tables: convert, build, serve and look up.")


@app.command()
def dump(
    source: Path = typer.Argument(
        ..., metavar="TABLE", help="Paddle parameter, .npy/.npz, safetensors, text, SequenceFile(s), or a built part."
    ),
    output: Path = typer.Argument(..., metavar="FILE", help="The SequenceFile, or *.safetensors table, to write."),
    form: str = typer.Option(
        None,
        "--from",
        help="parameter, numpy, safetensors, text, columns (key show click v1 v2 ...), sequence or part; "
        "recognised if left out.",
    ),
    to: str = typer.Option(None, "--format", help="Of FILE: sequence or safetensors; by its suffix if left out."),
    quantise: bool = typer.Option(False, help="Write 8-bit rows (a quarter of the size) instead of float32."),
    as_json: bool = JSON,
) -> None:
    """Turn a table into a SequenceFile, which cube's builder reads, or into a safetensors table.

    Rows of a parameter or a plain array get their row number as key; an .npz brings its own 'keys' and 'values'.

    Example: cloudedge cube dump out/SparseFeatFactors out/seq/part-0
    Example: cloudedge cube dump /data/cube/100_100/ctr_part0 ctr.safetensors
    """
    from cloudedge.cube import dump as dump_table  # noqa: PLC0415 - numpy is not needed for --help

    report = dump_table(source, output, form=form, to=to, quantised=quantise)
    if as_json:
        facts = {"output": str(report.output), "format": report.format}
        json_out(facts | {"rows": report.rows, "bytes": report.size_bytes})
        return
    typer.echo(f"{report.output}: {report.rows:,} rows from {report.format}, {size(report.size_bytes)}")
    say("next: cloudedge cube build {} --output DIR --table NAME --shards N --version V", report.output)


@app.command()
def build(
    inputs: list[Path] = typer.Argument(
        ..., metavar="INPUT...", help="SequenceFiles, directories of them, or safetensors tables; later ones win."
    ),
    output: Path = typer.Option(..., help="The directory of all versions of this table."),
    table: str = typer.Option(..., help="The table; parts are named NAME_part0, NAME_part1, ..."),
    shards: int = typer.Option(..., help="Number of parts to make: key mod N chooses."),
    version: int = typer.Option(..., help="The version to build, such as a unix time; below 2^31."),
    base: int = typer.Option(None, help="Build a cumulative delta on this base version instead of a base."),
    last: int = typer.Option(None, help="With --base: the version to continue from, if it is not the base."),
    tar: bool = typer.Option(True, help="Also pack each part with its MD5, as upstream's agents fetch it."),
    reserve_key: bool = typer.Option(False, help="Give a shard without keys one row that no model asks for."),
    skip_damage: bool = typer.Option(False, help="Skip damaged stretches of SequenceFiles and count them."),
    _dict: str = _OLD_DICT,
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:
    """Build tables into the parts that cube servers load.

    The version appears in one piece, or not at all: a build that fails or is killed leaves nothing to clean up.

    Example: cloudedge cube build out/seq --output /data/cube --table ctr --shards 2 --version 1794790573
    """
    from cloudedge.cube import plan_build, run_build  # noqa: PLC0415

    plan = plan_build(inputs, output=output, table=table, shards=shards, version=version, base=base, last=last, tar=tar)
    if dry_run:
        _show_plan(plan, as_json=as_json)
        return
    with progress_bar(f"building {plan.name.directory}", plan.input_bytes) as bar:
        report = run_build(plan, reserve_key=reserve_key, skip_damage=skip_damage, progress=bar)
    if as_json:
        json_out(report.as_json())
    else:
        _show_report(report)


def _show_plan(plan: BuildPlan, *, as_json: bool) -> None:
    if as_json:
        json_out(plan.as_json())
        return
    typer.echo(f"would build {plan.directory}: {plan.shards} parts from {size(plan.input_bytes)}")
    table_out(("input", "format", "bytes"), [(i.path, i.format, i.size_bytes) for i in plan.inputs])


def _show_report(report: BuildReport) -> None:
    typer.echo(f"{report.directory}: {report.rows:,} rows in {len(report.parts)} parts")
    rows = [(p.shard, p.added, p.duplicates, p.data_files, p.md5 or "-") for p in report.parts]
    table_out(("shard", "rows", "duplicates", "data files", "md5"), rows)
    if report.duplicates:
        say("[yellow]note[/]: {} rows had a key that comes again later; the last one counts", f"{report.duplicates:,}")
    if report.skipped_bytes:
        say("[yellow]note[/]: {} damaged bytes were left out", f"{report.skipped_bytes:,}")
    for part in report.parts:
        if part.reserved_key is not None:
            say("[yellow]note[/]: shard {} had no key and got {}", part.shard, part.reserved_key)
    say("next: cloudedge cube check {}", report.directory)


@app.command()
def inspect(
    path: Path = typer.Argument(..., help="A SequenceFile, table, parameter, part or version."),
    rows: int = typer.Option(3, min=0, help="Number of first rows of a SequenceFile to show."),
    as_json: bool = JSON,
) -> None:
    """Describe a file or directory from its head and its lists; quick at any size.

    Example: cloudedge cube inspect /data/cube/100_100
    """
    from cloudedge.cube import inspect as look  # noqa: PLC0415

    found = look(path, rows=rows)
    if as_json:
        json_out(found)
        return
    many = next((name for name in ("parts", "first") if found.get(name)), None)
    for name, value in found.items():
        if name != many:
            typer.echo(f"{name}: {value}")
    if many is not None:
        table_out(tuple(found[many][0]), [tuple(row.values()) for row in found[many]], title=many)


@app.command()
def check(
    path: Path = typer.Argument(..., help="A SequenceFile, a part, or a version as built."),
    as_json: bool = JSON,
) -> None:
    """Read every byte and compare it with lists and checksums; exit 1 when something is wrong.

    For a version: files against their lists, addresses against records, keys against shards, tar against MD5 and
    against the directory, meta files against parts.

    Example: cloudedge cube check /data/cube/100_100
    """
    from cloudedge.cube import check as check_path  # noqa: PLC0415

    report = check_path(path)
    faults = report.all_faults
    if as_json:
        json_out(report.as_json() | {"ok": not faults})
    else:
        _show_check(report)
    for fault in [] if as_json else faults:
        say("[bold red]fault[/]: {}", fault)
    if faults:
        raise typer.Exit(1)


def _show_check(report: CheckReport) -> None:
    facts: dict[str, Any] = {
        name: value for name, value in report.facts.items() if value is not None and name != "dict_name"
    }
    verdict = "faulty" if report.all_faults else "ok"
    typer.echo(f"{verdict} {report.kind} {report.path} " + " ".join(f"{k}={v}" for k, v in facts.items()))
    for part in report.parts:
        _show_check(part)
