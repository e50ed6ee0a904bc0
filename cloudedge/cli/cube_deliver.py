"""`cloudedge cube deliver | reshard`: a bundle's tables to every replica of every shard."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cloudedge.cli._context import local_hub
from cloudedge.cli._output import DRY_RUN, JSON, json_out, say, size, table_out
from cloudedge.cli.cube_net import TOKEN_VARIABLE
from cloudedge.cli.cube_status import read_layout
from cloudedge.errors import InputError, NotFound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cloudedge.bundle import Bundle
    from cloudedge.cube.transfer import Delivery, TableVersion

__all__ = ["app"]

app = typer.Typer(help="Deliver tables to their servers.", no_args_is_help=True)

LAYOUT = typer.Option(None, help="YAML with the servers and their admin ports by table and shard.")
CONF = typer.Option(None, help="A cube.conf instead; admin ports are those after the data ports.")
WORK = typer.Option(Path("cube-work"), help="Where artifacts are made and the journal is kept.")
HUB = typer.Option(None, metavar="DIR", help="The local hub; ~/.cloudedge/hub if left out.")


@app.command()
def deliver(
    bundle: str = typer.Argument("", help="A bundle in the local hub; none with --rollback and --abort."),
    layout: Path | None = LAYOUT,
    conf: Path | None = CONF,
    work: Path = WORK,
    hub: Path | None = HUB,
    rollback: bool = typer.Option(False, "--rollback", help="Activate what was active before; nothing travels."),
    abort: bool = typer.Option(False, "--abort", help="Give up a delivery that was cut short before it activated."),
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:
    """Bring a bundle's tables to all their servers and activate them together; run again, it goes on where it stopped.

    The admin token comes from CLOUDEDGE_CUBE_TOKEN. Example: cloudedge cube deliver ctr:7 --layout layout.yaml
    """
    from cloudedge.bundle import Bundle  # noqa: PLC0415 - numpy is not needed for --help
    from cloudedge.cube.transfer import Delivery, Workshop  # noqa: PLC0415

    if bool(bundle) + rollback + abort != 1:
        raise InputError("say one thing to do: a bundle to deliver, --rollback, or --abort")
    token = os.environ.get(TOKEN_VARIABLE, "")
    replicas = read_layout(layout, conf).replicas(token=token)
    with Delivery(replicas, Workshop(work), files_token=token) as delivery:
        if abort:
            say("given up" if delivery.abort() else "nothing was under way")
            return
        if rollback:
            if dry_run:
                say("would activate {}", delivery.journal.recall("previous") or "nothing: there is no version before")
                return
            done = delivery.rollback()
        else:
            opened = Bundle.open(bundle, hub=local_hub(hub))
            versions, bases = _versions(opened), _bases(opened, delivery)
            if dry_run:
                _show_plan(delivery, versions, bases, as_json=as_json)
                return
            done = delivery.deliver(versions, bases)
    if as_json:
        json_out({"versions": dict(done.versions), "shipped_bytes": done.shipped_bytes, "number": done.number})
    else:
        say("active: {}; {} shipped", ", ".join(f"{t} {v}" for t, v in done.versions.items()), size(done.shipped_bytes))


@app.command()
def reshard(
    bundle: str = typer.Argument(..., help="The bundle that is active, in the local hub."),
    old: Path = typer.Option(..., help="Layout YAML of the servers as they are."),
    new: Path = typer.Option(..., help="Layout YAML of the new servers, which are running and empty."),
    conf: Path = typer.Option(..., help="The cube.conf that readers read; replaced once the new servers are ready."),
    work: Path = WORK,
    hub: Path | None = HUB,
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:
    """Move a bundle's tables to another number of shards; both layouts answer until readers have changed over.

    Drain the old servers when `cloudedge cube status` shows that nobody asks them any more.
    Example: cloudedge cube reshard ctr:7 --old four.yaml --new eight.yaml --conf cube.conf
    """
    from cloudedge.bundle import Bundle  # noqa: PLC0415 - numpy is not needed for --help
    from cloudedge.cube.transfer import Delivery, Layout, Workshop  # noqa: PLC0415
    from cloudedge.cube.transfer import reshard as move  # noqa: PLC0415

    token = os.environ.get(TOKEN_VARIABLE, "")
    before, after = Layout.from_file(old), Layout.from_file(new)
    versions = _versions(Bundle.open(bundle, hub=local_hub(hub)))
    with Delivery(after.replicas(token=token), Workshop(work), files_token=token) as delivery:
        if dry_run:
            _show_plan(delivery, versions, (), as_json=as_json)
            return
        moved = [move([v], old=before, new=after, delivery=delivery, conf=conf, token=token) for v in versions]
    rows = [(each.table, each.shards_before, each.shards, size(each.shipped_bytes)) for each in moved]
    if as_json:
        json_out({"tables": [dict(zip(("table", "from", "to", "shipped"), row, strict=True)) for row in rows]})
    else:
        table_out(("table", "from", "to", "shipped"), rows)
        say("readers that read {} ask the new servers", conf)


def _versions(bundle: Bundle) -> list[TableVersion]:
    from cloudedge.cube.transfer import TableVersion  # noqa: PLC0415

    if not bundle.sparse:
        raise InputError(f"{bundle.name}:{bundle.version} has no tables to deliver")
    return [TableVersion(name, bundle.pin, table) for name, table in bundle.sparse.items()]


def _bases(bundle: Bundle, delivery: Delivery) -> list[TableVersion]:
    """Return the versions that replicas have, as far as the hub still has them: what deltas can be made from."""
    loaded = {pin for each in delivery.observe() if each.status for pin in each.status.loaded()}
    found: list[TableVersion] = []
    for pin in sorted(loaded - {bundle.pin}):
        with contextlib.suppress(NotFound):
            found += _versions(type(bundle).pinned(bundle.name, pin, hub=bundle.hub))
    return found


def _show_plan(
    delivery: Delivery, versions: Sequence[TableVersion], bases: Sequence[TableVersion], *, as_json: bool
) -> None:
    plan = delivery.plan(versions, bases)
    if as_json:
        json_out(plan.as_json())
        return
    table_out(
        ("step", "replica", "version", "size", "why"),
        [(step.kind, step.replica, step.version, size(step.bytes), step.reason) for step in plan.steps],
    )
    for refusal in plan.refusals:
        say("[bold red]refused[/]: {}", refusal.message)
