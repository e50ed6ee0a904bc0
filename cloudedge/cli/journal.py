"""`cloudedge journal`: check, repair and rebuild the journals that releases, rollouts and deliveries write."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cloudedge.cli._output import DRY_RUN, JSON, json_out, say, table_out
from cloudedge.cli.release_status import TARGET, open_target

if TYPE_CHECKING:
    from cloudedge.journal import Repair

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Check, repair and rebuild journals.")

NAME = typer.Argument(..., metavar="TARGET|FILE", help="A target from cloudedge.yaml, or the file of a journal.")


@app.command()
def check(
    name: str = typer.Argument("", metavar="[TARGET|FILE]", help="A target or a file; every journal if left out."),
    as_json: bool = JSON,
) -> None:
    """Check every page and row of journals and of their backups; changes nothing. Exits with 1 if one is not sound."""
    from cloudedge.journal import check_journal  # noqa: PLC0415 - not needed for --help

    paths = [_path(name)] if name else sorted(path for part in ("targets", "fleets") for path in _all(_home() / part))
    reports = [check_journal(path) for path in paths]
    if as_json:
        json_out([report.to_json() for report in reports])
    else:
        rows = [
            (each.path, each.state, each.operations, each.entries, sum(b.is_sound for b in each.backups))
            for each in reports
        ]
        table_out(("journal", "state", "operations", "entries", "backups"), rows)
    for report in reports:
        for problem in report.problems:
            say("[yellow]{}[/]: {}", Path(report.path).name, problem)
        if report.state in ("damaged", "missing"):
            say("Next, run `cloudedge journal repair {}`.", name or report.path)
        elif report.state == "doubtful":
            say("Next, run `cloudedge journal rebuild {}`.", name or Path(report.path).stem)
    if any(report.state not in ("sound", "absent") for report in reports):
        raise typer.Exit(1)


@app.command()
def repair(name: str = NAME, dry_run: bool = DRY_RUN, as_json: bool = JSON) -> None:
    """Repair a damaged or lost journal from its newest backup and what can still be read of it.

    The damaged file is moved aside. Exits with 3 if something is lost: `cloudedge journal rebuild` then finds out the
    rest from the places.
    """
    from cloudedge.journal import repair_journal  # noqa: PLC0415 - not needed for --help

    done = repair_journal(_path(name), dry_run=dry_run, tell=lambda text: say("{}", text))
    if as_json:
        json_out(done.to_json())
    _tell_repair(done, name, dry_run=dry_run)
    if done.lost and not dry_run:
        raise typer.Exit(3)


@app.command()
def rebuild(
    target: str = TARGET,
    live: str = typer.Option("", "--live", metavar="PIN", help="The version that is live, where places disagree."),
    dry_run: bool = DRY_RUN,
    yes: bool = typer.Option(False, "--yes", "-y", help="Do not ask."),
    as_json: bool = JSON,
) -> None:
    """Write into a target's journal what its places answer with, after it was lost or repaired. No place is touched.

    Example: cloudedge journal rebuild prod
    """
    found = open_target(target)
    adoption = found.plan_adoption(live)
    if as_json:
        json_out(adoption.to_json())
    say("{}", adoption.summary())
    if adoption.refusals:
        raise typer.Exit(1)
    if dry_run or not adoption.changes:
        return
    if not yes and sys.stdin.isatty():
        typer.confirm("Write this into the journal?", abort=True, err=True)
    found.adopt(adoption)
    say("[green]done[/]. Next, run `cloudedge status {}`.", target)


def _tell_repair(done: Repair, name: str, *, dry_run: bool) -> None:
    if not done.is_needed:
        say("{} is {}: there is nothing to repair", done.path, done.was)
        return
    said = "would be" if dry_run else "is"
    say("{} {} repaired: {} operations and {} entries", done.path, said, done.operations, done.entries)
    if done.moved_to:
        say("The damaged file {} {}.", said, done.moved_to)
    for lost in done.lost:
        say("[yellow]lost[/]: {}", lost)
    if done.lost:
        say("Next, run `cloudedge journal rebuild {}`.", Path(name).stem)


def _all(folder: Path) -> set[Path]:
    """Find journals, also those of which only a backup is left."""
    return {path.with_name(path.name.partition(".db")[0] + ".db") for path in folder.glob("*.db*")}


def _path(name: str) -> Path:
    return Path(name) if "/" in name or name.endswith(".db") else _home() / "targets" / f"{name}.db"


def _home() -> Path:
    from cloudedge.config import home  # noqa: PLC0415 - not needed for --help

    return home()
