"""Simulated places with the protocol of the real ones: shards, serving replicas and edge nodes that fail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cloudedge.errors import Conflict, InputError, IntegrityError, NotFound, StorageError, Unavailable
from cloudedge.release import Estimate, Health, Leg, Loaded, Observed, Shares, Shipped, Traffic, Version
from cloudedge.release.core import STAGES
from cloudedge.testing._copies import DAMAGED, Copy, Stored

if TYPE_CHECKING:
    from cloudedge.testing._simulated_world import SimulatedWorld

__all__ = ["SimPlace"]

_COPY_BYTES = 10_000


class SimPlace:
    """One simulated place. `sparse`: a replica of a table's shard; `dense`: a serving replica; `edge`: a whole node."""

    def __init__(
        self, world: SimulatedWorld, name: str, leg: Leg, *, table: str = "", shard: int = 0, shards: int = 1
    ) -> None:
        self.name = name
        self.leg = leg
        self.table, self.shard, self.shards = table, shard, shards
        self.is_up = True
        self.is_stale = False
        """It came back with less than it had promised, and was not repaired yet."""
        self.room: int | None = None
        """The number of versions that fit into its memory; None: no limit."""
        self.incarnation = 1
        self.back_at = self.cut_until = self.full_until = 0.0
        self._blind_until = 0.0
        self._blind_to: list[SimPlace] = []
        self._counted: dict[str, list[float]] = {}
        self.obeyed: set[int] = set()
        """The orders that it has carried out."""
        self.reported: tuple[int, Observed] | None = None
        """The last observation that reached cloudedge, and when, in points."""
        self._world = world
        self._stored = Stored()
        self._past: list[Stored] = [Stored()]
        world.places[name] = self

    def __str__(self) -> str:
        return self.name

    @property
    def group(self) -> tuple[str, int, int]:
        """The table, the number of its shards and the shard: the same for all replicas of a shard."""
        return self.table, self.shards, self.shard

    @property
    def copies(self) -> Mapping[str, Copy]:
        """The loaded versions, by pin."""
        return self._stored.copies

    @property
    def active(self) -> Mapping[str, float]:
        """The shares of the versions that answer unpinned requests."""
        return self._stored.active

    def holds(self, pin: str) -> bool:
        """Tell whether it can answer with a version now."""
        copy = self._stored.copies.get(pin)
        return self.is_up and copy is not None and copy.is_ready

    def seek(self, pin: str) -> tuple[str, str] | None:
        """Sparse: answer a read with the pin that answers and the pin of the rows; None: not loaded.

        Without a pin, the active version answers.
        """
        pin = pin or next(iter(self._stored.active), "")
        copy = self._stored.copies.get(pin)
        return (pin, copy.bytes) if copy is not None and copy.is_ready else None

    def strays(self) -> bool:
        """Sparse: tell whether it answers this read as a server that does not understand pins."""
        return bool(self._stored.active) and self._world.strikes("stray")

    def sees(self, shard: SimPlace) -> bool:
        """Dense: tell whether it reaches a shard."""
        return self._blind_until <= self._world.now or shard not in self._blind_to

    @property
    def is_blind(self) -> bool:
        """Dense: whether there is a shard it does not reach."""
        return self._blind_until > self._world.now

    def start_with(self, version: Version) -> None:
        """Take the state that an old release left."""
        pin = version.pin
        self._stored = Stored({pin: Copy(pin, pin, shards=version.shards)}, {pin: 1.0})
        self._past = [self._stored.copy()]

    def load_unverified(self, pin: str) -> None:
        """Load a version as upstream does: unverified, and without an order."""
        self._stored.copies[pin] = Copy(pin, DAMAGED if self._world.strikes("corrupt", 0.3) else pin)

    def activate_at_once(self, pin: str) -> None:
        """Answer with a version as upstream does: at once, for all readers, and without an order."""
        self._stored.active = {pin: 1.0}
        self._persist()

    # The methods of `Place`, called over the simulated network.

    def observe(self) -> Observed:
        """Report the state."""
        found = self._world.call(self, "observe", self._observe, changes=False)
        self.reported = self._world.points, found
        return found

    def estimate(self, version: Version) -> Estimate:
        """Estimate the cost of a version."""
        ship = 1000 if self._base() else _COPY_BYTES
        return Estimate(ship_bytes=ship, memory_bytes=_COPY_BYTES) if version.pin else Estimate()

    def load(self, version: Version, *, order: int) -> Shipped:
        """Load a version."""
        return self._world.call(self, f"load {version.pin}", lambda: self._load(version, order), changes=True)

    def verify(self, version: Version) -> None:
        """Ask the version's probes."""
        self._world.call(self, f"verify {version.pin}", lambda: self._verify(version), changes=False)

    def activate(self, shares: Shares, *, order: int) -> None:
        """Move the pointer."""
        self._world.call(self, f"activate {dict(shares)}", lambda: self._activate(shares, order), changes=True)

    def unload(self, pin: str, *, order: int) -> None:
        """Unload a version."""
        self._world.call(self, f"unload {pin}", lambda: self._unload(pin, order), changes=True)

    def watch(self) -> Health:
        """Report traffic."""
        seen = self._world.call(self, "watch", self._watch, changes=False)
        if self._world.journal is not None:
            self._world.journal.promises.watched(self.name, seen)
        return seen

    # The same, at the place itself.

    def _observe(self) -> Observed:
        loaded = {
            pin: Loaded("ready" if copy.is_ready else "loading", rows=10, memory_bytes=_COPY_BYTES, shards=self.shards)
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
            free_memory_bytes=None if self.room is None else (self.room - len(loaded)) * _COPY_BYTES,
            order=self._stored.fence,
        )

    def _load(self, version: Version, order: int) -> Shipped:
        self._fence(order, "load")
        if self.holds(version.pin) and (self.leg != "dense" or self.copies[version.pin].shards == version.shards):
            self.obeyed.add(order)
            return Shipped(0, "nothing")
        if version.pin in self._stored.active:
            raise Conflict(f"{self.name}: {version.pin} answers requests, from the rows of another layout")
        world = self._world
        if version.missing_bytes:
            world.broken("unexplained", f"{self.name} was given {version.pin}, whose bytes were not fetched")
        if self.full_until > world.now:
            raise StorageError(f"{self.name}: no space left on device")
        if self.room is not None and len(self._stored.copies.keys() - {version.pin}) >= self.room:
            raise StorageError(f"{self.name}: there is not enough memory to load {version.pin} beside the others")
        # A delivery makes a delta for a version that the place reports; dense files have no rows to compare.
        made_for = self._base() if self.leg != "dense" else ""
        incarnation = self.incarnation
        self._stored.copies[version.pin] = Copy(version.pin, "", is_ready=False)
        world.churn()  # loading takes a while, and anything may happen meanwhile
        if not self.is_up or self.incarnation != incarnation:
            raise Unavailable(f"{self.name} died while it loaded {version.pin}")
        sent = DAMAGED if version.pin in world.damaged else version.pin
        content = self._apply_delta(version.pin, made_for) if sent == version.pin else sent
        if world.strikes("corrupt", 0.3):  # damaged on the way, or another version's file under this name
            content = world.rng.choice((DAMAGED, DAMAGED, "v1", "v2", "v3"))
            if world.rng.random() < 0.5 or self._has_readers(version.pin):  # noqa: PLR2004
                self._stored.copies.pop(version.pin)
                raise IntegrityError(f"{self.name}: what arrived of {version.pin} is not what was sent")
        self._stored.copies[version.pin] = Copy(version.pin, content, sent, shards=version.shards)
        self.obeyed.add(order)
        self._persist()
        return Shipped(1000, "delta") if made_for else Shipped(_COPY_BYTES, "base")

    def _base(self) -> str:
        """Return a version that a delta can be based on; empty: there is none."""
        return next((pin for pin, copy in self._stored.copies.items() if copy.is_ready and copy.is_sound), "")

    def _apply_delta(self, pin: str, made_for: str) -> str:
        """Return the pin of the loaded bytes: a delta applies to the rows it was made for, and to no others."""
        if made_for and not any(copy.bytes == made_for and copy.is_ready for copy in self._stored.copies.values()):
            self._stored.copies.pop(pin)
            raise InputError(f"{self.name}: {pin} is a delta for rows of {made_for}, and no loaded version has them")
        return pin

    def _has_readers(self, pin: str) -> bool:
        return self._world.clients is not None and pin in self._world.clients.in_use()

    def _verify(self, version: Version) -> None:
        copy = self._stored.copies.get(version.pin)
        if copy is None or not copy.is_ready:
            raise NotFound(f"{self.name} does not have {version.pin}")
        if not copy.is_as_sent:
            raise IntegrityError(f"{self.name}: the rows of {version.pin} do not sum up to what was packed")
        if version.label.startswith("bad"):
            raise IntegrityError(f"{self.name}: a probe of {version.pin} was answered with another score")
        if self.leg == "dense" and self._world.clients is not None:
            self._world.clients.probe(self, version.pin, copy.shards)

    def _activate(self, shares: Shares, order: int) -> None:
        self._fence(order, "activate")
        missing = [pin for pin in shares if not self.holds(pin)]
        if missing:
            raise NotFound(f"{self.name} does not have {', '.join(missing)}")
        self._stored.active = dict(shares)
        self.obeyed.add(order)
        self.is_stale = not shares  # it shall answer with nothing, for it lost what it answered with
        self._persist()
        if self._world.clients is not None:
            self._world.clients.check_reach(self)

    def _unload(self, pin: str, order: int) -> None:
        self._fence(order, "unload")
        if pin in self._stored.active:
            raise Conflict(f"{self.name}: {pin} is active")
        if self.leg != "sparse" and self._world.clients is not None:
            self._world.clients.finish(self, pin)  # its requests end first
        self._stored.copies.pop(pin, None)
        self.obeyed.add(order)
        self._persist()
        if self._world.clients is not None:
            self._world.clients.check_deleted(self, pin)

    def _watch(self) -> Health:
        seen, self._counted = self._counted, {}
        return Health(
            {
                pin: Traffic(int(n), int(failed), scores=int(n - failed), score_sum=total, score_squares=squares)
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
            stage, _, where = step.partition(":")
            if STAGES.get(stage) != what or where.split("@")[0] != self.name:
                self._world.broken("unexplained", f"{self.name} was asked to {what}, and the journal has {step}")

    def _persist(self) -> None:
        self._world.has_changed = True
        self._past = [*self._past[-3:], self._stored.copy()]

    # Faults.

    def suffer(self) -> None:
        """Perhaps be cut off, fill up, or die."""
        world = self._world
        if world.strikes("cut", 0.015):
            self.cut_until = world.now + world.rng.choice((0.5, 5.0, 60.0))
            world.note("{} is cut off until {:.1f}", self.name, self.cut_until)
        if world.strikes("full", 0.015):
            self.full_until = world.now + world.rng.choice((1.0, 60.0))
        if self.leg == "dense" and "split" in world.weather and world.rng.random() < 0.02:  # noqa: PLR2004
            self._split()
        if "lost" in world.weather and world.rng.random() < 0.02:  # noqa: PLR2004
            self.lose()
        for kind in ("crash", "amnesia", "rot"):
            if self.is_up and kind in world.weather and world.rng.random() < 0.02 and self._may_die():  # noqa: PLR2004
                world.strikes(kind, 1.0)
                self.die(kind)

    def _split(self) -> None:
        """Lose the connection to a shard, or to one of its replicas."""
        world, clients = self._world, self._world.clients
        groups = clients.groups() if clients is not None else []
        if groups and self._may_die() and not self.is_blind and world.strikes("split", 1.0):
            group = world.rng.choice(groups)
            self._blind_to = world.rng.choice((group, group[:1]))
            self._blind_until = world.now + world.rng.choice((0.5, 5.0, 60.0))
            names = ", ".join(place.name for place in self._blind_to)
            world.note("{} does not reach {} until {:.1f}", self.name, names, self._blind_until)

    def go_back(self) -> None:
        """Perhaps restart at once, with the state before the last change: it was not on disk yet."""
        world = self._world
        if self.is_up and "amnesia" in world.weather and len(self._past) > 1 and self._may_die():
            before = self._past[-2]
            if world.strikes("amnesia", 1.0):
                self.die("crash")
                self._stored, self.is_stale, self.back_at = before.copy(), True, world.now

    def lose(self) -> None:
        """Lose a version that no request needs, nor what is live or about to answer."""
        world = self._world
        kept = {*self.active, *(world.clients.in_use() if world.clients is not None else ())}
        if world.journal is not None:
            kept |= {life["pin"] for life in (world.journal.recall("lives") or ())[:1]}
        idle = [pin for pin, copy in self.copies.items() if copy.is_ready and pin not in kept]
        if self.is_up and idle and world.strikes("lost", 1.0):
            pin = world.rng.choice(idle)
            losers = [p for p in world.places.values() if p is self or (self.leg == "sparse" and p.group == self.group)]
            for place in losers if world.rng.random() < 0.5 else [self]:  # noqa: PLR2004
                place.drop(pin)

    def drop(self, pin: str) -> None:
        """Lose one version, unless it answers with it."""
        if pin not in self._stored.active:
            self._stored.copies.pop(pin, None)
            self._persist()
            self._world.note("{} loses {}", self.name, pin)

    def die(self, how: str) -> None:
        """Lose the memory (`crash`), some of the disk (`amnesia`), or have the disk damaged (`rot`)."""
        world = self._world
        self.is_up = False
        self.back_at = world.now + world.rng.choice((0.2, 2.0, 30.0))
        world.down.append(self)
        if how == "amnesia":
            self._stored = world.rng.choice([Stored(), *self._past]).copy()
            self.is_stale = True
        elif how == "rot" and self._stored.copies:
            pin = world.rng.choice(list(self._stored.copies))
            self._stored.spoil(pin, world.rng.choice((DAMAGED, DAMAGED, "v1", "v2", "v3")))
        world.note("{} dies of {}", self.name, how)
        if world.clients is not None:
            world.clients.lost(self)

    def restart(self) -> None:
        """Come back with the sound versions of the disk; an unfinished load is gone."""
        if not self._stored.keep_sound():
            self.is_stale = True
        self.is_up = True
        self.incarnation += 1
        self._world.down.remove(self)
        self._world.note("{} is back with {}", self.name, sorted(self._stored.copies))

    def heal(self) -> None:
        """End all faults of this place."""
        self.cut_until = self.full_until = self._blind_until = 0.0
        if not self.is_up:
            self.restart()

    def _may_die(self) -> bool:
        """Tell whether a fault may hit this place: of each group, one replica at a time may be down or behind.

        With two replicas no more can be promised.
        """
        if self.leg == "edge":
            return True
        peers = [p for p in self._world.places.values() if p.leg == self.leg and p is not self]
        if self.leg == "sparse":
            peers = [p for p in peers if p.group == self.group]
        needed = self._world.clients.in_use() if self._world.clients is not None else []
        if self.leg == "dense":
            return any(p.is_up and p.active and not p.is_stale and not p.is_blind for p in peers)
        return any(
            p.is_up and not p.is_stale and all(p.holds(pin) for pin in needed if pin in self.copies) for p in peers
        )
