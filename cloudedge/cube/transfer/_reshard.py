"""From n shards to m: the new servers get the same versions beside the old ones, then readers are moved.

    1  deliver     the versions to the new layout's servers, verified; the old ones go on answering
    2  compare     rows and checksums: shards' sums add up, so both layouts must come to the same total
    3  move        a new cube.conf, published by rename; readers that read it ask the new servers from then on
    4  free        the old servers drain once no reader asks them any more

Both layouts are live from the end of 1 to 4, so a reader may change over whenever it likes, and back.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cloudedge.clock import Clock, SystemClock
from cloudedge.cube._conf import CubeConf
from cloudedge.cube._workspace import sync_directory, write_synced
from cloudedge.cube.transfer._cube_replica import CubeReplica
from cloudedge.cube.transfer._deliver import Delivery
from cloudedge.cube.transfer._layout import Layout
from cloudedge.cube.transfer._plan import Observed
from cloudedge.cube.transfer._shards import TableVersion, add_up
from cloudedge.cube.transfer._steps import observe, table_of
from cloudedge.errors import ConfigError, DeadlineExceeded, IntegrityError, StorageError

__all__ = ["Resharded", "free_servers", "require_apart", "reshard", "write_conf"]

_POLL_S = 0.2


@dataclass(frozen=True)
class Resharded:
    """What changing the number of shards came to."""

    shards: Mapping[str, tuple[int, int]]
    """By table, before and now."""
    shipped_bytes: int
    conf: Path


def reshard(
    versions: Sequence[TableVersion],
    *,
    old: Layout,
    new: Layout,
    delivery: Delivery,
    conf: str | os.PathLike[str],
    token: str = "",
) -> Resharded:
    """Bring versions of tables to a layout with another number of shards and move readers there.

    Tables that `versions` does not name stay where cube.conf has them.

    Args:
        versions: All versions that readers may be pinned to, those of a table in order, its active one last.
        old: Where they are.
        new: Where they shall be: other servers.
        delivery: To the new layout's replicas.
        conf: The cube.conf that readers read; replaced by rename.
        token: Of the old servers' admin API.

    Raises:
        ConfigError: a table is in one layout only, or the layouts share a server.
        IntegrityError: the two layouts do not hold the same rows; nobody was moved.
        CloudEdgeError: a delivery failed; nobody was moved.
    """
    by_table: dict[str, list[TableVersion]] = {}
    for version in versions:
        by_table.setdefault(version.table, []).append(version)
    require_apart(by_table, old, new)
    shipped = 0
    # Tables go on together, so that what was before is one delivery to go back to.
    for back in range(max(map(len, by_table.values())), 0, -1):
        together = [each[-back] for each in by_table.values() if len(each) >= back]
        bases = [base for each in by_table.values() for base in each[:-back]]
        shipped += delivery.deliver(together, bases).shipped_bytes
    for each in by_table.values():
        _require_same_rows(each[-1], old, token, delivery)
    path = Path(conf)
    moved = Layout(tables={table: new.tables[table] for table in by_table})
    write_conf(path, moved.to_conf(CubeConf.from_file(path) if path.exists() else old.to_conf()))
    return Resharded({table: (len(old.tables[table]), len(new.tables[table])) for table in by_table}, shipped, path)


def require_apart(tables: Iterable[str], old: Layout, new: Layout) -> None:
    """Make sure that both layouts have the tables, on servers of their own.

    Raises:
        ConfigError: says which table or server is wrong.
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
                hint="A server holds one shard of one number of shards: start new servers for the new layout.",
            )


def free_servers(
    servers: Sequence[CubeReplica], *, rest_s: float = 5, deadline_s: float = 600, clock: Clock | None = None
) -> None:
    """Drain servers once nobody has asked any of them for a while.

    Raises:
        DeadlineExceeded: somebody still asks; says whom.
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
                    hint="Find who has not read the new cube.conf, then run the same command again.",
                    replicas=asked,
                )
    for server in servers:
        server.drain()


def write_conf(path: Path, conf: CubeConf) -> None:
    """Publish a cube.conf whole: readers see the old file or the new one."""
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        write_synced(unfinished, conf.to_text())
        unfinished.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}", path=str(path)) from error


def _counts(servers: Sequence[CubeReplica]) -> dict[str, int]:
    return {server.name: server.status().keys for server in servers}


def _require_same_rows(version: TableVersion, old: Layout, token: str, delivery: Delivery) -> None:
    """Add up both layouts' shards; both must come to the same rows."""
    width = version.rows.kind.row_bytes
    before = [observe(each) for each in old.replicas(token=token) if table_of(each) == version.table]
    now = [each for each in delivery.observe() if each.table == version.table]
    totals = [_total(observed, version.version, width) for observed in (before, now)]
    if None not in totals and totals[0] != totals[1]:
        raise IntegrityError(
            f"version {version.version} of table {version.table!r} adds up to {totals[0]} on the old shards and to "
            f"{totals[1]} on the new ones",
            hint="Nobody was moved. Deliver the version to both layouts again.",
            table=version.table,
        )


def _total(observed: Sequence[Observed], version: str, width: int) -> str | None:
    """Sum up the shards' rows; None where a shard cannot tell."""
    sums: dict[int, str] = {}
    for each in observed:
        held = each.status.loaded().get(version) if each.status else None
        if held is not None and held.checksum is not None:
            sums[each.shard] = held.checksum
    shards = max(each.shard for each in observed) + 1
    return add_up(sums, shards, width) if len(sums) == shards else None
