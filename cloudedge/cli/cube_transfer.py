"""`cloudedge cube transfer`: a replacement of upstream's cube-transfer, from transfer.conf or from cloudedge.yaml."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cloudedge.cli._context import configuration
from cloudedge.cli._cube_delivery import mixed_for, show_plan
from cloudedge.cli._output import DRY_RUN, JSON, json_out, say, table_out
from cloudedge.cli._signals import STOP, on_signals
from cloudedge.cli.cube_net import TOKEN_VARIABLE
from cloudedge.errors import CloudEdgeError, InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cloudedge.cube.upstream import Transfer, TransferReport

__all__ = ["app"]

app = typer.Typer(help="Deliver what donefiles announce.", no_args_is_help=True)


@app.command()
def transfer(
    name: str = typer.Argument("", help="An entry of `transfers` in cloudedge.yaml; none with --config."),
    table: str = typer.Option("", help="One of its tables, if several have donefiles."),
    config: Path | None = typer.Option(None, "--config", help="Upstream's transfer.conf, as it is."),
    once: bool = typer.Option(False, "--once", help="Deliver the new version, if there is one, and stop."),
    rollback: bool = typer.Option(False, "--rollback", help="Roll back to the previous version, and stop."),
    poll_s: float | None = typer.Option(None, min=0.1, help="Seconds between two readings of the donefiles; 300."),
    port: int = typer.Option(8099, help="Status and notifications, as upstream's -p; 0 takes any free one."),
    host: str = typer.Option("127.0.0.1", help=f"Its address; others than loopback need {TOKEN_VARIABLE}."),
    files_host: str = typer.Option("", help="Address the artifacts are served on; transfer_address if left out."),
    limit_mb_s: float | None = typer.Option(None, min=0.001, help="For all downloads together, in MB per second."),
    through_agent: bool = typer.Option(False, help="Send control commands through the agents, not to the servers."),
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:
    """Keep cube servers on the version that donefiles announce; without --once until SIGTERM.

    Settings come from NAME in cloudedge.yaml, or from --config and the options that it does not have.
    Example: cloudedge cube transfer ctr --once --dry-run
    """
    from cloudedge.cube import TransferConf  # noqa: PLC0415 - numpy is not needed for --help
    from cloudedge.cube.upstream import ConfiguredTransfer, Transfer, TransferOptions  # noqa: PLC0415

    if once and rollback:
        raise InputError("--once delivers and --rollback goes back: give one of them")
    if bool(name) == (config is not None):
        raise InputError("name one of cloudedge.yaml's transfers, or a transfer.conf with --config")
    settings = configuration()
    wait_s = 300.0
    if config is None:
        if files_host or limit_mb_s is not None or through_agent:
            raise InputError("--files-host, --limit-mb-s and --through-agent go with --config; cloudedge.yaml has them")
        named = ConfiguredTransfer(name, settings, token=os.environ.get(TOKEN_VARIABLE, ""))
        daemon, wait_s = named.transfer(table), named.config.poll.total_seconds()
    else:
        options = TransferOptions(
            files_host=files_host,
            limit_bytes_per_s=None if limit_mb_s is None else limit_mb_s * 1e6,
            through_agent=through_agent,
        )
        daemon = Transfer(TransferConf.from_file(config), hubs=settings.hubs, options=options)
    with daemon:
        if dry_run and rollback:
            show_plan(*daemon.plan_back(), as_json=as_json)
        elif dry_run:
            _show_plan(daemon, as_json=as_json)
        elif once or rollback:
            report = daemon.run_once() if once else daemon.rollback()
            _show(report, as_json=as_json)
            _require_sound(report)
        else:
            _run(daemon, host=host, port=port, poll_s=poll_s or wait_s, as_json=as_json)


def _run(daemon: Transfer, *, host: str, port: int, poll_s: float, as_json: bool) -> None:
    from cloudedge.cube.upstream import StatusServer  # noqa: PLC0415

    def show(report: TransferReport | CloudEdgeError) -> None:
        if isinstance(report, CloudEdgeError):
            say("[bold red]error[/]: {} {}", report.message, report.hint)
        elif report.delivered or report.problems:
            _note(report.problems)
            _show(report, as_json=as_json)

    with StatusServer(daemon, host=host, port=port, token=os.environ.get(TOKEN_VARIABLE, "")) as status:
        on_signals(daemon.stop, *STOP)
        say("watching {}, status on {}:{}; stop with SIGTERM", daemon.source.address, host, status.port)
        daemon.run(poll_s=poll_s, on_report=show)


def _show_plan(daemon: Transfer, *, as_json: bool) -> None:
    plan = daemon.plan()
    if as_json:
        json_out(plan)
        return
    _note((*plan["problems"], *plan["warnings"]))
    table_out(
        ("replica", "active", "error"), [(r["replica"], r["active"] or "-", r["error"]) for r in plan["replicas"]]
    )
    if plan["deliver"]:
        say("would deliver {}", plan["deliver"])
    else:
        _nothing_new(plan["delivered"])


def _require_sound(report: TransferReport) -> None:
    """Fail if lines of the donefiles are wrong, once all correct ones are delivered."""
    if report.problems:
        raise InputError(
            "\n  ".join(report.problems), hint="Correct those lines; everything else is delivered.", table=report.table
        )


def _show(report: TransferReport, *, as_json: bool) -> None:
    _note(report.warnings)
    if as_json:
        json_out(report.as_json())
    elif not report.delivered:
        _nothing_new(report.version)
    else:
        say("{} serves version {}{}", report.table, report.version, mixed_for(report.switch))


def _nothing_new(version: str | None) -> None:
    say("nothing new: {}", f"{version} is delivered" if version else "nothing was ever delivered")


def _note(notes: Sequence[str]) -> None:
    for each in notes:
        say("[yellow]note[/]: {}", each)
