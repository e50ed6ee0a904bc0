"""Simulated places behind the protocol of the real ones: shards, serving replicas and edge nodes that fail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cloudedge.errors import Conflict, IntegrityError, NotFound, StorageError, Unavailable
from cloudedge.release import Estimate, Health, Leg, Loaded, Observed, Shares, Shipped, Traffic, Version

if TYPE_CHECKING:
    from cloudedge.testing._world import World

__all__ = ["Copy", "SimPlace"]


@dataclass(frozen=True)
class Copy:
    """A version's bytes at a place: all there or not, and as they were sent or not."""

    pin: str
    is_ready: bool = True
    is_intact: bool = True
    shards: Mapping[str, int] = field(default_factory=dict)
    """Dense: the layout whose rows it reads."""


@dataclass
class _Stored:
    """What a place has on its disk."""

    copies: dict[str, Copy] = field(default_factory=dict)
    active: dict[str, float] = field(default_factory=dict)
    fence: int = 0

    def copy(self) -> _Stored:
        return _Stored(dict(self.copies), dict(self.active), self.fence)


class SimPlace:
    """One simulated place. `sparse`: a replica of a table's shard; `dense`: a serving replica; `edge`: a whole node."""

    def __init__(self, world: World, name: str, leg: Leg, *, table: str = "", shard: int = 0, shards: int = 1) -> None:
        self.name = name
        self.leg = leg
        self.table, self.shard, self.shards = table, shard, shards
        self.is_up = True
        self.is_stale = False
        """It came back with less than it had promised; nobody repaired it yet."""
        self.incarnation = 1
        self.back_at = self.cut_until = self.full_until = 0.0
        self._counted: dict[str, list[float]] = {}
        self._world = world
        self._stored = _Stored()
        self._past: list[_Stored] = [_Stored()]
        world.places[name] = self

    def __str__(self) -> str:
        return self.name

    @property
    def group(self) -> tuple[str, int, int]:
        """What the replicas of a shard have in common: the table, how it is cut, and which part."""
        return self.table, self.shards, self.shard

    @property
    def copies(self) -> Mapping[str, Copy]:
        """What is loaded, by pin."""
        return self._stored.copies

    @property
    def active(self) -> Mapping[str, float]:
        """What requests get."""
        return self._stored.active

    def holds(self, pin: str) -> bool:
        """Tell whether it could answer with a version now."""
        copy = self._stored.copies.get(pin)
        return self.is_up and copy is not None and copy.is_ready

    def start_with(self, version: Version) -> None:
        """Be in the state that a release of long ago left."""
        pin = version.pin
        self._stored = _Stored({pin: Copy(pin, shards=version.shards)}, {pin: 1.0})
        self._past = [self._stored.copy()]

    def take(self, pin: str) -> None:
        """Load a version the way upstream does, unchecked and unfenced."""
        self._stored.copies[pin] = Copy(pin, is_intact=not self._world.strikes("corrupt", 0.3))

    def turn_to(self, pin: str) -> None:
        """Answer with a version the way upstream does, at once and for everybody."""
        self._stored.active = {pin: 1.0}
        self._persist()

    # What cloudedge asks, over the network.

    def observe(self) -> Observed:
        """Say what is there."""
        return self._world.call(self, "observe", self._observe, changes=False)

    def estimate(self, version: Version) -> Estimate:
        """Say what a version would cost."""
        base = 1000 if self._stored.copies else 10_000
        return Estimate(ship_bytes=base, memory_bytes=10_000, disk_bytes=10_000) if version.pin else Estimate()

    def prepare(self, version: Version, *, order: int) -> Shipped:
        """Load a version."""
        return self._world.call(self, f"prepare {version.pin}", lambda: self._prepare(version, order), changes=True)

    def check(self, version: Version) -> None:
        """Ask the version's probes."""
        self._world.call(self, f"check {version.pin}", lambda: self._check(version), changes=False)

    def switch(self, shares: Shares, *, order: int) -> None:
        """Move the pointer."""
        self._world.call(self, f"switch {dict(shares)}", lambda: self._switch(shares, order), changes=True)

    def forget(self, pin: str, *, order: int) -> None:
        """Unload a version."""
        self._world.call(self, f"forget {pin}", lambda: self._forget(pin, order), changes=True)

    def watch(self) -> Health:
        """Report traffic."""
        return self._world.call(self, "watch", self._watch, changes=False)

    # What happens there.

    def _observe(self) -> Observed:
        loaded = {
            pin: Loaded("ready" if copy.is_ready else "loading", rows=10, memory_bytes=10_000, shards=self.shards)
            for pin, copy in self._stored.copies.items()
        }
        return Observed(
            self.name,
            self.leg,
            loaded,
            dict(self._stored.active),
            self.table,
            self.shard,
            self.shards,
            incarnation=str(self.incarnation),
        )

    def _prepare(self, version: Version, order: int) -> Shipped:
        self._fence(order, "prepare")
        if self.holds(version.pin) and (self.leg != "dense" or self.copies[version.pin].shards == version.shards):
            return Shipped(0, "nothing")
        if version.pin in self._stored.active:
            raise Conflict(f"{self.name}: {version.pin} answers requests, from the rows of another layout")
        if self.full_until > self._world.now:
            raise StorageError(f"{self.name}: no space left on device")
        how = "delta" if any(copy.is_ready for copy in self._stored.copies.values()) else "base"
        incarnation = self.incarnation
        self._stored.copies[version.pin] = Copy(version.pin, is_ready=False)
        self._world.churn()  # loading takes a while, in which anything may happen
        if not self.is_up or self.incarnation != incarnation:
            raise Unavailable(f"{self.name} died while it loaded {version.pin}")
        intact = not self._world.strikes("corrupt", 0.3)
        if not intact and (self._world.rng.random() < 0.5 or self._has_readers(version.pin)):  # noqa: PLR2004
            self._stored.copies.pop(version.pin)
            raise IntegrityError(f"{self.name}: what arrived of {version.pin} is not what was sent")
        self._stored.copies[version.pin] = Copy(version.pin, is_intact=intact, shards=version.shards)
        self._persist()
        return Shipped(1000 if how == "delta" else 10_000, "delta" if how == "delta" else "base")

    def _has_readers(self, pin: str) -> bool:
        return self._world.clients is not None and pin in self._world.clients.in_use()

    def _check(self, version: Version) -> None:
        copy = self._stored.copies.get(version.pin)
        if copy is None or not copy.is_ready:
            raise NotFound(f"{self.name} does not have {version.pin}")
        if not copy.is_intact:
            raise IntegrityError(f"{self.name}: the rows of {version.pin} do not sum up to what was packed")
        if version.label.startswith("bad"):
            raise IntegrityError(f"{self.name}: a probe of {version.pin} was answered with another score")
        if self.leg == "dense" and self._world.clients is not None:
            self._world.clients.probe(version.pin, copy.shards)

    def _switch(self, shares: Shares, order: int) -> None:
        self._fence(order, "switch")
        missing = [pin for pin in shares if not self.holds(pin)]
        if missing:
            raise NotFound(f"{self.name} does not have {', '.join(missing)}")
        self._stored.active = dict(shares)
        self.is_stale = not shares  # told to answer with nothing, for it lost what it answered with
        self._persist()
        if self._world.clients is not None:
            self._world.clients.check_reach(self)

    def _forget(self, pin: str, order: int) -> None:
        self._fence(order, "forget")
        if pin in self._stored.active:
            raise Conflict(f"{self.name}: {pin} is active")
        if self.leg != "sparse" and self._world.clients is not None:
            self._world.clients.finish(self, pin)  # requests under way end first
        self._stored.copies.pop(pin, None)
        self._persist()
        if self._world.clients is not None:
            self._world.clients.check_deleted(self, pin)

    def _watch(self) -> Health:
        seen, self._counted = self._counted, {}
        return Health(
            {
                pin: Traffic(int(n), int(failed), scores=int(n), score_sum=total, score_squares=squares)
                for pin, (n, failed, total, squares) in seen.items()
            }
        )

    def count(self, pin: str, *, score: float, failed: bool = False) -> None:
        """Count a request."""
        counted = self._counted.setdefault(pin, [0, 0, 0.0, 0.0])
        counted[0] += 1
        counted[1] += failed
        counted[2] += score
        counted[3] += score * score

    def _fence(self, order: int, what: str) -> None:
        if order < self._stored.fence:
            raise Conflict(f"{self.name}: order {order} came after {self._stored.fence}")
        self._stored.fence = order
        if self._world.journal is not None:
            entries = self._world.journal._read("SELECT step, what FROM entries WHERE id = ?", order)  # noqa: SLF001
            step = entries[0][0] if entries else "nothing"
            wanted = {"prepare": ("prepare",), "switch": ("switch", "canary", "idle"), "forget": ("forget", "trim")}[
                what
            ]
            stage, _, where = step.partition(":")
            if stage.split(".")[-1] not in wanted or where.split("@")[0] != self.name:
                self._world.broken("unexplained", f"{self.name} was told to {what}, and the journal says {step}")

    def _persist(self) -> None:
        self._past = [*self._past[-3:], self._stored.copy()]

    # What fails.

    def weather(self) -> None:
        """Be cut off, fill up, die."""
        world = self._world
        if world.strikes("cut", 0.015):
            self.cut_until = world.now + world.rng.choice((0.5, 5.0, 60.0))
            world.note("{} is cut off until {:.1f}", self.name, self.cut_until)
        if world.strikes("full", 0.015):
            self.full_until = world.now + world.rng.choice((1.0, 60.0))
        for kind in ("crash", "amnesia"):
            if self.is_up and kind in world.weather and world.rng.random() < 0.02 and self._may_die():  # noqa: PLR2004
                world.strikes(kind, 1.0)
                self.die(forget=kind == "amnesia")

    def die(self, *, forget: bool) -> None:
        """Lose what is in memory, and perhaps more."""
        world = self._world
        self.is_up = False
        self.back_at = world.now + world.rng.choice((0.2, 2.0, 30.0))
        world.down.append(self)
        if forget:
            self._stored = world.rng.choice([_Stored(), *self._past]).copy()
            self.is_stale = True
        world.note("{} dies{}", self.name, " and forgets" if forget else "")
        if world.clients is not None:
            world.clients.lost(self)

    def restart(self) -> None:
        """Come back with what was stored; a load that had not ended is gone."""
        self._stored.copies = {pin: copy for pin, copy in self._stored.copies.items() if copy.is_ready}
        self.is_up = True
        self.incarnation += 1
        self._world.down.remove(self)
        self._world.note("{} is back with {}", self.name, sorted(self._stored.copies))

    def heal(self) -> None:
        """Everything works again."""
        self.cut_until = self.full_until = 0.0
        if not self.is_up:
            self.restart()

    def _may_die(self) -> bool:
        """One replica of a group may be away or behind at a time; nobody promises more with two replicas."""
        if self.leg == "edge":
            return True
        peers = [p for p in self._world.places.values() if p.leg == self.leg and p is not self]
        if self.leg == "sparse":
            peers = [p for p in peers if p.group == self.group]
        needed = self._world.clients.in_use() if self._world.clients is not None else []
        if self.leg == "dense":
            return any(p.is_up and p.active and not p.is_stale for p in peers)
        return any(
            p.is_up and not p.is_stale and all(p.holds(pin) for pin in needed if pin in self.copies) for p in peers
        )
