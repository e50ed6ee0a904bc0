"""Servers as a release sees them: cube servers and serving replicas, wherever they run, behind their admin APIs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from cloudedge.admin import ordered, states
from cloudedge.bundle import Bundle
from cloudedge.cube.delivery import ArtifactCache, CubeReplica, DeliveryPolicy, ReplicaDelivery, TableVersion
from cloudedge.errors import InputError, IntegrityError, NotFound
from cloudedge.hub import LocalHub
from cloudedge.release.core import Estimate, Health, Leg, Loaded, Observed, Shares, Shipped, Traffic, Version
from cloudedge.release.places._server_names import Seat, dictionary
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
"""What fetching, checking and loading come to on one machine; for estimates only."""
_LOAD_S = 600.0
_ATTEMPTS = 8
"""Of a step on a cube server: the delivery owns these retries, and the release does not repeat what it gave up."""
_STATES = {states.LOADED: "ready", states.READY: "ready", states.FAILED: "failed"}


Token = str | Callable[[], str]
"""For admin APIs; or what returns it, asked each time: the first `up` of a target makes one."""


class Dispatch:
    """What the shards of a layout share: the replicas, the workshop that makes artifacts, and the bundles.

    Args:
        seats: All shard replicas of tables that are cut into the same number.
        token: For their admin APIs.
        workshop: Where artifacts are made.
        hub: Where bundles are.
        push: Send artifacts to servers that cannot fetch them from here.
    """

    def __init__(
        self, seats: Sequence[Seat], *, token: Token, workshop: ArtifactCache, hub: LocalHub, push: bool = False
    ) -> None:
        self.replicas = {seat.place: shard_replica(seat, token, push=push) for seat in seats}
        self._workshop = workshop
        self._hub = hub

    @contextmanager
    def courier(self) -> Iterator[ReplicaDelivery]:
        """Lend somebody who delivers; files are served until the block ends."""
        with ReplicaDelivery(
            list(self.replicas.values()), self._workshop, policy=DeliveryPolicy(attempts=_ATTEMPTS, deadline_s=_LOAD_S)
        ) as courier:
            yield courier

    @contextmanager
    def delivering(self) -> Iterator[ReplicaDelivery]:
        """Lend somebody who delivers; artifacts of long ago go when the last one who does so is done."""
        with self._workshop.in_use(DeliveryPolicy().artifacts_kept), self.courier() as courier:
            yield courier

    def layers(self, name: str, table: str, pin: str) -> list[str]:
        """Return the digests of a table's base and deltas in a version that a shard has.

        Raises:
            NotFound: the hub no longer has it.
        """
        found = Bundle.pinned(name, pin, hub=self._hub).table_layers.get(table, ())
        return [layer.digest for layer in found] or [""]

    def bases(self, name: str, table: str, pins: Sequence[str]) -> list[TableVersion]:
        """Return the table as it was in versions that a shard has, as far as the hub still has them."""
        found = []
        for pin in pins:
            with suppress(NotFound):
                bundle = Bundle.pinned(name, pin, hub=self._hub)
                if table in bundle.sparse:
                    found.append(TableVersion(table, pin, bundle.sparse[table]))
        return found


def shard_replica(seat: Seat, token: Token, *, push: bool = False) -> CubeReplica:
    """Return a cube server as those who deliver see it."""
    admin = seat.admin.removeprefix("http://")
    name = seat.place.rpartition("/")[2]
    return CubeReplica(
        seat.table, seat.shard, replica=name, address=seat.address, admin=admin, token=token, deadline_s=_LOAD_S,
        push=push,
    )  # fmt: skip


class ShardPlace:
    """One cube server."""

    leg: Leg = "sparse"

    def __init__(self, seat: Seat, dispatch: Dispatch, *, host: str = "") -> None:
        self.name = seat.place
        self._host = host
        self.table, self.shard, self.shards = seat.table, seat.shard, seat.shards
        self._dispatch = dispatch
        self._replica = dispatch.replicas[seat.place]

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
            memory_free_bytes=status.free_memory_bytes,
            disk_free_bytes=status.free_disk_bytes,
            host=self._host,
        )

    def estimate(self, version: Version) -> Estimate:
        """See `Place`."""
        ship = self._guess(version) if version.missing_bytes else self._count(version)
        return Estimate(ship_bytes=ship, memory_bytes=2 * ship, disk_bytes=ship, seconds=ship / _BYTES_PER_S)

    def _count(self, version: Version) -> int:
        with self._dispatch.courier() as courier:
            return courier.plan_one(self._replica, *self._wanted(version)).bytes_to_ship

    def _guess(self, version: Version) -> int:
        """Tell from sizes in manifests what would travel, of a version whose rows nobody has here."""
        wanted = version.tables[self.table]
        full = wanted.rows * (8 + wanted.row_bytes)
        news = [full]
        for pin in self._replica.status().loaded():
            with suppress(NotFound):
                has = self._dispatch.layers(version.name, self.table, pin)
                if has == list(wanted.layers)[: len(has)]:
                    news.append(sum(list(wanted.layers.values())[len(has) :]))
        return min(news) // self.shards

    def prepare(self, version: Version, *, order: int) -> Shipped:
        """See `Place`."""
        with ordered(order), self._dispatch.delivering() as courier:
            if version.pin in self._replica.status().loaded():
                return Shipped(0, "nothing")
            wanted, bases = self._wanted(version)
            plan = courier.plan_one(self._replica, wanted, bases)
            how = next((step.how for step in plan.of("stage")), None)
            shipped = courier.prepare(self._replica, wanted, bases)
        return Shipped(shipped, "delta" if how == "delta" and shipped else "base" if shipped else "nothing")

    def check(self, version: Version) -> None:
        """See `Place`."""
        with self._dispatch.courier() as courier:
            courier.verify(self._replica, self._wanted(version)[0])

    def switch(self, shares: Shares, *, order: int) -> None:
        """See `Place`: reads without a pin go to the version with the largest share; a shard does not draw lots."""
        with ordered(order):
            if shares:
                self._replica.activate(max(shares, key=lambda pin: shares[pin]))
            else:
                self._replica.deactivate()

    def forget(self, pin: str, *, order: int) -> None:
        """See `Place`: a release knows what to go back to better than the server, which takes what was active before.

        Where there is no room for three versions that one goes, and after an undo it is what was undone.
        """
        with ordered(order):
            self._replica.unload(pin, previous=True)

    def watch(self) -> Health:
        """See `Place`: what readers see is counted where they read, at the serving replicas."""
        return Health()

    def _wanted(self, version: Version) -> tuple[TableVersion, list[TableVersion]]:
        bundle = bundle_of(version)
        pins = [pin for pin in self._replica.status().loaded() if pin != version.pin]
        wanted = TableVersion(self.table, version.pin, bundle.sparse[self.table])
        return wanted, self._dispatch.bases(version.name, self.table, pins)


class ServingPlace:
    """One serving replica."""

    leg: Leg = "dense"

    def __init__(self, seat: Seat, *, token: Token, hub: LocalHub, host: str = "") -> None:
        self.name = seat.place
        self._host = host
        self._admin = AdminClient(seat.admin, token=token)
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
                    error=version["error"],
                    memory_bytes=version.get("memory_bytes") or 0,
                )
                for version in found["versions"]
            },
            active=active,
            signature=Bundle.open(bundles[live], hub=self._hub).signature if live in bundles else None,
            memory_free_bytes=found.get("free_memory_bytes"),
            host=self._host,
        )

    def estimate(self, version: Version) -> Estimate:
        """See `Place`."""
        ship = self._changed_bytes(version)
        return Estimate(ship_bytes=ship, memory_bytes=2 * version.dense_bytes, seconds=1 + ship / _BYTES_PER_S)

    def prepare(self, version: Version, *, order: int) -> Shipped:
        """See `Place`."""
        with ordered(order):
            tables = tables_of(version)
            found = next((each for each in self._admin.versions()["versions"] if each["pin"] == version.pin), None)
            if found is not None and found["state"] == states.READY and found["tables"] == tables:
                return Shipped(0, "nothing")
            ship = self._changed_bytes(version)
            if found is not None and found["state"] in (states.READY, states.FAILED):
                self._admin.unload(version.pin)  # it could not be loaded, or reads a layout that was given up
            self._admin.load(version.ref, tables=tables)
            self._admin.wait_loaded(version.pin, within_s=_LOAD_S)
        return Shipped(ship, "base" if ship == version.dense_bytes else "delta")

    def check(self, version: Version) -> None:
        """See `Place`."""
        require_probed(self.name, version, self._admin.probe(version.pin))

    def switch(self, shares: Shares, *, order: int) -> None:
        """See `Place`."""
        with ordered(order):
            if not shares:
                self._admin.deactivate()
            elif len(shares) == 1:
                self._admin.activate(next(iter(shares)))
            else:
                self._admin.set_weights([Variant(pin, share) for pin, share in shares.items()])

    def forget(self, pin: str, *, order: int) -> None:
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
    """Count the bytes of dense files that differ from those of bundles that are loaded."""
    has: set[str] = set()
    for ref in loaded:
        with suppress(NotFound):
            has |= {layer.digest for layer in Bundle.open(ref, hub=hub).dense_layers.values()}
    return sum(size for digest, size in version.files.items() if digest not in has)


def tables_of(version: Version) -> dict[str, str]:
    """Return what cube.conf calls the tables of a version, in the layout it lives in."""
    return {table: dictionary(table, shards) for table, shards in version.shards.items()}


def require_probed(place: str, version: Version, answered: Mapping[str, Any]) -> None:
    """Make sure that a version answered its probes as it should.

    Raises:
        IntegrityError: it did not; says which.
    """
    if not answered["passed"]:
        raise IntegrityError(
            f"{place}: {version} answers {len(answered['failures'])} of {answered['asked']} probes "
            f"differently: {answered['failures'][0]}",
            hint="Look at how this bundle was exported; nothing that answers requests has changed.",
        )


def bundle_of(version: Version) -> Bundle:
    """Return a version's bundle, which has to be at hand."""
    if version.bundle is None:
        raise InputError(f"{version} is not at hand", hint="Pull it into the local hub.")
    return version.bundle


def loaded_state(state: str) -> Any:
    """Say a server's word for a version's state as a release does."""
    return _STATES.get(state, "loading")


def shares_in(found: Mapping[str, Any]) -> dict[str, float]:
    """Read from a serving replica's answer which versions answer in which shares."""
    total = sum(variant["weight"] for variant in found["variants"])
    if total:
        return {variant["pin"]: variant["weight"] / total for variant in found["variants"]}
    return {found["active"]: 1.0} if found["active"] else {}


def traffic_of(found: Mapping[str, Any]) -> Traffic:
    """Read what a version did from a serving replica's counters."""
    return Traffic(
        requests=found["answered"] + found["failed"],
        errors=found["failed"],
        latency_p50_ms=found["p50_ms"],
        latency_p99_ms=found["p99_ms"],
        lookups=found["ids"],
        misses=found["ids_missing"] + found["ids_defaulted"],
        scores=found["scores"],
        score_sum=found["score_sum"],
        score_squares=found["score_squares"],
        latencies={math.inf if upper is None else upper: count for upper, count in found.get("latency_buckets", ())},
    )


def traffic_since(now: Traffic, before: Traffic) -> Traffic:
    """Return what happened in between; where latencies are not counted, percentiles are those since the start."""
    if now.requests < before.requests:
        return now  # the process started anew
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
