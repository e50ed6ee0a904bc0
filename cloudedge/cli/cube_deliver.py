"""`cloudedge cube deliver | reshard`: bring a bundle's tables to every replica of every shard."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cloudedge.cli._context import configuration, local_hub
from cloudedge.cli._cube_delivery import delivery_to, mixed_for, open_delivery, show_plan
from cloudedge.cli._output import DRY_RUN, JSON, json_out, say, size, table_out
from cloudedge.cli.cube_net import TOKEN_VARIABLE
from cloudedge.errors import ConfigError, InputError, NotFound

if TYPE_CHECKING:
    from cloudedge.bundle import Bundle
    from cloudedge.cube.delivery import Delivery, ServerLayout, TableVersion
    from cloudedge.cube.upstream import ConfiguredTransfer

__all__ = ["app"]

app = typer.Typer(help="Deliver tables to their servers.", no_args_is_help=True)

LAYOUT = typer.Option(None, help="YAML with the servers and their admin ports by table and shard.")
CONF = typer.Option(None, help="A cube.conf instead; admin ports are those after the data ports.")
WORK = typer.Option(None, help="Directory of artifacts and the journal; ./cube-work if left out.")
HUB = typer.Option(None, metavar="DIR", help="The local hub; ~/.cloudedge/hub if left out.")
FILES_HOST = typer.Option(
    "", help="Address of this machine that servers fetch from; loopback if left out, others need the token."
)
LIMIT = typer.Option(None, min=0.001, metavar="MB/S", help="For all bytes that leave this machine.")


@app.command()
def deliver(
    bundle: str = typer.Argument("", help="A bundle in the local hub; none with --rollback and --abort."),
    to: str = typer.Option("", "--to", help="An entry of `transfers` in cloudedge.yaml, which has all other settings."),
    layout: Path | None = LAYOUT,
    conf: Path | None = CONF,
    config: Path | None = typer.Option(
        None, "--config", help="Upstream's transfer.conf: its servers and their agents."
    ),
    work: Path | None = WORK,
    files_host: str = FILES_HOST,
    limit_mb_s: float | None = LIMIT,
    through_agent: bool = typer.Option(
        False, help="With --config: send control commands through the agents, not to the servers."
    ),
    hub: Path | None = HUB,
    rollback: bool = typer.Option(False, "--rollback", help="Activate the versions before; nothing travels."),
    abort: bool = typer.Option(False, "--abort", help="Give up a delivery that was cut short before it activated."),
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:
    """Bring a bundle's tables to all their servers and activate them together; run again to continue where it stopped.

    Upstream's servers get whole parts and are switched together; the time with mixed versions is measured and shown.
    The admin token comes from CLOUDEDGE_CUBE_TOKEN. Example: cloudedge cube deliver ctr:7 --to ctr
    """
    if bool(bundle) + rollback + abort != 1:
        raise InputError("name one thing to do: a bundle to deliver, --rollback, or --abort")
    opening = open_delivery(
        to, layout=layout, conf=conf, config=config, work=work, files_host=files_host, limit_mb_s=limit_mb_s,
        through_agent=through_agent,
    )  # fmt: skip
    with opening as delivery:
        if abort:
            _abort(delivery, dry_run=dry_run, as_json=as_json)
            return
        versions, bases = _read(bundle, hub, delivery) if bundle else ([], [])
        if dry_run:
            plan = delivery.plan(versions, bases) if bundle else delivery.plan_back()
            show_plan(plan, delivery.guarantee, as_json=as_json)
            return
        done = delivery.deliver(versions, bases) if bundle else delivery.rollback()
    for each in done.warnings:
        say("[yellow]note[/]: {}", each)
    if as_json:
        json_out(asdict(done))
        return
    active = ", ".join(f"{table} {version}" for table, version in done.versions.items())
    say("active: {}; {} shipped{}", active, size(done.shipped_bytes), mixed_for(done.switch))
    named = {"--of": to, "--layout": layout, "--conf": conf, "--config": config}
    if bundle:
        named |= {"--bundle": bundle, "--hub": hub}
    say("next: cloudedge cube status {}", " ".join(f"{option} {value}" for option, value in named.items() if value))


@app.command()
def reshard(
    bundle: str = typer.Argument("", help="The bundle that is active, in the local hub; none with --free."),
    old: str = typer.Option(..., help="Layout YAML of the servers as they are, or an entry of `transfers`."),
    new: str = typer.Option("", help="The same of the new servers, which are running and empty."),
    conf: Path = typer.Option(..., help="The cube.conf that readers read; replaced once the new servers are ready."),
    work: Path | None = WORK,
    files_host: str = FILES_HOST,
    limit_mb_s: float | None = LIMIT,
    hub: Path | None = HUB,
    free: bool = typer.Option(False, "--free", help="Afterwards: drain the old servers once no reader asks them."),
    rest_s: float = typer.Option(5, min=0.1, help="With --free: seconds without a request before they drain."),
    within_s: float = typer.Option(600, min=0, help="With --free: seconds to wait for that."),
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:
    """Move a bundle's tables to another number of shards; both layouts answer until readers have changed over.

    The previous version goes too, if the old servers and the hub have it: the new servers can roll back to it.
    An entry of `transfers` in cloudedge.yaml has the settings of the delivery too: token, work, files_host, bandwidth.
    Example: cloudedge cube reshard ctr:7 --old four.yaml --new eight.yaml --conf cube.conf
    Then: cloudedge cube reshard --free --old four.yaml --conf cube.conf
    """
    from cloudedge.bundle import Bundle  # noqa: PLC0415 - numpy is not needed for --help
    from cloudedge.cube.delivery import (  # noqa: PLC0415
        observe,
        require_apart,
        require_live,
    )
    from cloudedge.cube.delivery import reshard as move  # noqa: PLC0415

    before, token, _ = _place(old)
    if free:
        if bundle or new:
            raise InputError("--free drains the servers of --old and takes neither a bundle nor --new")
        _free(before, conf, token, rest_s=rest_s, within_s=within_s, dry_run=dry_run, as_json=as_json)
        return
    if not bundle or not new:
        raise InputError("name the bundle that is active, and its new servers with --new")
    after, new_token, configured = _place(new)
    opened = Bundle.open(bundle, hub=local_hub(hub))
    versions = _versions(opened)
    require_apart([each.table for each in versions], before, after)
    kept = _before(opened, before, token)
    opening = configured.delivery() if configured else delivery_to(after, work, new_token, files_host, limit_mb_s)
    with opening as delivery:
        if dry_run:
            seen = [observe(each) for each in before.replicas(token=token)]
            for each in versions:
                require_live(each, seen, "old")
            show_plan(delivery.plan(versions), delivery.guarantee, as_json=as_json)
            return
        moved = move([*kept, *versions], old=before, new=after, delivery=delivery, conf=conf, token=token)
    if as_json:
        tables = [{"table": table, "from": was, "to": now} for table, (was, now) in moved.shards.items()]
        previous = {each.table: each.version for each in kept}
        json_out({"tables": tables, "previous": previous, "shipped_bytes": moved.shipped_bytes})
        return
    table_out(("table", "from", "to"), [(table, *shards) for table, shards in moved.shards.items()])
    back = f"{kept[0].version} can be rolled back to" if kept else "there is no version to roll back to"
    say("{} shipped; on the new servers {}", size(moved.shipped_bytes), back)
    say(
        "readers that read {0} ask the new servers; next: cloudedge cube reshard --free --old {1} --conf {0}", conf, old
    )


def _place(named: str) -> tuple[ServerLayout, str, ConfiguredTransfer | None]:
    """Return the servers of a layout file or of a transfer's name, and their token."""
    from cloudedge.cube.delivery import ServerLayout  # noqa: PLC0415
    from cloudedge.cube.upstream import ConfiguredTransfer  # noqa: PLC0415

    token = os.environ.get(TOKEN_VARIABLE, "")
    if Path(named).exists() or named not in configuration().transfers:
        return ServerLayout.from_file(Path(named)), token, None
    configured = ConfiguredTransfer(named, configuration(), token=token)
    return configured.layout, configured.token, configured


def _before(bundle: Bundle, places: ServerLayout, token: str) -> list[TableVersion]:
    """Return the version before the bundle's, if all old servers of all its tables and the hub have it."""
    from cloudedge.cube.delivery import observe  # noqa: PLC0415

    seen = [observe(each) for each in places.replicas(token=token)]
    of_ours = [each.status for each in seen if each.table in bundle.sparse]
    found = {status.previous if status and status.previous in status.loaded() else None for status in of_ours}
    pin = found.pop() if len(found) == 1 else None
    if pin in (None, bundle.pin):
        return []
    with suppress(NotFound):
        versions = _versions(type(bundle).pinned(bundle.name, str(pin), hub=bundle.hub))
        return [each for each in versions if each.table in bundle.sparse]
    return []


def _free(
    places: ServerLayout, conf: Path, token: str, *, rest_s: float, within_s: float, dry_run: bool, as_json: bool
) -> None:
    """Drain servers that cube.conf does not name any more; those that are away are gone already."""
    from cloudedge.cube import CubeConf  # noqa: PLC0415
    from cloudedge.cube.delivery import (  # noqa: PLC0415
        ServerLayout,
        free_servers,
        observe,
    )

    read = ServerLayout.from_conf(CubeConf.from_file(conf))
    for table in places.tables:
        named = places.addresses(table) & {address for each in read.tables for address in read.addresses(each)}
        if named:
            raise ConfigError(
                f"{conf} sends readers of table {table!r} to {min(named)}",
                hint="Move them first with `cloudedge cube reshard`.",
            )
    seen = [(each, observe(each)) for each in places.replicas(token=token)]
    servers = [each for each, found in seen if found.status is not None]
    if not dry_run:
        free_servers(servers, rest_s=rest_s, deadline_s=within_s)
    freed, away = [each.name for each in servers], [each.name for each, found in seen if found.status is None]
    if as_json:
        json_out({"freed": [] if dry_run else freed, "would_free": freed if dry_run else [], "away": away})
        return
    say("{} {}", "would drain" if dry_run else "drained", ", ".join(freed) or "nothing")
    if away:
        say("away already: {}", ", ".join(away))


def _read(name: str, hub: Path | None, delivery: Delivery) -> tuple[list[TableVersion], list[TableVersion]]:
    """Return a bundle's tables, and the versions that deltas of them can be made from."""
    from cloudedge.bundle import Bundle  # noqa: PLC0415 - numpy is not needed for --help

    bundle = Bundle.open(name, hub=local_hub(hub))
    return _versions(bundle), _bases(bundle, delivery)


def _versions(bundle: Bundle) -> list[TableVersion]:
    from cloudedge.cube.delivery import TableVersion  # noqa: PLC0415

    if not bundle.sparse:
        raise InputError(f"{bundle.name}:{bundle.version} has no tables to deliver")
    return [TableVersion(name, bundle.pin, table) for name, table in bundle.sparse.items()]


def _bases(bundle: Bundle, delivery: Delivery) -> list[TableVersion]:
    """Return the versions of replicas that the hub still has: deltas can be made from them."""
    seen = [each.status for each in delivery.observe()]
    loaded = {pin for status in seen if status and status.can_delta for pin in status.loaded()}
    found: list[TableVersion] = []
    for pin in sorted(loaded - {bundle.pin}):
        with suppress(NotFound):
            found += _versions(type(bundle).pinned(bundle.name, pin, hub=bundle.hub))
    return found


def _abort(delivery: Delivery, *, dry_run: bool, as_json: bool) -> None:
    if dry_run:
        show_plan(delivery.plan_abort(), delivery.guarantee, as_json=as_json)
        return
    given_up = delivery.abort()
    if as_json:
        json_out({"given_up": given_up})
    else:
        say("given up" if given_up else "nothing was under way")
