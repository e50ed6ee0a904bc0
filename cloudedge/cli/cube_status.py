"""`cloudedge cube status`: the state of every replica of every shard, and whether they agree."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cloudedge.cli._context import configuration, local_hub
from cloudedge.cli._output import JSON, json_out, say, size, table_out
from cloudedge.cli.cube_net import TOKEN_VARIABLE
from cloudedge.clock import SystemClock, rfc3339
from cloudedge.errors import ConfigError, InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cloudedge.cube.delivery import Expected, Replica, ReplicaReport, ServerLayout

__all__ = ["app", "read_layout"]

app = typer.Typer(help="Look at the servers of tables.", no_args_is_help=True)

_COLUMNS = ("replica", "active", "lag", "rows", "checksum", "memory", "misses", "probe", "versions", "problems")


@app.command()
def status(
    of: str = typer.Option("", "--of", help="An entry of `transfers` in cloudedge.yaml, whose servers to show."),
    layout: Path | None = typer.Option(None, help="YAML with the servers and their admin ports by table and shard."),
    conf: Path | None = typer.Option(None, help="A cube.conf instead; admin ports are those after the data ports."),
    config: Path | None = typer.Option(None, "--config", help="Upstream's transfer.conf: its servers."),
    key: list[str] = typer.Option([], help="A key to read on every replica of its shard; TABLE=KEY or KEY."),
    bundle: str | None = typer.Option(None, help="A bundle in the local hub whose probe keys and rows are expected."),
    hub: Path | None = typer.Option(None, metavar="DIR", help="Where that is; ~/.cloudedge/hub if left out."),
    watch: bool = typer.Option(False, "--watch", help="Repeat until a replica is away or differs."),
    every_s: float = typer.Option(2.0, min=0.1, help="Seconds between two reports."),
    as_json: bool = JSON,
) -> None:
    """Show the versions of every replica and whether they agree; fails when one is away or answers otherwise.

    A fault counts only if it is still there a second later: a delivery that is just switching over is no fault.
    The admin token comes from CLOUDEDGE_CUBE_TOKEN. Example: cloudedge cube status --conf cube.conf --key 17 --watch
    """
    from cloudedge.cube.delivery import (  # noqa: PLC0415 - imports numpy
        look_twice,
        require_agreement,
        table_of,
    )

    if sum(map(bool, (of, layout, conf, config))) != 1:
        raise ConfigError("name the servers once: with --of, --layout, --conf or --config")
    with _replicas(of, layout, conf, config) as replicas:
        shards: dict[str, int] = {}
        for each in replicas:
            shards[table_of(each)] = max(shards.get(table_of(each), 0), each.shard + 1)
        expected = _expected(shards, key, bundle, hub)
        while True:
            reports = look_twice(replicas, expected)
            _show(reports, as_json=as_json)
            require_agreement(reports)
            if not watch:
                return
            time.sleep(every_s)


@contextmanager
def _replicas(of: str, layout: Path | None, conf: Path | None, config: Path | None) -> Iterator[Sequence[Replica]]:
    from cloudedge.cube import TransferConf  # noqa: PLC0415
    from cloudedge.cube.upstream import ConfiguredTransfer, UpstreamFleet  # noqa: PLC0415

    token = os.environ.get(TOKEN_VARIABLE, "")
    if of:
        with ConfiguredTransfer(of, configuration(), token=token).replicas() as replicas:
            yield replicas
    elif config:
        with UpstreamFleet([TransferConf.from_file(config)]) as fleet:
            yield fleet.replicas
    else:
        yield read_layout(layout, conf).replicas(token=token)


def read_layout(layout: Path | None, conf: Path | None) -> ServerLayout:
    """Read the servers from one of the two files that name them."""
    from cloudedge.cube import CubeConf  # noqa: PLC0415
    from cloudedge.cube.delivery import ServerLayout  # noqa: PLC0415

    if (layout is None) == (conf is None):
        raise ConfigError("name the servers once: with --layout or with --conf")
    return (
        ServerLayout.from_file(layout) if layout is not None else ServerLayout.from_conf(CubeConf.from_file(str(conf)))
    )


def _expected(shards: Mapping[str, int], keys: list[str], bundle: str | None, hub: Path | None) -> dict[str, Expected]:
    """Return the keys to read: those that were named, and a bundle's probes with its rows for them."""
    from cloudedge.bundle import Bundle  # noqa: PLC0415
    from cloudedge.cube.delivery import Expected, find_rows  # noqa: PLC0415

    named: dict[str, list[int]] = {table: [] for table in shards}
    for each in keys:
        table, _, text = each.rpartition("=")
        for name in [table] if table else named:
            if name not in named or not text.isdecimal() or int(text) >= 1 << 64:
                raise InputError(f"{each!r} is no key of a table that is served", hint="Write KEY, or TABLE=KEY.")
            named[name].append(int(text))
    opened = None if bundle is None else Bundle.open(bundle, hub=local_hub(hub))
    expected = {}
    for table, some in named.items():
        rows = opened.sparse.get(table) if opened else None
        if opened is not None and rows is not None:
            import numpy as np  # noqa: PLC0415

            some = [*some, *opened.probes.keys.get(table, ())]  # noqa: PLW2901 - the same list, longer
            values, found = find_rows(rows, np.array(some, np.uint64))
            held = {k: v.tobytes() if there else None for k, v, there in zip(some, values, found, strict=True)}
            expected[table] = Expected(tuple(some), shards[table], opened.pin, held)
        elif some:
            expected[table] = Expected(tuple(some), shards[table])
    return expected


def _show(reports: list[ReplicaReport], *, as_json: bool) -> None:
    at = rfc3339(SystemClock().now())  # of the probes too
    if as_json:
        json_out({"at": at, "replicas": [each.as_json() for each in reports]})
        return
    rows = [
        (
            each.replica,
            each.active or "-",
            "-" if each.lag is None else each.lag,
            "-" if each.rows is None else each.rows,
            each.checksum or "-",
            size(each.memory_bytes),
            "-" if each.miss_rate is None else f"{each.miss_rate:.2%}",
            each.probe,
            " ".join(name if state == "loaded" else f"{name}({state})" for name, state in each.versions.items()),
            "; ".join(each.problems),
        )
        for each in reports
    ]
    table_out(_COLUMNS, rows)
    say("{}: {} replicas, {} with problems", at, len(reports), sum(bool(each.problems) for each in reports))
