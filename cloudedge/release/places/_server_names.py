"""The names of a target's servers, and the cube.conf that leads readers to its shards. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from cloudedge.cube import CubeConf, CubeTable

__all__ = ["TableLayout", "TargetServer", "cube_conf", "layout_name", "live_shards", "parse_place", "shard_place"]

_TIMEOUT_MS, _RETRY = 1000, 2

TableLayout = tuple[str, int]
"""A table and the number of its shards."""


class TargetServer(Protocol):
    """A server of a target: the name of its place and the addresses it listens on."""

    @property
    def place(self) -> str:
        """The name of its place: ``sparse/embedding/0of2/1``, ``dense/0``."""
        ...

    @property
    def table(self) -> str:
        """Sparse: the table that it holds a shard of."""
        ...

    @property
    def shard(self) -> int:
        """Sparse: the number of the shard."""
        ...

    @property
    def shards(self) -> int:
        """Sparse: the number of shards of the table."""
        ...

    @property
    def address(self) -> str:
        """The address that answers requests, ``host:port``."""
        ...

    @property
    def admin(self) -> str:
        """The URL of its admin API."""
        ...


def shard_place(table: str, shard: int, shards: int, replica: int) -> str:
    """Return the name of a shard replica's place."""
    return f"sparse/{table}/{shard}of{shards}/{replica}"


def parse_place(place: str) -> tuple[str, int, int]:
    """Read table, shard and number of shards from the name of a shard replica's place."""
    _, table, part, _ = place.split("/")
    shard, _, shards = part.partition("of")
    return table, int(shard), int(shards)


def layout_name(table: str, shards: int) -> str:
    """Return the name of a table's layout in cube.conf, which no table of cloudedge.yaml can have."""
    return f"{table}@{shards}"


def cube_conf(cuts: Mapping[TableLayout, Sequence[Sequence[str]]], plain: Mapping[str, int]) -> CubeConf:
    """Return the cube.conf of all layouts.

    Args:
        cuts: By layout: for each shard the addresses of its replicas.
        plain: By table: the number of shards of the layout that readers without a pin get.
    """
    names = {cut[0]: cut for cut in plain.items() if cut in cuts} | {layout_name(*cut): cut for cut in cuts}
    return CubeConf(tuple(_conf_table(name, cuts[cut]) for name, cut in names.items()))


def live_shards(conf: CubeConf) -> dict[str, int]:
    """Read from a cube.conf, by table, the number of shards of the layout that readers without a pin get."""
    return {each.table_name: each.shards for each in conf.tables if "@" not in each.table_name}


def _conf_table(name: str, replicas: Sequence[Sequence[str]]) -> CubeTable:
    return CubeTable.model_validate(
        {
            "dict_name": name,
            "shard": len(replicas),
            "dup": len(replicas[0]),
            "timeout": _TIMEOUT_MS,
            "retry": _RETRY,
            "backup_request": _TIMEOUT_MS // (1 + _RETRY),
            "type": "ipport_list",
            "nodes": [{"ipport_list": "list://" + ",".join(addresses)} for addresses in replicas],
        }
    )
