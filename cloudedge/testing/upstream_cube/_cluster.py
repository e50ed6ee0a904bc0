"""`UpstreamCluster`: agents and servers for every shard and copy of a table, and the transfer.conf that names them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from cloudedge._renamed_arguments import renamed_arguments
from cloudedge.cube import TransferConf
from cloudedge.cube.formats import CubeAddress
from cloudedge.testing.upstream_cube._agent import UpstreamAgent
from cloudedge.testing.upstream_cube._server import UpstreamServer

__all__ = ["Instance", "UpstreamCluster"]


@dataclass(frozen=True)
class Instance:
    """One server and its agent."""

    shard: int
    copy: int
    agent: UpstreamAgent
    server: UpstreamServer


class UpstreamCluster:
    """Runs a table's agents and servers below a directory until closed.

    >>> with UpstreamCluster(tmp_path, shards=2, copies=2) as cluster:  # doctest: +SKIP
    ...     cluster.instances[0].server.version
    ''
    """

    def __init__(
        self,
        root: Path,
        *,
        shards: int = 1,
        copies: int = 1,
        generation: str = "B",
        time_scale: float = 0.001,
        load_s: float = 0.0,
    ) -> None:
        self.root = Path(root)
        self.shards, self.copies = shards, copies
        self.instances = [
            Instance(
                shard,
                copy,
                UpstreamAgent(time_scale=time_scale),
                UpstreamServer(
                    self.root / f"cube{shard}_{copy}",
                    generation=generation,
                    load_s=load_s,
                    seed=shard * copies + copy,
                ),
            )
            for shard in range(shards)
            for copy in range(copies)
        ]

    @renamed_arguments(dict_name="table")
    def conf(
        self, *, donefile_address: str, table: str = "ctr", mode: str = "base_only", wget_port: int = 1
    ) -> TransferConf:
        """Write transfer.conf, with the addresses of everything."""
        places = {(each.shard, each.copy): each for each in self.instances}
        return TransferConf(
            table=table,
            mode=mode,
            download_mode="http",
            wget_port=wget_port,
            buildtool_local="/opt/cube/cube-builder",
            donefile_address=donefile_address,
            output_address=str(self.root / "output"),
            tmp_address=str(self.root / "tmp"),
            shard_num=self.shards,
            copy_num=self.copies,
            deploy_path="/unused",
            transfer_address="127.0.0.1",
            agents={place: ("127.0.0.1", each.agent.port) for place, each in places.items()},
            cubes={
                place: CubeAddress("127.0.0.1", each.server.port, str(each.server.deploy_path))
                for place, each in places.items()
            },
        )

    def versions(self) -> list[str]:
        """Return the version that every server answers with, shard by shard."""
        return [each.server.version for each in self.instances]

    def close(self) -> None:
        """Stop everything."""
        for each in self.instances:
            each.agent.close()
            each.server.close()

    def __enter__(self) -> UpstreamCluster:  # noqa: PYI034 - typing.Self is not in 3.10
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
