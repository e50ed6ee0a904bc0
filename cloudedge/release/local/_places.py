"""The places of a local target, as a release sees them: cube servers and serving replicas behind their admin APIs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cloudedge.adminhttp import ordered
from cloudedge.bundle import Bundle
from cloudedge.cube.transfer import Courier, CubeReplica, Policy, TableVersion, Workshop
from cloudedge.errors import Conflict, InputError, IntegrityError, NotFound
from cloudedge.hub import LocalHub
from cloudedge.release._places import Estimate, Health, Leg, Loaded, Observed, Shares, Shipped, Traffic
from cloudedge.release._version import Version
from cloudedge.release.local._layout import Seat
from cloudedge.serving import AdminClient, Variant

__all__ = ["Dispatch", "ServingPlace", "ShardPlace"]

_BYTES_PER_S = 100e6
"""What fetching, checking and loading come to on one machine; for estimates only."""
_LOAD_S = 600.0
_STATES = {"loaded": "ready", "ready": "ready", "failed": "failed"}


class Dispatch:
    """What the shards of a target share: the replicas, the workshop that makes artifacts, and the bundles.

    Args:
        seats: All shard replicas.
        token: For their admin APIs.
        folder: Where artifacts are made.
        hub: Where bundles are.
    """

    def __init__(self, seats: Sequence[Seat], *, token: str, folder: Path, hub: LocalHub) -> None:
        self.replicas = {seat.place: _replica(seat, token) for seat in seats}
        self._workshop = Workshop(folder)
        self._hub = hub

    @contextmanager
    def courier(self) -> Iterator[Courier]:
        """Lend somebody who delivers; files are served until the block ends."""
        with Courier(list(self.replicas.values()), self._workshop, policy=Policy(deadline_s=_LOAD_S)) as courier:
            yield courier

    def clean(self) -> None:
        """Remove artifacts of long ago."""
        self._workshop.clean(Policy().artifacts_kept)

    def bases(self, name: str, table: str, pins: Sequence[str]) -> list[TableVersion]:
        """Return the table as it was in versions that a shard has, as far as the hub still has them."""
        found = []
        for pin in pins:
            with suppress(NotFound):
                bundle = Bundle.pinned(name, pin, hub=self._hub)
                if table in bundle.sparse:
                    found.append(TableVersion(table, pin, bundle.sparse[table]))
        return found


def _replica(seat: Seat, token: str) -> CubeReplica:
    admin = seat.admin.removeprefix("http://")
    name = seat.place.rpartition("/")[2]
    return CubeReplica(
        seat.table, seat.shard, replica=name, address=seat.address, admin=admin, token=token, deadline_s=_LOAD_S
    )


class ShardPlace:
    """One cube server."""

    leg: Leg = "sparse"

    def __init__(self, seat: Seat, shards: int, dispatch: Dispatch) -> None:
        self.name = seat.place
        self._seat = seat
        self._shards = shards
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
                    state=_state(version.state),
                    rows=version.rows,
                    checksum=version.checksum or "",
                    memory_bytes=version.memory_bytes,
                    shards=self._shards,
                    error=version.error,
                )
                for pin, version in status.versions.items()
            },
            active={status.active: 1.0} if status.active else {},
            table=self._seat.table,
            shard=self._seat.shard,
            shards=self._shards,
            memory_free_bytes=status.free_memory_bytes,
            disk_free_bytes=status.free_disk_bytes,
        )

    def estimate(self, version: Version) -> Estimate:
        """See `Place`."""
        with self._dispatch.courier() as courier:
            plan = courier.plan_one(self._replica, *self._wanted(version))
        ship = plan.bytes_to_ship
        return Estimate(ship_bytes=ship, memory_bytes=2 * ship, disk_bytes=ship, seconds=ship / _BYTES_PER_S)

    def prepare(self, version: Version, *, order: int) -> Shipped:
        """See `Place`."""
        with ordered(order), self._dispatch.courier() as courier:
            if version.pin in self._replica.status().loaded():
                return Shipped(0, "nothing")
            wanted, bases = self._wanted(version)
            plan = courier.plan_one(self._replica, wanted, bases)
            how = next((step.how for step in plan.of("stage")), None)
            shipped = courier.prepare(self._replica, wanted, bases)
        self._dispatch.clean()
        return Shipped(shipped, "delta" if how == "delta" and shipped else "base" if shipped else "nothing")

    def check(self, version: Version) -> None:
        """See `Place`."""
        with self._dispatch.courier() as courier:
            courier.verify(self._replica, self._wanted(version)[0])

    def switch(self, shares: Shares, *, order: int) -> None:
        """See `Place`: reads without a pin go to the version with the largest share; a shard does not draw lots."""
        if not shares:
            raise Conflict(f"{self.name}: a shard that answered cannot go back to answering nothing")
        with ordered(order):
            self._replica.activate(max(shares, key=lambda pin: shares[pin]))

    def forget(self, pin: str, *, order: int) -> None:
        """See `Place`."""
        with ordered(order):
            self._replica.unload(pin)

    def watch(self) -> Health:
        """See `Place`: what readers see is counted where they read, at the serving replicas."""
        return Health()

    def _wanted(self, version: Version) -> tuple[TableVersion, list[TableVersion]]:
        bundle = _bundle(version)
        table = self._seat.table
        pins = [pin for pin in self._replica.status().loaded() if pin != version.pin]
        wanted = TableVersion(table, version.pin, bundle.sparse[table])
        return wanted, self._dispatch.bases(version.name, table, pins)


class ServingPlace:
    """One serving replica."""

    leg: Leg = "dense"

    def __init__(self, seat: Seat, *, token: str, hub: LocalHub) -> None:
        self.name = seat.place
        self._admin = AdminClient(seat.admin, token=token)
        self._hub = hub
        self._seen: dict[str, Traffic] = {}

    def observe(self) -> Observed:
        """See `Place`."""
        found = self._admin.versions()
        active = _shares(found)
        bundles = {version["pin"]: version["bundle"] for version in found["versions"]}
        live = max(active, key=lambda pin: active[pin], default=None)
        return Observed(
            self.name,
            self.leg,
            versions={
                version["pin"]: Loaded(state=_state(version["state"]), error=version["error"])
                for version in found["versions"]
            },
            active=active,
            signature=Bundle.open(bundles[live], hub=self._hub).signature if live in bundles else None,
        )

    def estimate(self, version: Version) -> Estimate:
        """See `Place`."""
        ship = self._changed_bytes(_bundle(version))
        return Estimate(ship_bytes=ship, memory_bytes=2 * version.dense_bytes, seconds=1 + ship / _BYTES_PER_S)

    def prepare(self, version: Version, *, order: int) -> Shipped:
        """See `Place`."""
        with ordered(order):
            found = {each["pin"]: each["state"] for each in self._admin.versions()["versions"]}
            if found.get(version.pin) == "ready":
                return Shipped(0, "nothing")
            ship = self._changed_bytes(_bundle(version))
            if found.get(version.pin) == "failed":
                self._admin.unload(version.pin)
            self._admin.load(version.ref)
            self._admin.wait_loaded(version.pin, within_s=_LOAD_S)
        return Shipped(ship, "base" if ship == version.dense_bytes else "delta")

    def check(self, version: Version) -> None:
        """See `Place`."""
        answered = self._admin.probe(version.pin)
        if not answered["passed"]:
            raise IntegrityError(
                f"{self.name}: {version} answers {len(answered['failures'])} of {answered['asked']} probes "
                f"differently: {answered['failures'][0]}",
                hint="Look at how this bundle was exported; nothing that answers requests has changed.",
            )

    def switch(self, shares: Shares, *, order: int) -> None:
        """See `Place`."""
        if not shares:
            raise Conflict(f"{self.name}: a replica that answered cannot go back to answering nothing")
        with ordered(order):
            if len(shares) == 1:
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
        now = {pin: _traffic(found) for pin, found in stats.items()}
        since = {pin: _since(traffic, self._seen.get(pin, Traffic())) for pin, traffic in now.items()}
        self._seen = now
        return Health(since)

    def _changed_bytes(self, bundle: Bundle) -> int:
        """Count the bytes of files that differ from those of the versions that are loaded."""
        has: set[str] = set()
        for version in self._admin.versions()["versions"]:
            try:
                loaded = Bundle.open(version["bundle"], hub=self._hub)
            except NotFound:
                continue
            has |= {layer.digest for layer in loaded.dense_layers.values()}
        return sum(layer.size for layer in bundle.dense_layers.values() if layer.digest not in has)


def _bundle(version: Version) -> Bundle:
    if version.bundle is None:
        raise InputError(f"{version} is not at hand", hint="Pull it into the local hub.")
    return version.bundle


def _state(state: str) -> Any:
    return _STATES.get(state, "loading")


def _shares(found: dict[str, Any]) -> dict[str, float]:
    total = sum(variant["weight"] for variant in found["variants"])
    if total:
        return {variant["pin"]: variant["weight"] / total for variant in found["variants"]}
    return {found["active"]: 1.0} if found["active"] else {}


def _traffic(found: dict[str, Any]) -> Traffic:
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
    )


def _since(now: Traffic, before: Traffic) -> Traffic:
    """Return what happened in between; percentiles are those since the start, which is all that is kept."""
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
    )
