"""`cloudedge simulate`: test the promises of releases on this machine."""

from __future__ import annotations

import typer

from cloudedge.cli._output import JSON, json_out, say

__all__ = ["simulate"]


def simulate(
    seeds: int = typer.Option(1000, "--seeds", "-n", min=1, help="The number of seeds."),
    first_seed: int = typer.Option(0, help="The first seed."),
    faults: str = typer.Option("", metavar="A,B,...", help="Only these kinds of faults; all if left out."),
    stock: bool = typer.Option(False, "--stock", help="Deliver as upstream does, to see what breaks."),
    trace: bool = typer.Option(False, help="Print the first failing seed line by line (with --seeds 1: that one)."),
    jobs: int = typer.Option(0, help="Processes; 0: one per core."),
    as_json: bool = JSON,
) -> None:
    """Release in a simulated world that drops, delays, corrupts and kills, and count broken promises.

    Example: cloudedge simulate --seeds 10000
    """
    from cloudedge.testing import FAULTS, run_seed  # noqa: PLC0415 - not needed for --help
    from cloudedge.testing import simulate as run  # noqa: PLC0415

    kinds = tuple(faults.split(",")) if faults else FAULTS
    report = run(seeds, first_seed=first_seed, faults=kinds, stock=stock, jobs=jobs or None)
    if as_json:
        json_out(report.to_json())
    else:
        say(
            "{} seeds in {} s: {} points at which cloudedge might have died, {} answers, {} faults",
            *(report.seeds, round(report.seconds, 1), report.points, report.answers, sum(report.faults.values())),
        )
        for result in report.failing:
            say("[red]seed {}[/]: {}", result.seed, result.violations[0])
    if trace and (report.failing or seeds == 1):
        traced = run_seed(
            report.failing[0].seed if report.failing else first_seed, faults=frozenset(kinds), traced=True, stock=stock
        )
        typer.echo("\n".join(traced.trace), err=as_json)
    if report.violations:
        again = f"cloudedge simulate --seeds 1 --first-seed {report.failing[0].seed} --trace"
        again += (f" --faults {faults}" if faults else "") + (" --stock" if stock else "")
        say("{} seeds break a promise. Next, run `{}`.", report.violations, again)
        raise typer.Exit(1)
    say("no promise was broken")
