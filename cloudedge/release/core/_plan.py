"""The planner: the desired version and the observed target in, ordered steps out. Pure.

The same function plans a release, a rollback and a repair. A step is planned only where a place is not yet as it should
be, so a rollback to a loaded version only moves pointers, and the plan of a finished release is empty.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cloudedge.release.core._places import Estimate, Leg, Observed, Shares
from cloudedge.release.core._preconditions import Proposal, refusals, room, warnings
from cloudedge.release.core._steps import Before, Kind, Life, Options, Plan, Step, stage_of
from cloudedge.release.core._table_layouts import Shards, is_idle, takes
from cloudedge.release.core._version import Version

__all__ = ["ReleaseWorld", "plan", "plan_undo", "same_shares"]

_BYTES_PER_S = 50e6
"""For estimates only: half of what a gigabit link carries."""
_POINTER_S = 0.1
_VERIFY_S = 1.0
_LEGS: tuple[Leg, ...] = ("sparse", "dense", "edge")
_MOVES: Mapping[Leg, str] = {"edge": "the nodes", "dense": "requests", "sparse": "readers without a pin"}
"""The legs in the order in which they move, each with what moves there."""
_UNLOADS: tuple[Leg, ...] = ("dense", "edge", "sparse")
"""Serving replicas unload a version once no request uses it; only then its rows may go."""


@dataclass(frozen=True)
class ReleaseWorld:
    """The target as it is: everything a plan is made from besides the desired version."""

    target: str
    places: Sequence[Observed]
    estimates: Mapping[str, Estimate] = field(default_factory=dict)
    """By place, for the desired version."""
    lives: Sequence[Life] = ()
    """What is live and what was, the newest first."""
    known: Collection[str] = ()
    """Pins that this target was ever asked to take; others found at a place are not ours to unload."""
    was: Version | None = None
    """The live version, where it can still be read."""
    shards: Shards = field(default_factory=dict)
    """The number of shards that each table is cut into from now on; empty: all stay as they are."""
    doubt: str = ""
    """Why the journal cannot be believed; empty: it can."""

    @property
    def live(self) -> str:
        """The pin that is live; empty if none is."""
        return self.lives[0].pin if self.lives else ""

    @property
    def legs(self) -> Mapping[Leg, list[Observed]]:
        """The places of each leg."""
        return {leg: [place for place in self.places if place.leg == leg] for leg in _LEGS}


def plan(
    desired: Version,
    world: ReleaseWorld,
    options: Options | None = None,
    *,
    kind: Kind = "release",
    before: Mapping[str, Before] | None = None,
    leave_away: bool = False,
) -> Plan:
    """Plan how a target gets to a version, or why it cannot.

    Args:
        desired: The version every place shall answer with, in the layout it shall live in.
        world: The target as it is now.
        options: What the operator chose.
        kind: A rollback and a repair trust what was live before, and move without a canary.
        before: The state of places when a release that is now resumed was first planned.
        leave_away: Go on without places that do not answer, as a rollback and a repair do, as long as every shard and
            the serving replicas are there at least once.
    """
    chosen = options or Options()
    able = [place for place in world.places if place.is_reachable and takes(place, desired)]
    away = {place.name: place.error for place in world.places if not place.is_reachable and takes(place, desired)}
    may_leave = leave_away or kind != "release"
    trim = [] if away else list(_trim(desired, world, able))
    no = refusals(Proposal(desired, world, able, chosen, _freed(trim, world), may_leave))
    steps = [] if no else [*trim, *_steps(desired, world, able, chosen, kind)]
    if steps:
        steps.insert(0, _fetch(desired, sum(step.size_bytes for step in steps)))
    return Plan(
        kind=kind,
        target=world.target,
        pin=desired.pin,
        ref=desired.ref,
        title=str(desired),
        lives=tuple(world.lives),
        steps=tuple(steps),
        refusals=tuple(no),
        warnings=tuple(warnings(desired, world, chosen)),
        before=before if before is not None else _befores(desired, world),
        shards=desired.shards,
        options=chosen,
        away=away if may_leave else {},
    )


def plan_undo(done: Plan, places: Sequence[Observed], touched: Collection[str]) -> list[tuple[Step, ...]]:
    """Plan how a target gets back to the state before a release.

    Pointers go back first, serving replicas before shards, and only then versions go: a replica that still answers with
    the new version finds its rows. A place that cannot be observed is asked all the same if it was touched.

    Args:
        done: The plan that is undone.
        places: The places as they are now.
        touched: Ids of the steps that the journal has at least the intent of.

    Returns:
        Stages of steps, in order.
    """
    if done.pin == done.live:
        return []  # a repair only brings what is live; there is nothing to take away
    rows = [done.before[p.name] for p in places if done.shards.get(p.table) == p.shards and p.name in done.before]
    stages: list[tuple[Step, ...]] = []
    for leg in _UNLOADS:
        mine = [place for place in places if place.leg == leg and place.name in done.before]
        back = [step for place in mine for step in _restore(place, done, touched)]
        # Places with nothing to go back to stop answering last: by then the others answer, or the undo has stopped.
        stages += [tuple(step for step in back if not step.pin), tuple(step for step in back if step.pin)]
    if "tag" in touched:
        stages.append((Step("tag", "", "tags back to what is live again", done.live),))
    stages += [
        tuple(
            Step(stage_of(leg, "unload"), place.name, "it came with what is undone", done.pin)
            for place in places
            if place.leg == leg
            and place.name in done.before
            and (_came(place, done.before[place.name], done.pin, touched) or _was_cut_anew(place, done, rows, touched))
        )
        for leg in _UNLOADS
    ]
    return [stage for stage in stages if stage]


def _restore(place: Observed, done: Plan, touched: Collection[str]) -> Iterator[Step]:
    was = done.before[place.name].active
    stage, reason = stage_of(place.leg, "activate"), "back to what it answered with"
    was_asked = any(f"{stage_of(place.leg, how)}:{place.name}" in touched for how in ("canary", "activate"))
    if not place.is_reachable:
        if was_asked:
            yield Step(stage, place.name, reason, shares=was)
    elif not all(place.has(pin) for pin in was):
        # It restarted without what it had. It must not answer with what is undone; a repair does the rest.
        if done.pin in place.active:
            yield Step(stage, place.name, "nothing, for it lost what it answered with", done.pin, shares={})
    elif was_asked or not same_shares(place.active, was):
        # Asked again even where it answers as it should: from then on it refuses a delayed call.
        yield Step(stage, place.name, reason, shares=was)


def _came(place: Observed, was: Before, pin: str, touched: Collection[str]) -> bool:
    if pin in was.pins or pin in was.active:
        return False
    return pin in place.versions or (
        not place.is_reachable and f"{stage_of(place.leg, 'load')}:{place.name}" in touched
    )


def _was_cut_anew(place: Observed, done: Plan, rows: Sequence[Before], touched: Collection[str]) -> bool:
    """Tell whether a replica now has the version for a layout whose rows all go: it must unload it before them."""
    if place.leg != "dense" or done.pin in done.before[place.name].active or not rows:
        return False
    return f"{stage_of('dense', 'load')}:{place.name}" in touched and not any(done.pin in was.pins for was in rows)


def same_shares(one: Shares, other: Shares) -> bool:
    """Tell whether two sets of shares send requests to the same versions in the same proportions."""
    tiny = 1e-9
    return all(abs(one.get(pin, 0.0) - other.get(pin, 0.0)) < tiny for pin in {*one, *other})


def _befores(desired: Version, world: ReleaseWorld) -> Mapping[str, Before]:
    known = [place for place in world.places if place.is_reachable or takes(place, desired)]
    return {place.name: _before(place, world.live, desired.pin) for place in known}


def _before(place: Observed, live: str, pin: str) -> Before:
    if not place.is_reachable:
        # It may have had the version already: an undo brings its pointer to what is live and unloads nothing.
        return Before({live: 1.0} if live else {}, (pin,))
    # A place that lags behind goes back to the live version, not to where it lagged.
    active = {live: 1.0} if live and place.has(live) else dict(place.active)
    return Before(active, tuple(sorted(place.versions)))


def _trim(desired: Version, world: ReleaseWorld, able: list[Observed]) -> Iterator[Step]:
    """Make room where a place has none for another version: versions older than the live one go first, everywhere."""
    lacking = [place for place in able if not place.has(desired.pin)]
    if not any(True for _ in room(desired, lacking, world.estimates, {})):
        return
    reason = f"room for {desired.pin}; a rollback there would load it again"
    for leg in _UNLOADS:
        yield from _unload(world, leg, "trim", reason, kept={desired.pin, world.live})


def _freed(trim: list[Step], world: ReleaseWorld) -> Mapping[str, int]:
    loaded = {place.name: place.versions for place in world.places}
    freed: dict[str, int] = {}
    for step in trim:
        freed[step.place] = freed.get(step.place, 0) + loaded[step.place][step.pin].memory_bytes
    return freed


def _steps(desired: Version, world: ReleaseWorld, able: list[Observed], options: Options, kind: Kind) -> Iterator[Step]:
    pin = desired.pin
    moves = [place for place in able if not same_shares(place.active, {pin: 1.0})]
    lacking = [place for place in able if not place.has(pin)]
    # What was live here before was verified then; a rollback does not read it all again.
    doubtful = [place for place in able if place in lacking or (kind == "release" and place in moves)]
    # A place that has it is asked too, at no cost: from then on it refuses a delayed call of an earlier release.
    asked = [place for place in able if place in lacking or place in moves]
    for leg in _LEGS:
        yield from (_load(place, pin, world) for place in asked if place.leg == leg)
        yield from (_verify(place, pin) for place in doubtful if place.leg == leg)
    if moves or lacking:
        yield Step("gate", "", f"every place still has {pin} before the first moves", pin)
    if options.canary and kind == "release" and world.live:
        yield from _canary([place for place in moves if place.leg == "dense"], pin, world.live, options)
    for leg in _MOVES:
        yield from (_activate(place, pin, world.live) for place in moves if place.leg == leg)
    if moves or lacking:
        yield Step("settle", "", f"every place answers with {pin}", pin, seconds=_POINTER_S)
    # A place that does not answer may still serve requests with any version that it had.
    is_all_there = all(place.is_reachable for place in world.places if takes(place, desired))
    old = list(_old(pin, desired.shards, world, options)) if kind == "release" and is_all_there else []
    if moves or lacking or old or world.live != pin:
        yield Step("tag", "", "what is live, and what to go back to, stays in the hub", pin, undo="tags back")
    yield from old


def _old(pin: str, shards: Shards, world: ReleaseWorld, options: Options) -> Iterator[Step]:
    older = [life for life in world.lives if life.pin != pin][: options.retain]
    reason = f"no longer needed to go back {options.retain}"
    kept = {pin, world.live, *(life.pin for life in older)}
    idle = [place for place in world.places if is_idle(place, world.shards, [shards, *(life.shards for life in older)])]
    if not _read(world) <= kept:
        idle = []  # a replica that lags may read that layout until it has moved
    yield from (
        Step("sparse.idle", place.name, "no version that is kept reads this layout", shares={}, seconds=_POINTER_S)
        for place in idle
        if place.active
    )
    for leg in _UNLOADS:
        yield from _unload(world, leg, "unload", reason, kept=kept, idle=idle)
    if idle:
        yield Step("retire", "", "servers of a layout that holds nothing any more end", seconds=_POINTER_S)


def _fetch(desired: Version, ship_bytes: int) -> Step:
    missing = desired.missing_bytes
    reason = ("bring what is missing from the hub, " if missing else "") + "verify the bundle, keep it from collection"
    return Step("fetch", "", reason, desired.pin, size_bytes=missing, seconds=ship_bytes / 1e9 + missing / _BYTES_PER_S)


def _verify(place: Observed, pin: str) -> Step:
    return Step(stage_of(place.leg, "verify"), place.name, "rows, checksum and probes", pin, seconds=_VERIFY_S)


def _activate(place: Observed, pin: str, live: str) -> Step:
    stage, reason = stage_of(place.leg, "activate"), f"{_MOVES[place.leg]} → {pin}"
    back = f"answer with {live} again" if live else ""
    return Step(stage, place.name, reason, pin, {pin: 1.0}, seconds=_POINTER_S, undo=back)


def _load(place: Observed, pin: str, world: ReleaseWorld) -> Step:
    cost = world.estimates.get(place.name, Estimate())
    return Step(
        stage_of(place.leg, "load"),
        place.name,
        f"load {pin} beside what answers now",
        pin,
        size_bytes=cost.ship_bytes,
        seconds=cost.seconds or cost.ship_bytes / _BYTES_PER_S,
        undo=f"unload {pin}",
    )


def _canary(moves: list[Observed], pin: str, live: str, options: Options) -> Iterator[Step]:
    shares = {live: 1.0 - options.canary, pin: options.canary}
    some = [place for place in moves if place.has(live)]
    for place in some:
        reason, back = f"{options.canary:.0%} of requests try {pin}", f"answer with {live} again"
        yield Step("dense.canary", place.name, reason, pin, shares, seconds=_POINTER_S, undo=back)
    if some:
        yield Step("bake", "", f"errors, latency, misses and scores against {live}", pin, seconds=options.bake_s)


def _unload(
    world: ReleaseWorld, leg: Leg, what: str, reason: str, *, kept: Collection[str], idle: Sequence[Observed] = ()
) -> Iterator[Step]:
    read = _read(world) if leg == "sparse" else ()
    for place in world.places:
        needed = [] if place in idle else [*kept, *place.active, *read]
        for pin in sorted(place.versions):
            if place.leg == leg and pin in world.known and pin not in needed:
                yield Step(stage_of(leg, what), place.name, reason, pin, seconds=_POINTER_S)


def _read(world: ReleaseWorld) -> set[str]:
    """Return the versions that serving replicas answer with now, and so read rows of."""
    return {pin for place in world.legs["dense"] for pin in place.active}
