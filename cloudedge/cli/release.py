"""`cloudedge release | plan | rollback | resume | abort | promote`: the commands that change what is live."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import typer

from cloudedge.cli._context import read_option
from cloudedge.cli._output import DRY_RUN, JSON, json_out, say, size
from cloudedge.cli.release_status import TARGET, history, open_target, status, watch

if TYPE_CHECKING:
    from cloudedge.release import Options, Outcome, Plan, Target

__all__ = ["abort", "history", "plan", "promote", "release", "resume", "rollback", "status", "watch"]

BUNDLE = typer.Argument(..., help="The bundle: ctr:4, ctr:prod, ctr@sha256:...")
TO = typer.Option(..., "--to", "-t", metavar="TARGET", help="A target from cloudedge.yaml.")
YES = typer.Option(False, "--yes", "-y", help="Do not ask.")
CANARY = typer.Option("0%", metavar="SHARE", help="The share of requests that try the bundle first, such as 5%.")
BAKE = typer.Option("0s", metavar="TIME", help="How long to watch the canary, such as 10m.")
ON_BREACH = typer.Option("rollback", metavar="rollback|pause", help="What to do with a canary that breaks a limit.")
RETAIN = typer.Option(1, min=1, help="How many versions before the live one stay loaded, to go back to at once.")
PATIENCE = typer.Option(
    "2m", metavar="TIME", help="How long to wait for a place that does not answer, once requests have moved."
)
ERRORS = typer.Option("1%", "--max-errors", metavar="SHARE", help="How many more of a canary's requests may fail.")
SLOWER = typer.Option(
    2.0, "--max-latency", min=1.0, help="How many times slower a canary's 99th percentile may be, plus 5 ms."
)
MISSES = typer.Option(
    "2%", "--max-misses", metavar="SHARE", help="How many more of the rows that a canary asks for may be missing."
)
DRIFT = typer.Option(
    1.0, "--max-drift", min=0.0, help="The standard deviations by which a canary's mean score may move."
)
CHANGED = typer.Option(
    False, "--allow-signature-change", help="Release although feeds or fetches change: clients can cope."
)

OLDER = typer.Option(
    False, "--allow-older", help="Release although a newer version was released before, or the signature has expired."
)

_LEFT = 3
"""The exit code of an operation that left out places, which a resume brings along."""


def release(
    bundle: str = BUNDLE,
    to: str = TO,
    canary: str = CANARY,
    bake: str = BAKE,
    on_breach: str = ON_BREACH,
    retain: int = RETAIN,
    patience: str = PATIENCE,
    max_errors: str = ERRORS,
    max_latency: float = SLOWER,
    max_misses: str = MISSES,
    max_drift: float = DRIFT,
    allow_signature_change: bool = CHANGED,
    allow_older: bool = OLDER,
    dry_run: bool = DRY_RUN,
    yes: bool = YES,
    as_json: bool = JSON,
) -> None:
    """Make a bundle live on a target: every place, or none.

    Example: cloudedge release ctr:4 --to prod --canary 5% --bake 10m
    """
    target = open_target(to)
    limits, others = (
        (max_errors, max_latency, max_misses, max_drift),
        {"changed": allow_signature_change, "older": allow_older},
    )
    planned = target.plan(bundle, _options(canary, bake, on_breach, retain, limits, patience=patience, **others))
    if dry_run:
        _show(planned, as_json=as_json)
        return
    _carry_out(target, planned, yes=yes, as_json=as_json)


def plan(
    bundle: str = BUNDLE,
    to: str = TO,
    canary: str = CANARY,
    bake: str = BAKE,
    on_breach: str = ON_BREACH,
    retain: int = RETAIN,
    patience: str = PATIENCE,
    max_errors: str = ERRORS,
    max_latency: float = SLOWER,
    max_misses: str = MISSES,
    max_drift: float = DRIFT,
    allow_signature_change: bool = CHANGED,
    allow_older: bool = OLDER,
    as_json: bool = JSON,
) -> None:
    """Show the steps of a release and change nothing. Exits with 1 if it cannot work."""
    limits, others = (
        (max_errors, max_latency, max_misses, max_drift),
        {"changed": allow_signature_change, "older": allow_older},
    )
    options = _options(canary, bake, on_breach, retain, limits, patience=patience, **others)
    _show(open_target(to).plan(bundle, options), as_json=as_json)


def rollback(
    target: str = TARGET,
    to: str = typer.Option("", "--to", metavar="NUMBER|BUNDLE", help="A release of the history, or a bundle."),
    dry_run: bool = DRY_RUN,
    yes: bool = YES,
    as_json: bool = JSON,
) -> None:
    """Go back to what was live before; moves no bytes if that is still loaded. Takes an unfinished release back."""
    found = open_target(target)
    back = int(to) if to.isdecimal() else to or None
    number = found.unfinished_number
    if dry_run:
        is_undo = number is not None and back is None
        _show(found.plan_abort() if is_undo else found.plan_rollback(back), as_json=as_json)
    elif number is not None:
        _ask(f"Take {found.unfinished} back?", yes=yes)
        _report(found.rollback(back, expected=number), target, as_json=as_json)
    else:
        _carry_out(found, found.plan_rollback(back, patient=True), yes=yes, as_json=as_json)


def resume(target: str = TARGET, dry_run: bool = DRY_RUN, as_json: bool = JSON) -> None:
    """Finish an interrupted operation, and bring places that lag to what is live."""
    found, fine = open_target(target), "Everything is as it should be."
    if not dry_run:
        _report(found.resume(), target, as_json=as_json, nothing=fine)
        return
    planned = found.plan_resume()
    if planned is not None:
        _show(planned, as_json=as_json)
    else:
        _report(None, target, as_json=as_json, nothing=fine)


def abort(target: str = TARGET, dry_run: bool = DRY_RUN, yes: bool = YES, as_json: bool = JSON) -> None:
    """Take the unfinished release back, or ask the process that carries it out to."""
    found = open_target(target)
    if dry_run:
        _show(found.plan_abort(), as_json=as_json)
        return
    number = found.unfinished_number
    _ask(f"Take {found.unfinished or 'what is unfinished'} back?", yes=yes)
    asked = "The process that carries it out was asked to take it back; it reports if that comes too late."
    _report(found.abort(expected=number), target, as_json=as_json, nothing=asked, wanted="undone")


def promote(target: str = TARGET, dry_run: bool = DRY_RUN, as_json: bool = JSON) -> None:
    """End the watch over the canary early and move all requests."""
    if dry_run:
        _show(open_target(target).plan_promote(), as_json=as_json)
        return
    asked = "The process that watches the canary was asked to promote it."
    _report(open_target(target).promote(), target, as_json=as_json, nothing=asked)


def _options(
    canary: str, bake: str, on_breach: str, retain: int, limits: tuple[str, float, str, float], **others: Any
) -> Options:
    from cloudedge.config import Duration, Share  # noqa: PLC0415
    from cloudedge.release import Limits, Options  # noqa: PLC0415 - numpy is not needed for --help

    if on_breach not in ("rollback", "pause"):
        raise typer.BadParameter(f"{on_breach!r} is neither rollback nor pause", param_hint="--on-breach")
    errors, slower, misses, drift = limits
    return Options(
        canary=read_option(Share, canary, "--canary"),
        bake_s=read_option(Duration, bake, "--bake").total_seconds(),
        on_breach="pause" if on_breach == "pause" else "rollback",
        retain=retain,
        patience_s=read_option(Duration, others["patience"], "--patience").total_seconds(),
        allow_signature_change=others["changed"],
        allow_older=others["older"],
        limits=Limits(
            error_rate=read_option(Share, errors, "--max-errors"),
            latency_factor=slower,
            miss_rate=read_option(Share, misses, "--max-misses"),
            score_drift=drift,
        ),
    )


def _show(planned: Plan, *, as_json: bool) -> None:
    if as_json:
        json_out(planned.to_json())
    else:
        typer.echo(planned.summary())
    if planned.refusals:
        raise typer.Exit(1)


def _ask(question: str, *, yes: bool) -> None:
    if not yes and sys.stdin.isatty():
        typer.confirm(question, abort=True, err=True)


def _carry_out(target: Target, planned: Plan, *, yes: bool, as_json: bool) -> None:
    say("{}", planned.summary())
    if planned.is_empty:
        if as_json:
            json_out({"state": "done", "number": None})
        return
    if not planned.refusals:
        _ask("Go on?", yes=yes)
    _report(target.run(planned), target.name, as_json=as_json)


def _report(outcome: Outcome | None, target: str, *, as_json: bool, nothing: str = "", wanted: str = "done") -> None:
    if outcome is None:
        if as_json:
            json_out(None)
        say("{}", nothing)
        return
    if as_json:
        json_out(outcome.to_json())
    for step, why in outcome.owed.items():
        say("[yellow]not tidied up[/]: {}: {} (the next release does it)", step, why)
    for place, why in outcome.away.items():
        say("[yellow]not reached[/]: {}: {} (run `cloudedge resume {}` once it answers)", place, why, target)
    if outcome.state == "done":
        say(
            "[green]done[/]: {} is live on {}: {} moved in {} s",
            outcome.pin,
            target,
            size(outcome.bytes),
            outcome.seconds,
        )
        if outcome.why:
            say("[yellow]note[/]: {}. To go back, run `cloudedge rollback {}`.", outcome.why, target)
        say("Next, run `cloudedge status {}`.", target)
    else:
        say("[red]undone[/]: {} was taken back on {}: {}", outcome.pin, target, outcome.why)
        left = ", except for the places and steps above" if outcome.owed or outcome.away else ""
        say("Everything is as it was{}. Next, run `cloudedge status {}`.", left, target)
    if outcome.state != wanted:
        raise typer.Exit(1)
    if outcome.away:
        raise typer.Exit(_LEFT)
