"""``cloudedge fleet``: roll a bundle out to edge nodes in waves, roll it back, and show the nodes' status."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table

from cloudedge.cli._output import DRY_RUN, JSON, json_out, say, table_out

if TYPE_CHECKING:
    from cloudedge.edge_bie.fleet import Fleet, FleetStatus, NodeStatus, Outcome

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Edge nodes: roll a bundle out in waves, watch it, roll it back.")

BUNDLE = typer.Argument(..., help="The bundle: yolov3:2, yolov3@sha256:...")
TO = typer.Option(..., "--to", "-t", metavar="TARGET", help="A target from cloudedge.yaml with an edge section.")
TARGET = typer.Argument(..., help="A target from cloudedge.yaml with an edge section.")
YES = typer.Option(False, "--yes", "-y", help="Do not ask.")
SKIP = typer.Option(False, "--skip-unfit", help="Leave out nodes that cannot take it, instead of refusing.")


@app.command()
def rollout(
    bundle: str = BUNDLE,
    to: str = TO,
    skip_unfit: bool = SKIP,
    dry_run: bool = DRY_RUN,
    yes: bool = YES,
    as_json: bool = JSON,
) -> None:
    """Move a bundle across the nodes of a target, wave by wave; too many failures roll it back.

    Example: cloudedge fleet rollout yolov3:2 --to shops
    """
    from cloudedge.bundle import Bundle  # noqa: PLC0415 - numpy is not needed for --help

    with _fleet(to) as fleet:
        wanted = Bundle.open(bundle)
        plan = fleet.plan(wanted, skip_unfit=skip_unfit)
        if dry_run:
            json_out(plan.to_json()) if as_json else typer.echo(plan.summary())
            if plan.unfit:
                raise typer.Exit(1)
            return
        say("{}", plan.summary())
        if not plan.waves:
            if as_json:
                json_out({"state": "done", "number": None})
            return
        if not plan.unfit:
            _ask("Go on?", yes=yes)
        _show(fleet.rollout(plan, wanted), to, as_json=as_json)


@app.command()
def status(
    target: str = TARGET,
    watching: bool = typer.Option(False, "--watch", "-w", help="Refresh until stopped."),
    every: float = typer.Option(5.0, "--every", min=0.1, help="Seconds between two looks."),
    as_json: bool = JSON,
) -> None:
    """Show each node's version, its start, its health and its load. Exits with 1 unless all run the live version.

    With --watch it goes on until it is stopped; with --json as well, each refresh is one line.
    """
    with _fleet(target) as fleet:
        while watching and as_json:
            json_out(fleet.status().to_json(), line=True)
            time.sleep(every)
        if watching:
            with Live(_drawn(fleet.status()), auto_refresh=False, screen=sys.stdout.isatty()) as live:
                while True:
                    time.sleep(every)
                    live.update(_drawn(fleet.status()), refresh=True)
        now = fleet.status()
        if as_json:
            json_out(now.to_json())
        else:
            table_out(_COLUMNS, [_row(node) for node in now.nodes], title=_title(now))
            say("{}", _title(now))
    if not now.is_whole:
        raise typer.Exit(1)


@app.command()
def history(
    target: str = TARGET,
    limit: int = typer.Option(20, "--limit", "-n", help="Number of rollouts, the newest first."),
    as_json: bool = JSON,
) -> None:
    """List rollouts with their operators and outcomes."""
    with _fleet(target) as fleet:
        found = [
            {
                "number": each.number,
                "kind": each.kind,
                "title": each.plan["title"],
                "pin": each.plan["pin"],
                "nodes": len(each.plan["previous"]),
                "state": each.state,
                "begun_at": each.begun_at,
                "ended_at": each.ended_at,
                "by": each.by,
                **{key: each.outcome.get(key) for key in ("counts", "why", "seconds", "repairs")},
            }
            for each in fleet.history(limit)
        ]
    if as_json:
        json_out(found)
        return
    columns = ("number", "what", "bundle", "nodes", "state", "begun", "by", "done", "failed", "offline", "why")
    rows = []
    for each in found:
        counts: Any = each["counts"] or {}
        rows.append((
            *(each[key] for key in ("number", "kind", "title", "nodes", "state", "begun_at", "by")),
            *(counts.get(key, "") for key in ("done", "failed", "offline")),
            each["why"] or "",
        ))  # fmt: skip
    table_out(columns, rows)


@app.command()
def pause(target: str = TARGET) -> None:
    """Pause the rollout under way after its current step; nodes keep their versions."""
    with _fleet(target) as fleet:
        fleet.pause()
    say("Requested. Next: cloudedge fleet resume {}, or cloudedge fleet abort {}", target, target)


@app.command()
def approve(target: str = TARGET) -> None:
    """Approve the next wave."""
    with _fleet(target) as fleet:
        wave = fleet.approve()
    say("Wave {} may begin.", wave)


@app.command()
def resume(target: str = TARGET, as_json: bool = JSON) -> None:
    """Continue a paused or interrupted rollout; without one, bring lagging nodes to the live version."""
    from cloudedge.errors import Conflict  # noqa: PLC0415

    with _fleet(target) as fleet:
        try:
            outcome = fleet.resume()
        except Conflict as error:
            if "holder" not in error.facts:
                raise
            say("The process that runs the rollout was asked to continue.")
            return
        _show(outcome, target, as_json=as_json, nothing="Every node has the live version.")


@app.command()
def abort(
    target: str = TARGET,
    leave: bool = typer.Option(False, "--leave", help="End it in place instead: every node keeps its version."),
    yes: bool = YES,
    as_json: bool = JSON,
) -> None:
    """Roll back the rollout under way: every touched node, the newest first."""
    _ask(f"End the rollout on {target} in place?" if leave else f"Roll back the rollout on {target}?", yes=yes)
    with _fleet(target) as fleet:
        if leave:
            left = fleet.leave()
            json_out({"state": "undone", "number": left.number}) if as_json else None
            say("Rollout {} is over; nodes keep their versions. Next: cloudedge fleet status {}", left.number, target)
            return
        requested = "The process that runs the rollout was asked to roll it back."
        _show(fleet.abort(), target, as_json=as_json, nothing=requested, wanted="undone")


@app.command()
def rollback(target: str = TARGET, dry_run: bool = DRY_RUN, yes: bool = YES, as_json: bool = JSON) -> None:
    """Roll back the last rollout: the nodes it touched, the newest first. They have the blobs and download nothing."""
    with _fleet(target) as fleet:
        found = fleet.unfinished() or fleet.last_change()
        if dry_run:
            nodes = list(reversed(fleet.state(found).touched)) if found else []
            back = {node: found.plan["previous"][node] for node in nodes} if found else {}
            json_out(back) if as_json else table_out(("node", "back to"), list(back.items()))
            return
        what = f"{found.kind} {found.number} of {found.plan['title']}" if found else "the last rollout"
        _ask(f"Roll back {what}?", yes=yes)
        wanted = "undone" if fleet.unfinished() else "done"
        requested = "The process that runs the rollout was asked to roll it back."
        _show(fleet.rollback(), target, as_json=as_json, nothing=requested, wanted=wanted)


@app.command()
def gc(
    target: str = TARGET,
    keep: int = typer.Option(3, min=1, help="Number of live and earlier bundles to keep."),
    dry_run: bool = DRY_RUN,
    yes: bool = YES,
    as_json: bool = JSON,
) -> None:
    """Delete apps and configs of bundles that were live long ago, or never; those that nodes should run stay."""
    with _fleet(target) as fleet:
        found = fleet.garbage(keep=keep)
        json_out(found) if as_json else table_out(("pin", "bundle"), list(found.items()))
        if dry_run or not found:
            return
        _ask(f"Delete the apps and configs of {len(found)} bundles?", yes=yes)
        for pin in found:
            fleet.forget(pin)
    say("Deleted. Uploaded blobs stay; a return to these bundles needs the bundles themselves.")


def _fleet(target: str) -> Fleet:
    from cloudedge.edge_bie.fleet import Fleet  # noqa: PLC0415

    return Fleet.load(target, tell=lambda what: say("  {}", what))


def _ask(question: str, *, yes: bool) -> None:
    if not yes and sys.stdin.isatty():
        typer.confirm(question, abort=True, err=True)


def _show(outcome: Outcome | None, target: str, *, as_json: bool, nothing: str = "", wanted: str = "done") -> None:
    if outcome is None:
        if as_json:
            json_out(None)
        say("{}", nothing)
        return
    if as_json:
        json_out(outcome.to_json())
    for node, why in outcome.failed.items():
        say("[yellow]failed[/]: {}: {}", node, why)
    if outcome.state == "paused":
        say("[yellow]paused[/]: {}: {}", outcome.why, outcome.summary)
        say("Next: cloudedge fleet resume {}, or cloudedge fleet abort {}", target, target)
        raise typer.Exit(3)
    if outcome.state == "done":
        say("[green]done[/]: {} ({} s)", outcome.summary, outcome.seconds)
    else:
        say("[red]undone[/]: {}: {}", outcome.why, outcome.summary)
    say("Next: cloudedge fleet status {}", target)
    if outcome.state != wanted:
        raise typer.Exit(1)


_COLUMNS = ("node", "runs", "since", "lag", "health", "cpu", "memory", "disk", "gpu", "last contact", "why")


def _row(node: NodeStatus) -> tuple[object, ...]:
    shares = [f"{share:.0%}" if share is not None else "" for share in (node.cpu, node.memory, node.disk, node.gpu)]
    lag = "" if node.lag is None else node.lag
    return (node.name, node.title or node.pin, node.since, lag, node.health, *shares, node.last_contact, node.why)


def _title(now: FleetStatus) -> str:
    well = sum(node.health == "healthy" and node.pin == now.live_pin for node in now.nodes)
    words = [f"{now.name}: {now.live or 'nothing'} is live; {well} of {len(now.nodes)} nodes run it well"]
    if now.skew > 1:
        words.append(f"{now.skew} versions at once")
    if now.unfinished:
        words.append(f"{now.unfinished} is unfinished: cloudedge fleet resume {now.name}, or abort")
    return "; ".join(words)


def _drawn(now: FleetStatus) -> Any:
    table = Table(*_COLUMNS, box=None, header_style="bold", pad_edge=False)
    for node in now.nodes:
        table.add_row(*(str(cell) for cell in _row(node)))
    return Group(_title(now), table)
