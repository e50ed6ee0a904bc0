"""Transfer from donefiles to cloudedge's own servers: a base as a base, patches as changed rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from cloudedge.clock import Clock
from cloudedge.config import HubConfig
from cloudedge.cube.delivery import Delivery, ServerLayout, TableVersion
from cloudedge.cube.formats import TransferConf
from cloudedge.cube.upstream._transfer import Transfer
from cloudedge.cube.upstream.servers import TransferOptions

__all__ = ["CubeTransfer"]


class CubeTransfer(Transfer):
    """Keeps one table's cube servers on the version that its donefiles announce.

    Args:
        conf: The table, its donefiles and its folders; it names no agents.
        layout: The servers.
        token: For their admin APIs, and for fetching.
        hubs: From cloudedge.yaml, for donefiles in buckets.
        options: The options of the delivery.
        clock: Time and randomness.
    """

    def __init__(
        self,
        conf: TransferConf,
        layout: ServerLayout,
        *,
        token: str = "",
        hubs: Mapping[str, HubConfig] | None = None,
        options: TransferOptions | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(conf, hubs=hubs, options=options, clock=clock)  # without agents: no upstream servers
        self._token = token
        here = ServerLayout(tables={conf.table: layout.tables[conf.table]})
        self.replicas = here.replicas(token=token, deadline_s=self.options.policy.deadline_s)

    def _bases(self) -> Sequence[TableVersion]:
        """Return the rows that were delivered last, if they are still here: the delta is made from them."""
        live = self._at_hand(self.live)
        return [] if live is None else [live]

    @contextmanager
    def _delivery(self) -> Iterator[Delivery]:
        how: dict[str, Any] = {
            "policy": self.options.policy,
            "clock": self._clock,
            "limit_bytes_per_s": self.options.limit_bytes_per_s,
        }
        with Delivery(
            self.replicas, self._fleet.workshop, files_host=self.options.files_host or "127.0.0.1",
            files_port=self.conf.wget_port, files_token=self._token, public_host=self.conf.transfer_address, **how,
        ) as delivery:  # fmt: skip
            yield delivery
