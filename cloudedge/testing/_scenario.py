"""The scenario of one seed: a target, mostly with a live version; releases under faults; then one command mends all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cloudedge.errors import CloudEdgeError
from cloudedge.release import Life, Limits, Options, Target
from cloudedge.testing._requests import Clients
from cloudedge.testing._simulated_places import SimPlace
from cloudedge.testing._simulated_world import FAULTS, Killed, SimJournal, SimulatedWorld, Violation
from cloudedge.testing._stock_flow import stock_delivery
from cloudedge.testing._target_parts import SimBundleSource, SimLayouts, sim_target, sim_version

__all__ = ["Result", "run_seed"]

_TURNS = (2, 3)
"""Starts of cloudedge in one scenario before the faults end."""


@dataclass(frozen=True)
class Result:
    """The result of one seed."""

    seed: int
    violations: tuple[Violation, ...]
    points: int
    """The moments at which cloudedge might have been killed."""
    answers: int
    faults: Mapping[str, int] = field(default_factory=dict)
    outcomes: tuple[str, ...] = ()
    trace: tuple[str, ...] = ()


class _Scenario:
    def __init__(self, seed: int, faults: frozenset[str], *, traced: bool) -> None:
        world = self.world = SimulatedWorld(seed, faults, traced=traced)
        rng = world.rng
        tables = {name: rng.choice((1, 2)) for name in ("emb", "ids")[: rng.choice((1, 1, 2))]}
        self.layouts = SimLayouts(world, tables)
        self.is_cut_anew = rng.random() < 0.25  # noqa: PLR2004
        for replica in range(rng.choice((2, 2, 3))):
            SimPlace(world, f"dense/{replica}", "dense")
        for node in range(rng.choice((0, 0, 1, 2))):
            SimPlace(world, f"edge/{node}", "edge")
        self._limit_memory(rng.choice((None, None, 2, 3)))
        second = rng.choice(("2", "2", "2", "bad-2"))
        self.versions = [
            sim_version(1, tables=tables),
            sim_version(2, tables=tables, label=second),
            sim_version(3, tables=tables),
        ]
        world.is_calm = True
        self.journal = SimJournal(world)
        self.bundles = SimBundleSource(world, self.versions, self.layouts)
        self.bundles.wanted = [version.ref for version in self.versions[1:]]
        self.clients = Clients(world)
        if rng.random() < 0.3:  # noqa: PLR2004
            self.clients.scores["v2"] = 9.0  # a model that answers nonsense
        self.outcomes: list[str] = []
        if rng.random() < 0.9:  # noqa: PLR2004 - in the rest nothing was ever released
            self._was_live()
        world.journal = self.journal
        world.explain = self._check_explained
        world.is_calm = False
        if rng.random() < 0.3:  # noqa: PLR2004
            world.meet(rng.randrange(1, 400), self._rival)

    def _limit_memory(self, room: int | None) -> None:
        """Limit how many versions fit into a place; with two, the older one gives way to the new one."""
        self.world.room = room
        for place in self.world.places.values():
            place.room = room

    def _was_live(self) -> None:
        """Version 1 was released long ago."""
        first = self.versions[0]
        for place in self.world.places.values():
            place.start_with(first)
        with self.journal.writing("history") as writer:
            writer.remember("lives", [vars(Life(first.pin, first.ref, str(first), first.shards))])
            writer.remember("known", [first.pin])
        self.bundles.here.add(first.ref)
        self.bundles.roles["live"] = first.ref

    def target(self, by: str = "ann") -> Target:
        """Start cloudedge."""
        return sim_target(self.world, bundles=self.bundles, journal=self.journal, layouts=self.layouts, by=by)

    def _rival(self) -> None:
        """Start a second cloudedge, in the middle of what the first one does or between two of its lines."""
        target = self.target("bob")
        acts = (self._release(target, 1), self._release(target, 2), target.abort, target.promote, target.resume)
        self._attempt(self.world.rng.choice((*acts, target.rollback)), by="rival ")

    def run(self) -> None:
        """Run the scenario."""
        world = self.world
        for turn in range(world.rng.choice(_TURNS)):
            world.kill_at = -1
            if "kill" in world.weather and world.rng.random() < 0.7:  # noqa: PLR2004
                world.kill_at = world.points + world.rng.randrange(1, 250)
            self._turn(turn)
            self._check_explained()
        world.kill_at = world.rival_at = -1
        self._clear()

    def _turn(self, turn: int) -> None:
        rng = self.world.rng
        if self.is_cut_anew and rng.random() < 0.6:  # noqa: PLR2004
            self.layouts.change({table: rng.choice((1, 2, 3)) for table in self.layouts.now()})
            self.outcomes.append("layout: changed")
        target = self.target()
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
            limits=Limits(min_requests=3, score_drift=5.0, error_rate=rng.choice((0.5, 1.0))),
            attempts=rng.choice((1, 3)),
            patience_s=rng.choice((0.0, 0.0, 10.0)),
        )

    def _attempt(self, act: Callable[[], object], by: str = "") -> None:
        name = by + getattr(act, "__name__", "release").replace("<lambda>", "release")
        if name == "release" and not self.journal.recall("lives"):
            name = "first release"
        self.world.note("--- {}", name)
        try:
            came = act()
            self.outcomes.append(f"{name}: {getattr(came, 'state', came)}")
            if any(".trim:" in step for step in getattr(came, "done", ())):
                self.outcomes.append("trimmed")
        except Killed:
            self.outcomes.append(f"{name}: killed")
        except CloudEdgeError as error:
            self.outcomes.append(f"{name}: {type(error).__name__}")
            self.world.note("{} ended with {}: {}", name, type(error).__name__, error.message)

    def _clear(self) -> None:
        """End all faults; after one command the target has to be whole."""
        world = self.world
        world.is_calm = True
        for place in world.places.values():
            place.heal()
        while world.late:
            world.deliver()
        self._check_explained()
        target = self.target()
        unfinished = self.journal.unfinished()
        # A canary that breaks a limit, with the option to pause, pauses on every resume, as it should.
        pauses = unfinished is not None and unfinished.plan["options"]["on_breach"] == "pause"
        goes_back = unfinished is not None and (pauses or world.rng.random() < 0.3)  # noqa: PLR2004
        # The first release ever only goes forward once requests have moved.
        goes_back = goes_back and bool(unfinished and unfinished.plan["lives"])
        act = target.rollback if goes_back else target.resume
        try:
            world.note("--- the faults end: {}", act.__name__)
            act()
        except CloudEdgeError as error:
            world.broken("not whole", f"{act.__name__} ended with {type(error).__name__}: {error.message}")
            return
        for _ in range(20):
            world.churn()
        world.now += 60.0  # longer than the slowest request takes
        self.clients.finish()
        self._check_whole()

    def _check_explained(self) -> None:
        """Check that with nothing unfinished, every place answers with what the journal calls live.

        Exempt are places that lost their memory, and places that did not answer and that the journal lists as left.
        """
        if self.journal.has_unfinished():
            return
        live = self._live()
        for place in self._answering(live):
            if (
                not place.is_stale
                and dict(place.active) != _shares(live)
                and place.name not in self.journal.left_away()
            ):
                what = f"{place.name} answers with {dict(place.active)}; nothing is unfinished, {_pin(live)} is live"
                self.world.broken("unexplained", what)

    def _live(self) -> Life | None:
        lives = self.journal.recall("lives")
        return Life(**lives[0]) if lives else None

    def _answering(self, live: Life | None) -> list[SimPlace]:
        """Return the places that have to answer with what is live; those of other layouts do not."""
        shards = live.shards if live is not None else self.layouts.now()
        return [p for p in self.world.places.values() if p.leg != "sparse" or shards.get(p.table) == p.shards]

    def _check_whole(self) -> None:
        world = self.world
        live = self._live()
        if self.journal.unfinished() is not None:
            world.broken("not whole", "something is unfinished")
        if self.bundles.roles.get("live") != (live.ref if live else None) or "next" in self.bundles.roles:
            world.broken("unexplained", f"{_pin(live)} is live and the hub's tags say {self.bundles.roles}")
        for role, marked in self.bundles.roles.items():
            if marked not in self.bundles.versions:
                world.broken("deleted", f"{marked} is marked as {role}, and the hub has lost it")
        for place in self._answering(live):
            copy = place.copies.get(_pin(live))
            is_sound = live is None or (copy is not None and copy.is_ready and copy.is_sound)
            if dict(place.active) != _shares(live) or not is_sound:
                world.broken("not whole", f"{place.name} answers with {dict(place.active)}, and {_pin(live)} is live")


def _pin(live: Life | None) -> str:
    return live.pin if live is not None else "nothing"


def _shares(live: Life | None) -> dict[str, float]:
    return {live.pin: 1.0} if live is not None else {}


def run_seed(
    seed: int, *, faults: frozenset[str] = frozenset(FAULTS), traced: bool = False, stock: bool = False
) -> Result:
    """Run one seed.

    Args:
        seed: The seed.
        faults: The kinds of faults that may happen.
        traced: Also return what happened, line by line.
        stock: Deliver as upstream does instead: no pins, no plan, no journal.
    """
    scenario = _Scenario(seed, faults, traced=traced)
    if stock:
        stock_delivery(scenario.world, scenario.versions[1].pin)
    else:
        scenario.run()
    world = scenario.world
    scenario.journal.close()
    return Result(
        seed=seed,
        violations=tuple(world.violations),
        points=world.points,
        answers=sum(world.clients.answered.values()) if world.clients else 0,
        faults=world.counts,
        outcomes=tuple(scenario.outcomes),
        trace=tuple(world.trace),
    )
