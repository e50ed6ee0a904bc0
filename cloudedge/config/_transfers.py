"""Transfers in ``cloudedge.yaml``: how tables get to their servers."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field, model_validator

from cloudedge.config._fields import Address, Duration, Secret, Section, Size

__all__ = ["TransferConfig", "TransferServer", "TransferTable"]


class TransferServer(Section):
    """One server that tables are delivered to."""

    address: Address = Field(description="its data port, host:port")
    admin: Address | None = Field(None, description="cube: its admin port; the port after the data port if left out")
    agent: Address | None = Field(None, description="upstream: its agent, host:port")
    folder: str = Field("", description="upstream: the working directory of the server, as its agent sees it")


class TransferTable(Section):
    """A table, where its rows come from and where they go."""

    shards: tuple[Annotated[tuple[TransferServer, ...], Field(min_length=1)], ...] = Field(
        min_length=1, description="for each shard, in order, its servers"
    )
    donefiles: str = Field(
        "", description="the folder of base.txt and patch.txt: a path, http://, s3://, bos:// or ftp://; empty: bundles"
    )
    patches: bool = Field(True, description="also what patch.txt says; false: bases only")


class TransferConfig(Section):
    """How tables get to their servers."""

    servers: Literal["cube", "upstream"] = Field("cube", description="whose servers they are")
    tables: dict[str, TransferTable] = Field(min_length=1)
    work: str = Field(
        "", description="where artifacts, rows and the journal are; below cloudedge's own folder if empty"
    )
    token: Secret | None = Field(None, description="cube: the admin token, as env:NAME or file:PATH")
    poll: Duration = Field(timedelta(minutes=5), description="between looks at the donefiles")
    keep: int = Field(2, ge=2, le=64, description="versions each server keeps loaded")
    max_deltas: int = Field(8, ge=0, le=64, description="deltas a version may be made of before it travels whole")
    max_delta_share: float = Field(0.5, gt=0, le=1, description="their bytes, as a share of the whole, before that")
    artifacts_kept: int = Field(6, ge=1, le=1000, description="bases and deltas kept after a delivery")
    jobs: int = Field(8, ge=1, le=256, description="servers worked on at the same time")
    attempts: int = Field(6, ge=1, le=100, description="tries of one step on one server, where that can help")
    deadline: Duration = Field(timedelta(hours=4), description="for everything before activation")
    bandwidth: Size | None = Field(
        None, description="bytes a second for all servers together; as fast as it goes if left out"
    )
    files_host: str = Field("127.0.0.1", description="where the artifacts are served while they are delivered")
    files_port: int = Field(0, ge=0, le=65535, description="its port; any free one if 0")
    public_host: str = Field("", description="what servers call this machine; files_host if empty")
    through_agent: bool = Field(False, description="upstream: send control commands by the agents, not to the servers")

    @model_validator(mode="after")
    def _fields_fit_the_servers(self) -> TransferConfig:
        seen: set[str] = set()
        for table, where in self.tables.items():
            for shard, servers in enumerate(where.shards):
                for server in servers:
                    if server.address in seen:
                        raise ValueError(f"{table}, shard {shard}: {server.address} is named twice; it holds one shard")
                    seen.add(server.address)
                    if self.servers == "upstream" and not (server.agent and server.folder):
                        raise ValueError(f"{table}, shard {shard}: {server.address} needs agent and folder")
                    if self.servers == "cube" and (server.agent or server.folder):
                        raise ValueError(f"{table}, shard {shard}: agent and folder mean nothing to a cube server")
            if self.servers == "upstream" and len({len(servers) for servers in where.shards}) > 1:
                raise ValueError(f"{table}: upstream's shards have the same number of servers each")
        return self
