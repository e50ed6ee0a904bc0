"""`cloudedge up | down`: the processes of a local target."""

from __future__ import annotations

import typer

from cloudedge.cli._output import DRY_RUN, JSON, json_out, say, table_out

__all__ = ["down", "up"]

TARGET = typer.Argument(..., help="A target of cloudedge.yaml, of the kind local.")


def up(
    target: str = TARGET,
    within_s: float = typer.Option(120.0, help="How long to wait until every process answers."),
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:
    """Start a local target's processes; they outlive this terminal, and come back when they crash.

    Example: cloudedge up local
    """
    from cloudedge.release.local import layout_of  # noqa: PLC0415 - slow to import
    from cloudedge.release.local import up as start  # noqa: PLC0415

    layout = layout_of(target) if dry_run else start(target, within_s=within_s)
    seats = [*layout.sparse(), *layout.dense()]
    if as_json:
        json_out({"folder": str(layout.folder), "places": {seat.place: seat.address for seat in seats}})
    else:
        table_out(("place", "address", "admin"), [(seat.place, seat.address, seat.admin) for seat in seats])
    if dry_run:
        say("nothing was started")
    else:
        say("logs are in {}; next: cloudedge release BUNDLE --to {}", layout.folder / "logs", target)


def down(target: str = TARGET, dry_run: bool = DRY_RUN) -> None:
    """End a local target's processes; after the next `up` they answer with what they had.

    Example: cloudedge down local
    """
    from cloudedge.release.local import down as stop  # noqa: PLC0415 - slow to import
    from cloudedge.release.local import find_processes, target_folder  # noqa: PLC0415

    running = find_processes(target_folder(target))
    if not dry_run:
        stop(target)
    say("{} {} processes", "would end" if dry_run else "ended", len(running))
