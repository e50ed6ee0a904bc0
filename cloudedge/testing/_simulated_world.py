"""The simulated world: one seed, one thread, simulated time, and every fault between any two lines of cloudedge.

Cloudedge calls `SimulatedWorld.point` between any two of its acts: before and after every journal write and every call
to a place, and while it sleeps. At a point, requests take a step, delayed calls arrive, processes die and come back,
garbage is collected, and cloudedge itself may be killed. All chance comes from one seeded generator, so a seed replays
exactly.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from cloudedge.errors import CloudEdgeError, DeadlineExceeded, StorageError, Unavailable
from cloudedge.journal import Journal
from cloudedge.testing._journal_promises import JournalPromises

if TYPE_CHECKING:
    from cloudedge.testing._requests import Clients
    from cloudedge.testing._simulated_places import SimPlace

__all__ = ["FAULTS", "Killed", "SimClock", "SimJournal", "SimulatedWorld", "Violation"]

FAULTS = (
    "drop",  # a call does not arrive
    "mute",  # a call is carried out and its answer is lost
    "late",  # a call times out and is carried out later, after calls that were made after it
    "twice",  # a call is carried out twice
    "cut",  # cloudedge cannot reach a place for a while; clients can
    "split",  # a serving replica cannot reach a shard for a while, or one of its replicas
    "corrupt",  # bytes arrive damaged, from the hub or at a place, or another version's under the same name
    "full",  # a place's disk is full for a while
    "crash",  # a place's process dies and comes back with what is on its disk
    "amnesia",  # it comes back with an older state of its disk, or with nothing
    "rot",  # it comes back, and some of its disk has changed
    "lost",  # a place loses a version that it does not answer with, and all replicas of a shard may
    "stray",  # a shard answers with its active version instead of the pinned one and says so, as upstream's servers do
    "slow",  # a request takes seconds, and is under way while versions come and go
    "kill",  # cloudedge is killed
    "disk",  # the journal cannot be written
    "clock",  # the wall clock is set back
    "gc",  # garbage is collected in the hub
)

T = TypeVar("T")
_FEW = 3
"""With at most this many kinds of faults, each one is likely."""
_DAWN = datetime(2026, 1, 1, tzinfo=timezone.utc)


class Killed(BaseException):
    """SIGKILL, seen from inside: nothing catches it."""


@dataclass(frozen=True)
class Violation:
    """A broken promise."""

    promise: str
    """`mixed`, `zeros`, `wrong`, `failed`, `deleted`, `unexplained`, `not whole`, `bad canary`."""
    what: str
    at: float

    def __str__(self) -> str:
        return f"{self.promise}: {self.what} (at {self.at:.2f} s)"


@dataclass
class SimulatedWorld:
    """Chance, time, places, clients, and the promises that were broken."""

    seed: int
    faults: frozenset[str] = frozenset(FAULTS)
    traced: bool = False
    now: float = 0.0
    points: int = 0
    kill_at: int = -1
    is_calm: bool = False
    """True once all faults have ended."""
    places: dict[str, SimPlace] = field(default_factory=dict)
    down: list[SimPlace] = field(default_factory=list)
    clients: Clients | None = None
    journal: SimJournal | None = None
    late: list[tuple[float, str, int, Callable[[], object]]] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    collect: Callable[[], None] = lambda: None
    set_back_s: float = 0.0
    damaged: set[str] = field(default_factory=set)
    """The pins whose bytes arrived damaged from the hub."""
    room: int | None = None
    """The number of versions that fit into a place's memory; None: no limit."""
    has_changed: bool = False
    """True if a place or the journal changed since they were last compared."""
    explain: Callable[[], None] = lambda: None
    """Compares the places with the journal."""
    rival_at: int = -1
    rival: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)  # noqa: S311 - seeded on purpose
        # Each seed has its own weather: a few faults of some kinds, or none at all.
        # Some have few kinds, and meet them often: what needs one fault twice is rare among all the others.
        kinds = [kind for kind in FAULTS if kind in self.faults]
        if len(kinds) > _FEW and self.rng.random() < 0.4:  # noqa: PLR2004
            kinds = self.rng.sample(kinds, _FEW)
        likely = 0.4 if len(kinds) > _FEW else 0.9
        self.weather = frozenset(kind for kind in kinds if self.rng.random() < likely)
        self.rate = self.rng.choice((0.02, 0.05, 0.15))
        self.budget = self.rng.choice((0, 2, 4, 8)) if self.weather else 0

    def note(self, text: str, *facts: object) -> None:
        """Write a line of the trace, if there is one."""
        if self.traced:
            self.trace.append(f"{self.now:8.2f}  {text.format(*facts)}")

    def broken(self, promise: str, text: str) -> None:
        """Record a broken promise."""
        self.violations.append(Violation(promise, text, self.now))
        self.note("BROKEN {}: {}", promise, text)

    def strikes(self, kind: str, rate: float | None = None) -> bool:
        """Tell whether a fault of this kind happens here, and count it."""
        if kind not in self.weather or self.is_calm or self.budget <= 0:
            return False
        if self.rng.random() >= (self.rate if rate is None else rate):
            return False
        self.budget -= kind not in ("gc", "clock", "slow")  # these cost correct code nothing
        self.counts[kind] = self.counts.get(kind, 0) + 1
        return True

    def point(self, what: str) -> None:
        """Let the world go on between two lines of cloudedge.

        Raises:
            Killed: cloudedge dies here.
        """
        self.points += 1
        if self.points == self.kill_at:
            self.counts["kill"] = self.counts.get("kill", 0) + 1
            self.note("KILL cloudedge at {}", what)
            raise Killed
        self.now += 0.01
        self.churn()
        if self.has_changed and not self.is_calm:
            self.has_changed = False
            self.explain()
        if self.points >= self.rival_at > 0 and not self.is_writing:
            self.rival_at = -1
            self.rival()

    @property
    def is_writing(self) -> bool:
        """True while a transaction of the journal is open: no other process gets in between."""
        return self.journal is not None and self.journal.is_in_transaction

    def meet(self, at: int, rival: Callable[[], None]) -> None:
        """Let another operator act after so many points."""
        self.rival_at, self.rival = self.points + at, rival

    @cached_property
    def _all(self) -> list[SimPlace]:
        return list(self.places.values())

    def places_changed(self) -> None:
        """Notice places that were started or ended."""
        self.__dict__.pop("_all", None)
        if self.clients is not None:
            self.clients.look()

    def churn(self) -> None:
        """Let everything but cloudedge take one step."""
        if self.clients is not None:
            self.clients.live()
        if self.late and self.rng.random() < 0.02:  # noqa: PLR2004
            self.deliver()
        if self.down:
            for place in [place for place in self.down if place.back_at <= self.now]:
                place.restart()
        if self.is_calm or not self.weather:
            return
        if self.budget > 0:
            self.rng.choice(self._all).suffer()
        if self.strikes("gc", 0.02):
            self.collect()
        if self.strikes("clock", 0.01):
            self.set_back_s += 3600.0

    def deliver(self) -> None:
        """Carry out a delayed call now, unless the process it was meant for is gone."""
        _, name, incarnation, call = self.late.pop(self.rng.randrange(len(self.late)))
        place = self.places.get(name)
        if place is None or place.incarnation != incarnation or not place.is_up:
            return
        try:
            call()
            self.note("a delayed call reached {}", name)
        except CloudEdgeError as error:
            self.note("a delayed call to {} was refused: {}", name, error.message)

    def call(self, place: SimPlace, what: str, act: Callable[[], T], *, changes: bool) -> T:
        """Carry a call of cloudedge to a place, over a network with faults."""
        self.point(f"before {place.name} {what}")
        if not place.is_up or place.cut_until > self.now:
            self.note("{} {}: away", place.name, what)
            self.now += 1.0
            raise Unavailable(f"{place.name} does not answer")
        if self.strikes("drop"):
            raise Unavailable(f"{place.name}: the call got lost")
        if changes and self.strikes("late", 3 * self.rate):
            self.late.append((self.now, place.name, place.incarnation, act))
            raise DeadlineExceeded(f"{place.name}: no answer in time")
        if changes and self.strikes("twice", 3 * self.rate):
            act()
        answer = act()
        if self.strikes("mute"):
            raise DeadlineExceeded(f"{place.name}: the answer got lost")
        if changes:
            self.note("{} {}", place.name, what)
        self.point(f"after {place.name} {what}")
        return answer

    def run(self, calls: Sequence[Callable[[], None]], _jobs: int) -> None:
        """Run parallel calls one after the other, in random order."""
        order = list(calls)
        if len(order) > 1:
            self.rng.shuffle(order)
        for call in order:
            call()


class SimClock:
    """The world's time as cloudedge's clock; the world goes on while cloudedge sleeps."""

    def __init__(self, world: SimulatedWorld) -> None:
        self._world = world

    def now(self) -> datetime:
        """Return the wall-clock time, which may have been set back."""
        return _DAWN + timedelta(seconds=self._world.now - self._world.set_back_s)

    def monotonic(self) -> float:
        """Return the time that is never set back."""
        return self._world.now

    def sleep(self, seconds: float) -> None:
        """Let time pass and the world go on."""
        world = self._world
        for _ in range(3):
            world.now += seconds / 3
            world.point("asleep")
        if seconds >= 5 and world.clients is not None:  # noqa: PLR2004 - longer than any request takes
            world.clients.finish()

    def random(self) -> float:
        """Return a number from the seeded generator."""
        return self._world.rng.random()


class SimJournal(Journal):
    """The real journal, in memory, on a disk that may fail and in a process that may die around any write."""

    def __init__(self, world: SimulatedWorld) -> None:
        self._world = world
        self._has_unfinished: bool | None = None
        self.promises = JournalPromises(world)
        super().__init__(None, clock=SimClock(world))

    @property
    def is_in_transaction(self) -> bool:
        """True while a transaction is open."""
        return self._db.in_transaction

    def has_unfinished(self) -> bool:
        """Tell whether an operation is unfinished; asked often, so read again only after a write."""
        if self.is_in_transaction:  # which may still be rolled back
            return self.unfinished() is not None
        if self._has_unfinished is None:
            self._has_unfinished = self.unfinished() is not None
        return self._has_unfinished

    def left_away(self) -> Mapping[str, str]:
        """Return the places that the newest operation left out, and why."""
        newest = self.operations(limit=1)
        return newest[0].outcome.get("away", {}) if newest else {}

    def _write(self, sql: str, *values: Any) -> int:
        world = self._world
        world.point("before a journal write")
        if world.strikes("disk"):
            world.note("the journal's disk is full")
            raise StorageError("writing the journal: no space left on device", path=str(self.path))
        number = super()._write(sql, *values)
        if "operations" in sql:
            self._has_unfinished, world.has_changed = None, True
        if sql.startswith("INSERT INTO operations"):
            self.promises.begin()
        elif sql.startswith("INSERT INTO entries"):
            self.promises.check(number, *values[1:4])
        world.point("after a journal write")
        return number
