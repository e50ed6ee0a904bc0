"""`UpstreamFleet`: the upstream servers of transfer.conf files, and deliveries whose files their agents can fetch."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloudedge.admin import is_loopback
from cloudedge.clock import Clock, SystemClock
from cloudedge.cube.delivery import ArtifactCache, DeliveryPolicy
from cloudedge.cube.formats import TransferConf
from cloudedge.cube.upstream.servers._upstream_delivery import UpstreamDelivery
from cloudedge.cube.upstream.servers._upstream_replica import UpstreamReplica, UpstreamTimes
from cloudedge.cube.upstream.servers._version_ids import VersionIds, journal_memory
from cloudedge.errors import Conflict, StorageError
from cloudedge.io import read_body
from cloudedge.journal import Journal, Writer

__all__ = ["TransferOptions", "UpstreamFleet"]


@dataclass(frozen=True)
class TransferOptions:
    """Options that upstream's transfer.conf does not have."""

    files_host: str = ""
    """The address that artifacts are served on; transfer_address if left out."""
    limit_bytes_per_s: float | None = None
    """The limit of all downloads of agents together."""
    through_agent: bool = False
    """Send ``reload`` and ``enable`` through the agents, if control commands cannot reach the servers from here."""
    times: UpstreamTimes = field(default_factory=UpstreamTimes)
    policy: DeliveryPolicy = field(default_factory=DeliveryPolicy)


class UpstreamFleet:
    """The upstream servers of one table or several; use as a context.

    >>> with UpstreamFleet([conf]) as fleet, fleet.delivery() as delivery:  # doctest: +SKIP
    ...     delivery.deliver([TableVersion("emb", bundle.pin, bundle.sparse["emb"])]).switch

    Args:
        confs: One for each table. They deliver from one address: the first one's.
        work: The directory of artifacts and the journal; if left out, that of a transfer of the first table, so that
            the two know of each other.
        options: Options that upstream's configuration does not have.
        clock: Time and randomness.
    """

    def __init__(
        self,
        confs: Sequence[TransferConf],
        work: Path | None = None,
        *,
        options: TransferOptions | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._conf = confs[0]
        self._options = options or TransferOptions()
        self._clock = clock or SystemClock()
        self.workshop = ArtifactCache(work or Path(self._conf.output_address) / f"cloudedge-{self._conf.table}")
        self.journal = Journal(self.workshop.directory / "journal.db", clock=self._clock)
        # The holder of the journal's lock writes numbers, and a delivery in this process holds it.
        memory = journal_memory(self.journal, Writer(self.journal))
        self.ids = {conf.table: VersionIds(conf.table, memory, clock=self._clock) for conf in confs}
        self.replicas = [
            UpstreamReplica(
                table=conf.table,
                shard=shard,
                copy=copy,
                agent=conf.agents[shard, copy],
                cube=conf.cubes[shard, copy],
                ids=self.ids[conf.table],
                through_agent=self._options.through_agent,
                times=self._options.times,
                clock=self._clock,
            )
            for conf in confs
            for shard, copy in sorted(conf.cubes)
        ]

    def close(self) -> None:
        """Close connections and files."""
        for replica in self.replicas:
            replica.close()
        self.journal.close()

    def __enter__(self) -> UpstreamFleet:  # noqa: PYI034 - typing.Self is not in 3.10
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def delivery(self) -> Iterator[UpstreamDelivery]:
        """Open a delivery whose files agents can fetch: from this process, or from the server on the configured port.

        Raises:
            Conflict: another program has that port and does not serve the files.
        """
        conf, host = self._conf, self._options.files_host or self._conf.transfer_address
        common: dict[str, Any] = {
            "policy": self._options.policy,
            "clock": self._clock,
            "limit_bytes_per_s": self._options.limit_bytes_per_s,
        }
        if conf.download_mode == "http":
            token = "" if is_loopback(host) else secrets.token_urlsafe(24)
            try:
                delivery = UpstreamDelivery(
                    self.replicas, self.workshop, files_host=host, files_port=conf.wget_port, files_token=token,
                    public_host=conf.transfer_address, **common,
                )  # fmt: skip
            except Conflict:  # a file server of the user's own has that port, as upstream wants it
                delivery = self._served_by_others(common)
        else:
            delivery = self._served_by_others(common)
        with delivery:
            yield delivery

    def _served_by_others(self, common: dict[str, Any]) -> UpstreamDelivery:
        url = f"{self._conf.download_mode}://{self._conf.transfer_address}:{self._conf.wget_port}"
        if self._conf.download_mode == "http":
            self._require_served(url)
        return UpstreamDelivery(self.replicas, self.workshop, files_url=url, **common)

    def _require_served(self, url: str) -> None:
        """Require that the program on the port serves this machine's files by their path."""
        import requests  # noqa: PLC0415 - slow to import

        mark = self.workshop.artifacts / "served.txt"
        text = secrets.token_hex(8)
        try:
            mark.write_text(text)
            with requests.get(f"{url}{mark}", timeout=10, stream=True) as answer:
                served = read_body(answer, 2 * len(text)) == text.encode()
        except requests.RequestException:
            served = False
        except OSError as error:
            raise StorageError(f"cannot write {mark}: {error.strerror}", path=str(mark)) from error
        finally:
            mark.unlink(missing_ok=True)
        if not served:
            raise Conflict(
                f"something else listens on {url} and does not serve {self.workshop.artifacts} by its path",
                hint="Free wget_port, so that this process serves the files, or let that server serve output_address.",
            )
