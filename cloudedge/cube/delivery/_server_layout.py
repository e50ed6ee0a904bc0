"""The layout of servers: the data and admin ports of every replica of every shard of every table.

    tables:
      emb:
        - [{address: "10.0.0.1:8027", admin: "10.0.0.1:8028"}, {address: "10.0.0.2:8027"}]   # shard 0
        - [{address: "10.0.0.3:8027"}, {address: "10.0.0.4:8027"}]                            # shard 1

An admin port that is not given is the one after the data port, as `cloudedge cube serve` has it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from cloudedge.cube.delivery._cube_replica import CubeReplica
from cloudedge.cube.formats import CubeConf, CubeTable, NodeList, read_text_file
from cloudedge.errors import ConfigError
from cloudedge.io import join_address, parse_address

__all__ = ["ServerAddress", "ServerLayout"]


def _address(text: str) -> str:
    try:
        parse_address(text)
    except ConfigError as error:
        raise ValueError(error.message) from error
    return text


_Address = Annotated[str, AfterValidator(_address)]


class ServerAddress(BaseModel):
    """One server's two ports."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    address: _Address
    """Its data port, host:port."""
    admin: _Address | None = None
    """Its admin port; the port after the data port if left out."""

    @property
    def admin_address(self) -> str:
        """Its admin port, given or not."""
        if self.admin:
            return self.admin
        host, port = parse_address(self.address)
        return join_address(host, port + 1)


class ServerLayout(BaseModel):
    """The servers of all tables."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tables: Mapping[str, tuple[Annotated[tuple[ServerAddress, ...], Field(min_length=1)], ...]]
    """By table, for each shard in order, its replicas."""

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> ServerLayout:
        """Read a YAML file.

        Raises:
            ConfigError: the file cannot be read or is no layout; the message names the field and its value.
        """
        try:
            return cls.model_validate(yaml.safe_load(read_text_file(path)))
        except yaml.YAMLError as error:
            raise ConfigError(f"{path} is not YAML: {error}", path=str(path)) from error
        except ValidationError as error:
            problem = error.errors()[0]
            field = ".".join(map(str, problem["loc"])) or "the file"
            raise ConfigError(
                f"{path}: {field}: {problem['msg']}",
                hint='Write tables: {NAME: [[{address: "host:port", admin: "host:port"}, ...], ...]}.',
                path=str(path),
                field=field,
            ) from error

    @classmethod
    def from_conf(cls, conf: CubeConf) -> ServerLayout:
        """Take the servers of a cube.conf; their admin ports are those after their data ports."""
        return cls.model_validate(
            {
                "tables": {
                    each.table_name: [
                        [{"address": join_address(host, port)} for host, port in each.replicas(shard)]
                        for shard in range(each.shards)
                    ]
                    for each in conf.tables
                }
            }
        )

    def replicas(self, *, token: str = "", **options: Any) -> list[CubeReplica]:
        """Return every server as a replica; `options` are a `CubeReplica`'s."""
        return [
            CubeReplica(table, shard, address=each.address, admin=each.admin_address, token=token, **options)
            for table, shards in self.tables.items()
            for shard, servers in enumerate(shards)
            for each in servers
        ]

    def addresses(self, table: str) -> set[str]:
        """Return the data ports of a table's servers."""
        return {server.address for shard in self.tables[table] for server in shard}

    def to_conf(self, before: CubeConf | None = None) -> CubeConf:
        """Make the cube.conf that clients read; timeouts, retries and unknown fields are kept from the file before."""
        kept = {each.table_name: each for each in before.tables} if before else {}
        return CubeConf(
            (
                *(_conf_table(table, shards, kept.pop(table, None)) for table, shards in self.tables.items()),
                *kept.values(),
            )
        )


def _conf_table(table: str, shards: tuple[tuple[ServerAddress, ...], ...], before: CubeTable | None) -> CubeTable:
    # A hanging replica is joined by another one in time for an answer; with 0 it never would be.
    kept = before.model_dump(by_alias=True) if before else {"timeout": 500, "retry": 1, "backup_request": 250}
    nodes = [NodeList(ipport_list="list://" + ",".join(each.address for each in servers)) for servers in shards]
    placed = {"dict_name": table, "shard": len(shards), "dup": len(shards[0]), "type": "ipport_list", "nodes": nodes}
    return CubeTable.model_validate({**kept, **placed})
