"""Transfers in ``cloudedge.yaml``: the delivery of tables to their servers."""

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
    """A table: the source of its rows and the servers they go to."""

    shards: tuple[Annotated[tuple[TransferServer, ...], Field(min_length=1)], ...] = Field(
        min_length=1, description="the servers of each shard, in the order of the shards"
    )
    donefiles: str = Field(
        "", description="the folder of base.txt and patch.txt: a path, http://, s3://, bos:// or ftp://; empty: bundles"
    )
    patches: bool = Field(True, description="deliver the deltas of patch.txt too; false: bases only")


class TransferConfig(Section):
    """The delivery of tables to their servers."""

    servers: Literal["cube", "upstream"] = Field("cube", description="the kind of servers")
    tables: dict[str, TransferTable] = Field(min_length=1)
    work: str = Field(
        "", description="the folder of artifacts, rows and the journal; below cloudedge's own folder if empty"
    )
    token: Secret | None = Field(None, description="cube: the admin token, as env:NAME or file:PATH")
    poll: Duration = Field(timedelta(minutes=5), description="time between two reads of the donefiles")
    keep: int = Field(2, ge=2, le=64, description="versions each server keeps loaded")
    max_deltas: int = Field(8, ge=0, le=64, description="deltas a version may consist of before it is sent whole")
    max_delta_share: float = Field(
        0.5, gt=0, le=1, description="share of the whole that the deltas may reach before that"
    )
    artifacts_kept: int = Field(6, ge=1, le=1000, description="bases and deltas kept after a delivery")
    jobs: int = Field(8, ge=1, le=256, description="servers worked on at the same time")
    attempts: int = Field(6, ge=1, le=100, description="attempts of one step on one server, if a retry can help")
    deadline: Duration = Field(timedelta(hours=4), description="time limit of everything before activation")
    bandwidth: Size | None = Field(None, description="bytes a second for all servers together; unlimited if left out")
    files_host: str = Field("127.0.0.1", description="the address that serves artifacts during a delivery")
    files_port: int = Field(0, ge=0, le=65535, description="port of that address; any free one if 0")
    public_host: str = Field("", description="this machine's name as the servers see it; files_host if empty")
    through_agent: bool = Field(
        False, description="upstream: send control commands through the agents, not to the servers"
    )

    @model_validator(mode="after")
    def _fields_fit_the_servers(self) -> TransferConfig:
        seen: set[str] = set()
        for table, where in self.tables.items():
            for shard, servers in enumerate(where.shards):
                for server in servers:
                    if server.address in seen:
                        raise ValueError(
                            f"{table}, shard {shard}: {server.address} is named twice; a server holds one shard"
                        )
                    seen.add(server.address)
                    if self.servers == "upstream" and not (server.agent and server.folder):
                        raise ValueError(f"{table}, shard {shard}: {server.address} needs agent and folder")
                    if self.servers == "cube" and (server.agent or server.folder):
                        raise ValueError(f"{table}, shard {shard}: agent and folder do not apply to a cube server")
            if self.servers == "upstream" and len({len(servers) for servers in where.shards}) > 1:
                raise ValueError(f"{table}: every upstream shard needs the same number of servers")
        return self
