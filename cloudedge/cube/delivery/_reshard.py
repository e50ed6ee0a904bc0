"""Resharding from n to m shards: new servers get the same versions beside the old ones, then readers are moved.

    1  deliver     the versions to the new layout's servers, verified; the old ones go on answering
    2  compare     both layouts answer from that version, and the checksums of their shards add up to its rows
    3  move        a new cube.conf, published by rename; readers that read it ask the new servers from then on
    4  free        the old servers drain once no reader asks them any more

Both layouts are live from the end of 1 to 4, so a reader may change over at any time, and back.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cloudedge.clock import Clock, SystemClock
from cloudedge.cube.delivery._cube_replica import CubeReplica
from cloudedge.cube.delivery._delivery import Delivery
from cloudedge.cube.delivery._delivery_plan import ObservedReplica
from cloudedge.cube.delivery._replica_steps import observe, table_of
from cloudedge.cube.delivery._server_layout import ServerLayout
from cloudedge.cube.delivery._table_shards import TableVersion, add_up
from cloudedge.cube.formats import CubeConf
from cloudedge.errors import ConfigError, Conflict, DeadlineExceeded, IntegrityError, StorageError, Unavailable
from cloudedge.io import write_atomically

__all__ = ["Resharded", "free_servers", "require_apart", "require_live", "reshard", "write_conf"]

_POLL_S = 0.2


@dataclass(frozen=True)
class Resharded:
    """The outcome of a reshard."""

    shards: Mapping[str, tuple[int, int]]
    """By table, before and now."""
    shipped_bytes: int
    conf: Path


def reshard(
    versions: Sequence[TableVersion],
    *,
    old: ServerLayout,
    new: ServerLayout,
    delivery: Delivery,
    conf: str | os.PathLike[str],
    token: str = "",
) -> Resharded:
    """Bring versions of tables to a layout with another number of shards and move readers there.

    Tables that `versions` does not name stay where cube.conf has them.

    Args:
        versions: All versions that readers may be pinned to, those of a table in order, its active one last.
        old: The layout that serves them now.
        new: The new layout, on other servers.
        delivery: The delivery to the new layout's replicas.
        conf: The cube.conf that readers read; replaced by rename.
        token: The token of the old servers' admin API.

    Raises:
        ConfigError: a table is in one layout only, or the layouts share a server.
        Conflict: the old servers answer from another version; no reader was moved.
        IntegrityError: a layout does not hold the version's rows; no reader was moved.
        CloudEdgeError: a delivery failed; no reader was moved.
    """
    by_table: dict[str, list[TableVersion]] = {}
    for version in versions:
        by_table.setdefault(version.table, []).append(version)
    require_apart(by_table, old, new)
    before = [each for each in old.replicas(token=token) if table_of(each) in by_table]
    for each in by_table.values():
        require_live(each[-1], list(map(observe, before)), "old")
    shipped = 0
    # Tables go together, so that the versions before are one delivery to roll back to.
    for back in range(max(map(len, by_table.values())), 0, -1):
        together = [each[-back] for each in by_table.values() if len(each) >= back]
        bases = [base for each in by_table.values() for base in each[:-back]]
        shipped += delivery.deliver(together, bases).shipped_bytes
    for each in by_table.values():  # another process may have delivered to the old servers meanwhile
        require_live(each[-1], list(map(observe, before)), "old")
        require_live(each[-1], delivery.observe(), "new")
    path = Path(conf)
    moved = ServerLayout(tables={table: new.tables[table] for table in by_table})
    write_conf(path, moved.to_conf(CubeConf.from_file(path) if path.exists() else old.to_conf()))
    return Resharded({table: (len(old.tables[table]), len(new.tables[table])) for table in by_table}, shipped, path)


def require_apart(tables: Iterable[str], old: ServerLayout, new: ServerLayout) -> None:
    """Require that both layouts have the tables, on servers of their own.

    Raises:
        ConfigError: a table is missing, or a server is in both; the message names it.
    """
    for table in tables:
        for which, layout in (("old", old), ("new", new)):
            if table not in layout.tables:
                raise ConfigError(
                    f"the {which} layout has no table {table!r}",
                    hint=f"It has: {', '.join(sorted(layout.tables)) or 'none'}. Add the table's servers there.",
                    table=table,
                )
        shared = old.addresses(table) & new.addresses(table)
        if shared:
            raise ConfigError(
                f"{min(shared)} is in both layouts of table {table!r}",
                hint="A server holds one shard of one number of shards. Start new servers for the new layout.",
            )


def free_servers(
    servers: Sequence[CubeReplica], *, rest_s: float = 5, deadline_s: float = 600, clock: Clock | None = None
) -> None:
    """Drain servers once no reader has asked any of them for a while.

    Raises:
        DeadlineExceeded: readers still ask; the message names the servers.
    """
    clock = clock or SystemClock()
    deadline = clock.monotonic() + deadline_s
    counts, since = _counts(servers), clock.monotonic()
    while clock.monotonic() - since < rest_s:
        clock.sleep(_POLL_S)
        now = _counts(servers)
        if now != counts:
            asked = [name for name, count in now.items() if counts.get(name) != count]
            counts, since = now, clock.monotonic()
            if since > deadline:
                raise DeadlineExceeded(
                    f"{', '.join(asked)} is still asked by readers after {deadline_s:g} s",
                    hint="Find the readers that have not read the new cube.conf, then run the same command again.",
                    replicas=asked,
                )
    for server in servers:
        server.drain()


def write_conf(path: Path, conf: CubeConf) -> None:
    """Publish a cube.conf whole: readers see the old file or the new one."""
    try:
        write_atomically(path, conf.to_text())
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}", path=str(path)) from error


def _counts(servers: Sequence[CubeReplica]) -> dict[str, int]:
    return {server.name: server.status().keys for server in servers}


def require_live(version: TableVersion, observed: Sequence[ObservedReplica], which: str) -> None:
    """Require that a layout answers from a version, with its rows: each shard, by those of its replicas that answer.

    Raises:
        Unavailable: no replica of a shard answers.
        Conflict: one answers from another version.
        IntegrityError: its shards do not add up to the version's rows.
    """
    seen = [each for each in observed if each.table == version.table]
    for shard in range(max(each.shard for each in seen) + 1):
        there = [each for each in seen if each.shard == shard and each.status is not None]
        if not there:
            raise Unavailable(
                f"no server of shard {shard} of table {version.table!r} on the {which} servers answers",
                hint="No reader was moved. Start one of them, then run the same command again.",
                table=version.table,
                shard=shard,
            )
        for each in there:
            if each.status is not None and each.status.active != version.version:
                raise Conflict(
                    f"{each.replica}, one of the {which} servers, answers from {each.status.active or 'no version'}, "
                    f"not from {version.version}",
                    hint="No reader was moved. Name the active version (`cloudedge cube status`), or deliver this one.",
                    table=version.table,
                    replica=each.replica,
                )
    total = _total(seen, version.version, version.rows.kind.row_bytes)
    if total != version.checksum:
        raise IntegrityError(
            f"version {version.version} of table {version.table!r} adds up to {total or 'nothing known'} on the "
            f"{which} servers, its rows to {version.checksum}",
            hint="No reader was moved. Deliver the version to both layouts again.",
            table=version.table,
        )


def _total(observed: Sequence[ObservedReplica], version: str, width: int) -> str | None:
    """Add up the checksums of the shards; None where one is unknown, or its replicas do not agree."""
    sums: dict[int, str] = {}
    for each in observed:
        held = each.status.loaded().get(version) if each.status else None
        if (
            held is not None
            and held.checksum is not None
            and sums.setdefault(each.shard, held.checksum) != held.checksum
        ):
            return None
    shards = max(each.shard for each in observed) + 1
    return add_up(sums, shards, width) if len(sums) == shards else None
