"""Where servers of a target sit, and how readers find the shards among them: what every kind of target shares. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from cloudedge.cube import CubeConf, CubeDict

__all__ = ["Cut", "TargetServer", "cube_conf", "dictionary", "live_shards", "parse_place", "shard_place"]

_TIMEOUT_MS, _RETRY = 1000, 2

Cut = tuple[str, int]
"""A table, and into how many shards it is cut."""


class TargetServer(Protocol):
    """A server of a target: what a release calls it and where it listens."""

    @property
    def place(self) -> str:
        """As the release calls it: ``sparse/embedding/0of2/1``, ``dense/0``."""
        ...

    @property
    def table(self) -> str:
        """Of a shard: its table."""
        ...

    @property
    def shard(self) -> int:
        """Of a shard: which one."""
        ...

    @property
    def shards(self) -> int:
        """Of a shard: of how many."""
        ...

    @property
    def address(self) -> str:
        """Where it answers, ``host:port``."""
        ...

    @property
    def admin(self) -> str:
        """Where it takes orders, a URL."""
        ...


def shard_place(table: str, shard: int, shards: int, replica: int) -> str:
    """Name a shard replica."""
    return f"sparse/{table}/{shard}of{shards}/{replica}"


def parse_place(place: str) -> tuple[str, int, int]:
    """Read table, shard and number of shards from a shard replica's name."""
    _, table, part, _ = place.split("/")
    shard, _, shards = part.partition("of")
    return table, int(shard), int(shards)


def dictionary(table: str, shards: int) -> str:
    """Name a layout of a table in cube.conf; no table of cloudedge.yaml can be called that."""
    return f"{table}@{shards}"


def cube_conf(cuts: Mapping[Cut, Sequence[Sequence[str]]], plain: Mapping[str, int]) -> CubeConf:
    """Say where the shards are, of every layout there is.

    Args:
        cuts: By layout: for each shard the addresses of its replicas.
        plain: Into how many shards the tables are cut that readers without a pin get.
    """
    names = {cut[0]: cut for cut in plain.items() if cut in cuts} | {dictionary(*cut): cut for cut in cuts}
    return CubeConf(tuple(_dictionary(name, cuts[cut]) for name, cut in names.items()))


def live_shards(conf: CubeConf) -> dict[str, int]:
    """Read from a cube.conf into how many shards the tables are cut that readers without a pin get."""
    return {each.dict_name: each.shards for each in conf.dicts if "@" not in each.dict_name}


def _dictionary(name: str, replicas: Sequence[Sequence[str]]) -> CubeDict:
    return CubeDict.model_validate(
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
