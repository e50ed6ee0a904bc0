"""One seed's story: a target with a live version, a release or two under bad weather, then one command to be whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cloudedge.errors import CloudEdgeError, NotFound
from cloudedge.release import Ground, Limits, Options, TableFacts, Target, Version
from cloudedge.testing._places import SimPlace
from cloudedge.testing._requests import Clients
from cloudedge.testing._stock import stock_delivery
from cloudedge.testing._world import FAULTS, Killed, SimClock, SimJournal, Violation, World

__all__ = ["Result", "SimShelf", "run_seed", "sim_target", "sim_version"]

_TURNS = 3
"""How often cloudedge is started in one story, at most, before the weather clears."""


@dataclass(frozen=True)
class Result:
    """What came of one seed."""

    seed: int
    violations: tuple[Violation, ...]
    points: int
    """Moments at which cloudedge might have been killed."""
    answers: int
    faults: Mapping[str, int] = field(default_factory=dict)
    outcomes: tuple[str, ...] = ()
    trace: tuple[str, ...] = ()


def sim_version(number: int, *, tables: Mapping[str, int] | None = None, label: str = "") -> Version:
    """Make a version that has no bytes, for tables with so many shards each."""
    facts = {
        name: TableFacts(rows=10 * shards, dtype="float32", dim=4, row_bytes=16, shard_rows=(10,) * shards)
        for name, shards in (tables or {}).items()
    }
    digest = f"sha256:{number:064x}"
    return Version(f"v{number}", "ctr", digest, label or str(number), dense_bytes=1000, tables=facts)


class SimShelf:
    """A hub in memory, where garbage is collected without mercy: what no release marks goes."""

    def __init__(self, world: World, versions: list[Version]) -> None:
        self.versions = {version.ref: version for version in versions}
        self.roles: dict[str, str] = {}
        self.wanted: list[str] = []
        """Refs that nobody may collect: just packed, or asked for right now."""
        self._world = world
        world.collect = self.collect

    def version(self, ref: str) -> Version:
        """Return a version."""
        if ref not in self.versions:
            raise NotFound(f"{ref} is not in the hub")
        return self.versions[ref]

    def verify(self, version: Version) -> None:
        """Check that it is there."""
        self.version(version.ref)

    def mark(self, roles: Mapping[str, str | None]) -> None:
        """Move tags, one at a time, as a real hub does."""
        for role, ref in roles.items():
            self._world.point(f"tag {role}")
            if ref is None:
                self.roles.pop(role, None)
            else:
                self.roles[role] = self.version(ref).ref

    def collect(self) -> None:
        """Delete what nothing marks, and see whether anybody would miss it."""
        kept = [*self.roles.values(), *self.wanted]
        gone = [ref for ref in self.versions if ref not in kept]
        self._world.note("collected {}", gone)
        for ref in gone:
            del self.versions[ref]
        pins = {version.pin for version in self.versions.values()}
        for place in self._world.places.values():
            for pin in place.active:
                if pin not in pins and not place.is_stale:
                    self._world.broken("deleted", f"{place.name} answers with {pin}, which the hub has lost")


def sim_target(world: World, *, shelf: SimShelf, journal: SimJournal, by: str = "ann") -> Target:
    """Start cloudedge, as a new process would, on a simulated world."""
    return Target(Ground("sim", world.places, journal, shelf, SimClock(world), world.run, by))


class _Story:
    def __init__(self, seed: int, faults: frozenset[str], *, traced: bool) -> None:
        world = self.world = World(seed, faults, traced=traced)
        rng = world.rng
        tables = {name: rng.choice((1, 2)) for name in ("emb", "ids")[: rng.choice((1, 1, 2))]}
        for table, shards in tables.items():
            for shard in range(shards):
                for replica in range(2):
                    SimPlace(
                        world, f"sparse/{table}/{shard}/{replica}", "sparse", table=table, shard=shard, shards=shards
                    )
        for replica in range(rng.choice((2, 2, 3))):
            SimPlace(world, f"dense/{replica}", "dense")
        for node in range(rng.choice((0, 0, 1, 2))):
            SimPlace(world, f"edge/{node}", "edge")
        second = rng.choice(("2", "2", "2", "bad-2"))
        self.versions = [
            sim_version(1, tables=tables),
            sim_version(2, tables=tables, label=second),
            sim_version(3, tables=tables),
        ]
        world.is_calm = True
        self.journal = SimJournal(world)
        self.shelf = SimShelf(world, self.versions)
        self.shelf.wanted = [version.ref for version in self.versions[1:]]
        self.clients = Clients(world)
        if rng.random() < 0.3:  # noqa: PLR2004
            self.clients.scores["v2"] = 9.0  # a model that answers, and answers nonsense
        self.outcomes: list[str] = []
        self._was_live()
        world.journal = self.journal
        world.is_calm = False

    def _was_live(self) -> None:
        """Version 1 was released long ago."""
        first = self.versions[0]
        for place in self.world.places.values():
            place.start_with(first.pin)
        with self.journal.writing("history") as writer:
            writer.remember("lives", [{"pin": first.pin, "ref": first.ref, "title": str(first)}])
            writer.remember("known", [first.pin])
        self.shelf.roles["live"] = first.ref

    @property
    def target(self) -> Target:
        return sim_target(self.world, shelf=self.shelf, journal=self.journal)

    def tell(self) -> None:
        """Let it happen."""
        world = self.world
        for turn in range(_TURNS):
            world.kill_at = -1
            if "kill" in world.weather and world.rng.random() < 0.7:  # noqa: PLR2004
                world.kill_at = world.points + world.rng.randrange(1, 250)
            self._turn(turn)
            self._check_explained()
        world.kill_at = -1
        self._clear()

    def _turn(self, turn: int) -> None:
        rng = self.world.rng
        target = self.target
        unfinished = self.journal.unfinished() is not None
        act: Callable[[], object]
        if turn == 0:
            act = self._release(target, 1)
        elif unfinished:
            act = rng.choice((target.resume, target.resume, target.abort, target.rollback, target.promote))
        else:
            act = rng.choice((self._release(target, 2), self._release(target, 1), target.rollback, target.resume))
        self._attempt(act)

    def _release(self, target: Target, index: int) -> Callable[[], object]:
        options = self._options()
        return lambda: target.run(target.plan(self.versions[index], options))

    def _options(self) -> Options:
        rng = self.world.rng
        canary = rng.choice((0.0, 0.0, 0.5))
        return Options(
            canary=canary,
            bake_s=rng.choice((0.0, 4.0)) if canary else 0.0,
            on_breach=rng.choice(("rollback", "pause")),
            limits=Limits(min_requests=3, score_drift=5.0, error_rate=1.0),
            attempts=rng.choice((1, 3)),
        )

    def _attempt(self, act: Callable[[], object]) -> None:
        name = getattr(act, "__name__", "release").replace("<lambda>", "release")
        self.world.note("--- {}", name)
        try:
            came = act()
            self.outcomes.append(f"{name}: {getattr(came, 'state', came)}")
        except Killed:
            self.outcomes.append(f"{name}: killed")
        except CloudEdgeError as error:
            self.outcomes.append(f"{name}: {type(error).__name__}")
            self.world.note("{} ended with {}: {}", name, type(error).__name__, error.message)

    def _clear(self) -> None:
        """The weather clears; one command, and the target has to be whole."""
        world = self.world
        world.is_calm = True
        for place in world.places.values():
            place.heal()
        while world.late:
            world.deliver()
        self._check_explained()
        target = self.target
        unfinished = self.journal.unfinished()
        # A canary that does badly and shall pause then pauses on every resume, as it should.
        pauses = unfinished is not None and unfinished.plan["options"]["on_breach"] == "pause"
        goes_back = unfinished is not None and (pauses or world.rng.random() < 0.3)  # noqa: PLR2004
        act = target.rollback if goes_back else target.resume
        try:
            world.note("--- the weather clears: {}", act.__name__)
            act()
        except CloudEdgeError as error:
            world.broken("not whole", f"{act.__name__} ended with {type(error).__name__}: {error.message}")
            return
        for _ in range(20):
            world.churn()
        self.clients.finish()
        self._check_whole()

    def _check_explained(self) -> None:
        """With nothing unfinished, a place answers with what the journal calls live, unless it lost its memory."""
        if self.journal.unfinished() is not None:
            return
        pin = self.journal.recall("lives")[0]["pin"]
        for place in self.world.places.values():
            if not place.is_stale and dict(place.active) != {pin: 1.0}:
                what = f"{place.name} answers with {dict(place.active)}; nothing is unfinished and {pin} is live"
                self.world.broken("unexplained", what)

    def _check_whole(self) -> None:
        world = self.world
        lives = self.journal.recall("lives")
        pin, ref = lives[0]["pin"], lives[0]["ref"]
        if self.journal.unfinished() is not None:
            world.broken("not whole", "something is unfinished")
        if self.shelf.roles.get("live") != ref or "next" in self.shelf.roles:
            world.broken("unexplained", f"{pin} is live and the hub's tags say {self.shelf.roles}")
        for role, marked in self.shelf.roles.items():
            if marked not in self.shelf.versions:
                world.broken("deleted", f"{marked} is marked as {role}, and the hub has lost it")
        for place in world.places.values():
            copy = place.copies.get(pin)
            if dict(place.active) != {pin: 1.0} or copy is None or not copy.is_ready or not copy.is_intact:
                world.broken("not whole", f"{place.name} answers with {dict(place.active)}, and {pin} is live")


def run_seed(
    seed: int, *, faults: frozenset[str] = frozenset(FAULTS), traced: bool = False, stock: bool = False
) -> Result:
    """Tell one seed's story.

    Args:
        seed: Which one.
        faults: The kinds of faults there may be.
        traced: Also return what happened, line by line.
        stock: Deliver as upstream does instead: no pins, no plan, no journal.
    """
    story = _Story(seed, faults, traced=traced)
    if stock:
        stock_delivery(story.world, story.versions[1].pin)
    else:
        story.tell()
    world = story.world
    story.journal.close()
    return Result(
        seed=seed,
        violations=tuple(world.violations),
        points=world.points,
        answers=sum(world.clients.answered.values()) if world.clients else 0,
        faults=world.counts,
        outcomes=tuple(story.outcomes),
        trace=tuple(world.trace),
    )
