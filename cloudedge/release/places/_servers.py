"""Cube servers and serving replicas as places of a release, wherever they run, through their admin APIs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from cloudedge.admin import ordered, states
from cloudedge.bundle import Bundle
from cloudedge.cube.delivery import (
    ArtifactCache,
    CubeReplica,
    DeliveryPolicy,
    ObservedReplica,
    ReplicaDelivery,
    ReplicaPlan,
    TableVersion,
    observe,
)
from cloudedge.errors import InputError, IntegrityError, NotFound
from cloudedge.hub import LocalHub
from cloudedge.release.core import Estimate, Health, Leg, Loaded, Observed, Shares, Shipped, Traffic, Version
from cloudedge.release.places._server_names import TargetServer, layout_name
from cloudedge.serving import AdminClient, Variant

__all__ = [
    "Dispatch",
    "ServingPlace",
    "ShardPlace",
    "bundle_of",
    "changed_bytes",
    "loaded_state",
    "require_probed",
    "shard_replica",
    "shares_in",
    "tables_of",
    "traffic_of",
    "traffic_since",
]

_BYTES_PER_S = 100e6
"""The rate of fetching, verifying and loading on one machine; for estimates only."""
_LOAD_S = 600.0
_ATTEMPTS = 8
"""Of a step on a cube server: the delivery owns these retries, and the release does not repeat what it gave up."""
_STATES = {states.LOADED: "ready", states.READY: "ready", states.FAILED: "failed"}


Token = str | Callable[[], str]
"""The token of admin APIs, or a function that returns it, called each time: the first `up` of a target makes one."""


class Dispatch:
    """Deliveries to the shards of one layout: their replicas, the artifact cache, and the bundles.

    Args:
        servers: All shard replicas of the tables that are cut into the same number of shards.
        token: For their admin APIs.
        artifacts: Where artifacts are made and kept.
        hub: Where bundles are kept.
        push: Send artifacts to servers that cannot fetch them from here.
    """

    def __init__(
        self,
        servers: Sequence[TargetServer],
        *,
        token: Token,
        artifacts: ArtifactCache,
        hub: LocalHub,
        push: bool = False,
    ) -> None:
        self.replicas = {server.place: shard_replica(server, token, push=push) for server in servers}
        self._artifacts = artifacts
        self._hub = hub

    @contextmanager
    def delivery(self) -> Iterator[ReplicaDelivery]:
        """Lend a delivery; the files it offers are served until the block ends."""
        with ReplicaDelivery(
            list(self.replicas.values()), self._artifacts, policy=DeliveryPolicy(attempts=_ATTEMPTS, deadline_s=_LOAD_S)
        ) as delivery:
            yield delivery

    @contextmanager
    def delivering(self) -> Iterator[ReplicaDelivery]:
        """Lend a delivery whose artifacts stay until the last block of this kind ends, and then those used last."""
        with self._artifacts.in_use(DeliveryPolicy().artifacts_kept), self.delivery() as delivery:
            yield delivery

    def layers(self, name: str, table: str, pin: str) -> list[str]:
        """Return the digests of a table's base and deltas in a version that a shard has loaded.

        Raises:
            NotFound: the hub no longer has the version.
        """
        found = Bundle.pinned(name, pin, hub=self._hub).table_layers.get(table, ())
        return [layer.digest for layer in found] or [""]

    def bases(self, name: str, table: str, pins: Sequence[str]) -> list[TableVersion]:
        """Return the table of versions that a shard has loaded, as far as the hub still has them."""
        found = []
        for pin in pins:
            with suppress(NotFound):
                bundle = Bundle.pinned(name, pin, hub=self._hub)
                if table in bundle.sparse:
                    found.append(TableVersion(table, pin, bundle.sparse[table]))
        return found


def shard_replica(server: TargetServer, token: Token, *, push: bool = False) -> CubeReplica:
    """Return the replica that a delivery addresses for a cube server."""
    admin = server.admin.removeprefix("http://")
    name = server.place.rpartition("/")[2]
    return CubeReplica(
        server.table, server.shard, replica=name, address=server.address, admin=admin, token=token, deadline_s=_LOAD_S,
        push=push,
    )  # fmt: skip


class ShardPlace:
    """One cube server."""

    leg: Leg = "sparse"

    def __init__(
        self, server: TargetServer, dispatch: Dispatch, *, host: str = "", restarts: Callable[[], str] = lambda: ""
    ) -> None:
        self.name = server.place
        self._host = host
        self.restarts = restarts
        self.table, self.shard, self.shards = server.table, server.shard, server.shards
        self._dispatch = dispatch
        self._replica = dispatch.replicas[server.place]
        self._plan: ReplicaPlan | None = None
        """The delivery that was planned last, mostly for an estimate; `load` carries out this one."""

    def observe(self) -> Observed:
        """See `Place`."""
        status = self._replica.status()
        return Observed(
            self.name,
            self.leg,
            versions={
                pin: Loaded(
                    state=loaded_state(version.state),
                    rows=version.rows,
                    checksum=version.checksum or "",
                    memory_bytes=version.memory_bytes,
                    error=version.error,
                )
                for pin, version in status.versions.items()
            },
            active={status.active: 1.0} if status.active else {},
            table=self.table,
            shard=self.shard,
            shards=self.shards,
            free_memory_bytes=status.free_memory_bytes,
            free_disk_bytes=status.free_disk_bytes,
            host=self._host,
            order=status.order,
        )

    def estimate(self, version: Version) -> Estimate:
        """See `Place`."""
        ship = self._guess(version) if version.missing_bytes else self._planned(version, self._seen()).bytes_to_ship
        return Estimate(ship_bytes=ship, memory_bytes=2 * ship, disk_bytes=ship, seconds=ship / _BYTES_PER_S)

    def _guess(self, version: Version) -> int:
        """Estimate the bytes that would travel from sizes in manifests, for a version whose rows are not here."""
        table = version.tables[self.table]
        sizes = [table.rows * (8 + table.row_bytes)]
        for pin in self._replica.status().loaded():
            with suppress(NotFound):
                has = self._dispatch.layers(version.name, self.table, pin)
                if has == list(table.layers)[: len(has)]:
                    sizes.append(sum(list(table.layers.values())[len(has) :]))
        return min(sizes) // self.shards

    def load(self, version: Version, *, order: int) -> Shipped:
        """See `Place`."""
        with ordered(order), self._dispatch.delivering() as delivery:
            seen = self._seen()
            if seen.status is not None and version.pin in seen.status.loaded():
                return Shipped(0, "nothing")
            plan = self._planned(version, seen)
            shipped = delivery.carry_out(self._replica, plan)
        return Shipped(shipped, "delta" if plan.how == "delta" and shipped else "base" if shipped else "nothing")

    def verify(self, version: Version) -> None:
        """See `Place`."""
        with self._dispatch.delivery() as delivery:
            delivery.verify(self._replica, self._table_of(version))

    def activate(self, shares: Shares, *, order: int) -> None:
        """See `Place`: reads without a pin all go to the version with the largest share."""
        with ordered(order):
            if shares:
                self._replica.activate(max(shares, key=lambda pin: shares[pin]))
            else:
                self._replica.deactivate()

    def unload(self, pin: str, *, order: int) -> None:
        """See `Place`: also the version that the server keeps to go back to, for the release knows better.

        Where there is no room for three versions that one goes, and after an undo it is the undone version.
        """
        with ordered(order):
            self._replica.unload(pin, previous=True)

    def watch(self) -> Health:
        """See `Place`: serving replicas count what readers get; a shard reports nothing."""
        return Health()

    def _seen(self) -> ObservedReplica:
        seen = observe(self._replica)
        if seen.error is not None:
            raise seen.error
        return seen

    def _planned(self, version: Version, seen: ObservedReplica) -> ReplicaPlan:
        """Plan the delivery of a version, or return the plan made before where the server still has what it had.

        A process that resumes a release has no such plan and makes one from what it finds.
        """
        if self._plan is None or self._plan.version.version != version.pin or not self._plan.holds_for(seen):
            pins = [pin for pin in seen.status.loaded() if pin != version.pin] if seen.status else []
            bases = self._dispatch.bases(version.name, self.table, pins)
            with self._dispatch.delivery() as delivery:
                self._plan = delivery.plan_one(self._replica, self._table_of(version), bases, seen=seen)
        return self._plan

    def _table_of(self, version: Version) -> TableVersion:
        return TableVersion(self.table, version.pin, bundle_of(version).sparse[self.table])


class ServingPlace:
    """One serving replica."""

    leg: Leg = "dense"

    def __init__(
        self,
        server: TargetServer,
        *,
        token: Token,
        hub: LocalHub,
        host: str = "",
        restarts: Callable[[], str] = lambda: "",
    ) -> None:
        self.name = server.place
        self._host = host
        self.restarts = restarts
        self._admin = AdminClient(server.admin, token=token)
        self._hub = hub
        self._seen: dict[str, Traffic] = {}

    def observe(self) -> Observed:
        """See `Place`."""
        found = self._admin.versions()
        active = shares_in(found)
        bundles = {version["pin"]: version["bundle"] for version in found["versions"]}
        live = max(active, key=lambda pin: active[pin], default=None)
        return Observed(
            self.name,
            self.leg,
            versions={
                version["pin"]: Loaded(
                    state=loaded_state(version["state"]),
                    error=version["error"] or next(iter(version.get("probes_failed") or ()), ""),
                    memory_bytes=version.get("memory_bytes") or 0,
                    digest=version["bundle"].rpartition("@")[2],
                )
                for version in found["versions"]
            },
            active=active,
            signature=Bundle.open(bundles[live], hub=self._hub).signature if live in bundles else None,
            free_memory_bytes=found.get("free_memory_bytes"),
            host=self._host,
            order=int(found.get("order", 0)),
        )

    def estimate(self, version: Version) -> Estimate:
        """See `Place`."""
        ship = self._changed_bytes(version)
        return Estimate(ship_bytes=ship, memory_bytes=2 * version.dense_bytes, seconds=1 + ship / _BYTES_PER_S)

    def load(self, version: Version, *, order: int) -> Shipped:
        """See `Place`."""
        with ordered(order):
            tables = tables_of(version)
            found = next((each for each in self._admin.versions()["versions"] if each["pin"] == version.pin), None)
            if found is not None and found["state"] == states.READY and found["tables"] == tables:
                return Shipped(0, "nothing")
            ship = self._changed_bytes(version)
            if found is not None and found["state"] == states.READY:
                self._admin.unload(version.pin)  # it reads a layout that was given up; one that failed is replaced
            self._admin.load(version.ref, tables=tables)
            self._admin.wait_loaded(version.pin, within_s=_LOAD_S)
        return Shipped(ship, "base" if ship == version.dense_bytes else "delta")

    def verify(self, version: Version) -> None:
        """See `Place`."""
        require_probed(self.name, version, self._admin.probe(version.pin))

    def activate(self, shares: Shares, *, order: int) -> None:
        """See `Place`."""
        with ordered(order):
            if not shares:
                self._admin.deactivate()
            elif len(shares) == 1:
                self._admin.activate(next(iter(shares)))
            else:
                self._admin.set_weights([Variant(pin, share) for pin, share in shares.items()])

    def unload(self, pin: str, *, order: int) -> None:
        """See `Place`."""
        with ordered(order), suppress(NotFound):
            self._admin.unload(pin)

    def watch(self) -> Health:
        """See `Place`."""
        stats = self._admin.stats()["versions"]
        now = {pin: traffic_of(found) for pin, found in stats.items()}
        since = {pin: traffic_since(traffic, self._seen.get(pin, Traffic())) for pin, traffic in now.items()}
        self._seen = now
        return Health(since)

    def _changed_bytes(self, version: Version) -> int:
        return changed_bytes(version, [each["bundle"] for each in self._admin.versions()["versions"]], self._hub)


def changed_bytes(version: Version, loaded: Iterable[str], hub: LocalHub) -> int:
    """Count the bytes of dense files that no loaded bundle has."""
    has: set[str] = set()
    for ref in loaded:
        with suppress(NotFound):
            has |= {layer.digest for layer in Bundle.open(ref, hub=hub).dense_layers.values()}
    return sum(size for digest, size in version.files.items() if digest not in has)


def tables_of(version: Version) -> dict[str, str]:
    """Return by table of a version its name in cube.conf, in the layout that the version lives in."""
    return {table: layout_name(table, shards) for table, shards in version.shards.items()}


def require_probed(place: str, version: Version, answered: Mapping[str, Any]) -> None:
    """Check that a version answered its probes as recorded.

    Raises:
        IntegrityError: it did not; the message has the first failure.
    """
    if not answered["passed"]:
        raise IntegrityError(
            f"{place}: {version} answers {len(answered['failures'])} of {answered['asked']} probes "
            f"differently: {answered['failures'][0]}",
            hint="Check how this bundle was exported; nothing that answers requests has changed.",
        )


def bundle_of(version: Version) -> Bundle:
    """Return a version's bundle, whose bytes have to be here."""
    if version.bundle is None:
        raise InputError(f"the bytes of {version} are not here", hint="Pull it with `cloudedge hub pull`.")
    return version.bundle


def loaded_state(state: str) -> Any:
    """Translate a server's state of a version into that of `Loaded`."""
    return _STATES.get(state, "loading")


def shares_in(found: Mapping[str, Any]) -> dict[str, float]:
    """Read the shares of versions from a serving replica's answer."""
    total = sum(variant["weight"] for variant in found["variants"])
    if total:
        return {variant["pin"]: variant["weight"] / total for variant in found["variants"]}
    return {found["active"]: 1.0} if found["active"] else {}


def traffic_of(found: Mapping[str, Any]) -> Traffic:
    """Read the traffic of a version from a serving replica's counters."""
    return Traffic(
        requests=found["answered"] + found["failed"],
        errors=found["failed"],
        latency_p50_ms=found["p50_ms"],
        latency_p99_ms=found["p99_ms"],
        lookups=found["keys"],
        misses=found["missing_keys"] + found["defaulted_keys"],
        scores=found["scores"],
        score_sum=found["score_sum"],
        score_squares=found["score_squares"],
        latencies={math.inf if upper is None else upper: count for upper, count in found.get("latency_buckets", ())},
    )


def traffic_since(now: Traffic, before: Traffic) -> Traffic:
    """Return the traffic in between; where latencies are not counted, percentiles are those since the start."""
    if now.requests < before.requests:
        return now  # the process was restarted
    return Traffic(
        requests=now.requests - before.requests,
        errors=now.errors - before.errors,
        latency_p50_ms=now.latency_p50_ms,
        latency_p99_ms=now.latency_p99_ms,
        lookups=now.lookups - before.lookups,
        misses=now.misses - before.misses,
        scores=now.scores - before.scores,
        score_sum=now.score_sum - before.score_sum,
        score_squares=now.score_squares - before.score_squares,
        latencies={upper: count - before.latencies.get(upper, 0) for upper, count in now.latencies.items()},
    )
