"""Deliveries and transfers from the `transfers` section of cloudedge.yaml."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from cloudedge.config import Config, HubConfig, TransferConfig, TransferTable, home, reveal
from cloudedge.cube.delivery import ArtifactCache, Delivery, DeliveryPolicy, Replica, ServerLayout
from cloudedge.cube.formats import CubeAddress, TransferConf
from cloudedge.cube.upstream._cube_transfer import CubeTransfer
from cloudedge.cube.upstream._transfer import Transfer
from cloudedge.cube.upstream.servers import TransferOptions, UpstreamFleet, UpstreamTimes
from cloudedge.errors import ConfigError
from cloudedge.io import parse_address

__all__ = ["ConfiguredTransfer"]


class ConfiguredTransfer:
    """One entry of `transfers`, ready to deliver.

    Args:
        name: Its name in cloudedge.yaml.
        config: The whole of cloudedge.yaml.
        token: The token of the servers' admin APIs, where the entry has none.

    Raises:
        ConfigError: there is no entry of that name.
    """

    def __init__(self, name: str, config: Config, *, token: str = "") -> None:
        found = config.transfers.get(name)
        if found is None:
            known = ", ".join(sorted(config.transfers)) or "none"
            raise ConfigError(f"there is no transfer {name!r}", hint=f"Use one that cloudedge.yaml names: {known}.")
        self.name = name
        self.config: TransferConfig = found
        self.token = reveal(found.token) if found.token is not None else token
        self.work = Path(found.work).expanduser() if found.work else home() / "transfers" / name
        self._hubs: Mapping[str, HubConfig] = config.hubs

    @property
    def policy(self) -> DeliveryPolicy:
        """The settings of the delivery."""
        given = self.config
        return DeliveryPolicy(
            jobs=given.jobs,
            attempts=given.attempts,
            deadline_s=given.deadline.total_seconds(),
            keep=given.keep,
            max_deltas=given.max_deltas,
            max_delta_share=given.max_delta_share,
            artifacts_kept=given.artifacts_kept,
        )

    @property
    def layout(self) -> ServerLayout:
        """The servers, which are cloudedge's own.

        Raises:
            ConfigError: the servers are upstream's.
        """
        if self.config.servers != "cube":
            raise ConfigError(
                f"the servers of transfer {self.name!r} are upstream's, which cannot be moved or drained from here",
                hint="Deliver the bundle to an entry with the new servers, then give readers a cube.conf with those.",
            )
        return ServerLayout.model_validate(
            {
                "tables": {
                    name: [[{"address": one.address, "admin": one.admin} for one in shard] for shard in table.shards]
                    for name, table in self.config.tables.items()
                }
            }
        )

    @contextmanager
    def replicas(self) -> Iterator[Sequence[Replica]]:
        """Open every server of every table, of either kind, for status reports; a context."""
        if self.config.servers == "cube":
            yield self.layout.replicas(token=self.token)
            return
        with ExitStack() as stack:
            # The names behind upstream's numbers are known where the table is delivered from.
            fleets = [UpstreamFleet([conf]) for conf in self._confs(donefiles=True)]
            if bundles := self._confs(donefiles=False):
                fleets.append(UpstreamFleet(bundles, self.work))
            yield [replica for fleet in fleets for replica in stack.enter_context(fleet).replicas]

    @contextmanager
    def delivery(self) -> Iterator[Delivery]:
        """Open a delivery of bundles' tables; a context.

        Raises:
            ConfigError: the servers are upstream's, and every table follows donefiles.
        """
        if self.config.servers == "upstream":
            with self._bundles_to_upstream() as fleet, fleet.delivery() as guarded:
                yield guarded
            return
        with Delivery(
            self.layout.replicas(token=self.token, deadline_s=self.policy.deadline_s),
            ArtifactCache(self.work),
            policy=self.policy,
            files_host=self.config.files_host,
            files_port=self.config.files_port,
            files_token=self.token,
            public_host=self.config.public_host,
            limit_bytes_per_s=self.config.bandwidth,
        ) as delivery:
            yield delivery

    def _bundles_to_upstream(self) -> UpstreamFleet:
        """Open the servers that bundles go to: two slots have room for one master only."""
        confs = self._confs(donefiles=False)
        if not confs:
            raise ConfigError(
                f"every table of transfer {self.name!r} follows its donefiles; upstream's servers follow one master",
                hint=f"Run `cloudedge cube transfer {self.name}`, or remove `donefiles` from tables that bundles have.",
            )
        return UpstreamFleet(confs, self.work, options=self._options)

    def transfer(self, table: str = "") -> Transfer:
        """Open the transfer that keeps a table's servers on its donefiles; a context.

        Args:
            table: The table, where several have donefiles: each is kept by a process of its own, as upstream's are.

        Raises:
            ConfigError: there is no such table, none has donefiles, or several have.
        """
        able = {name: each for name, each in self.config.tables.items() if each.donefiles}
        if table:
            able = {name: each for name, each in able.items() if name == table}
        if len(able) != 1:
            known = ", ".join(
                f"{name} (donefiles: {each.donefiles or 'none'})" for name, each in self.config.tables.items()
            )
            raise ConfigError(
                f"transfer {self.name!r}: {'several tables have' if able else 'there is no table with'} donefiles"
                + (f" and the name {table!r}" if table else ""),
                hint=f"Name one with `--table`. There are: {known}.",
            )
        ((name, where),) = able.items()
        conf = self._conf(name, where)
        if self.config.servers == "cube":
            return CubeTransfer(conf, self.layout, token=self.token, hubs=self._hubs, options=self._options)
        return Transfer(conf, hubs=self._hubs, options=self._options)

    @property
    def _options(self) -> TransferOptions:
        return TransferOptions(
            files_host=self.config.files_host,
            limit_bytes_per_s=self.config.bandwidth,
            through_agent=self.config.through_agent,
            times=_within(self.policy.deadline_s),
            policy=self.policy,
        )

    def _confs(self, *, donefiles: bool) -> list[TransferConf]:
        """Return the tables that follow donefiles, or those that do not."""
        return [
            self._conf(name, each) for name, each in self.config.tables.items() if bool(each.donefiles) is donefiles
        ]

    def _conf(self, name: str, table: TransferTable) -> TransferConf:
        """Convert this entry to upstream's configuration."""
        instances = {
            (shard, copy): server for shard, servers in enumerate(table.shards) for copy, server in enumerate(servers)
        }
        return TransferConf(
            table=name,
            mode="base_delta" if table.patches else "base_only",
            download_mode="http",
            wget_port=self.config.files_port,
            buildtool_local="",
            donefile_address=table.donefiles,
            output_address=str(self.work),
            tmp_address=str(self.work),
            shard_num=len(table.shards),
            copy_num=max(len(servers) for servers in table.shards),
            deploy_path="",
            transfer_address=self.config.public_host or self.config.files_host,
            agents={place: parse_address(server.agent) for place, server in instances.items() if server.agent},
            cubes={
                place: CubeAddress(*parse_address(server.address), server.folder)
                for place, server in instances.items()
                if server.agent
            },
        )


def _within(deadline_s: float) -> UpstreamTimes:
    """Return the deadlines of single steps within the deadline of all of them together."""
    usual = UpstreamTimes()
    return replace(usual, stage_s=min(usual.stage_s, deadline_s), load_s=min(usual.load_s, deadline_s))
