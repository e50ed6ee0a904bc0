"""Adoption: what a journal has to say about places that it knows nothing of, or that went on without it.

`adopt` is pure: observed places, the versions they hold and the hub's tags in, the contents of a journal out. Nothing
at a place changes. If places answer with different versions, a release was under way when the journal was lost: then
the version that the hub's tags call live is live, and a resume brings the other places to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, runtime_checkable

from cloudedge.release.core._places import Observed
from cloudedge.release.core._steps import Life, Refusal
from cloudedge.release.core._table_layouts import Shards
from cloudedge.release.core._version import Version

__all__ = ["Adoption", "BundleFinder", "adopt"]

_AHEAD = 1_000_000
"""A place that does not answer may have obeyed a higher order than all others, but not by this much."""


@runtime_checkable
class BundleFinder(Protocol):
    """A `BundleSource` that can also name the bundles which a target uses; an adoption needs one."""

    def find(self, pin: str) -> Version | None:
        """Return the version that has a pin; None if no hub knows it."""
        ...

    def marked(self) -> Mapping[str, str]:
        """Return by role (`live`, `previous`, `next`, ...) the bundle that has this target's tag."""
        ...


@dataclass(frozen=True)
class Adoption:
    """The contents of a journal, as the places and the hub's tags tell them."""

    target: str
    lives: tuple[Life, ...] = ()
    """What is live and what was, the newest first; empty: nothing is live."""
    known: tuple[str, ...] = ()
    """Pins that later releases may unload."""
    retained: int = 1
    """The number of versions before the live one that tags keep."""
    behind: tuple[str, ...] = ()
    """Bundles that tags keep for places which did not answer."""
    order: int = 0
    """Orders continue above this one."""
    changes: tuple[str, ...] = ()
    """The differences from the journal as it is; empty: it agrees with the places."""
    notes: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()

    def summary(self) -> str:
        """Return the adoption as text that an operator reads before agreeing."""
        if self.refusals:
            return "\n".join([f"{self.target} cannot be adopted:", *(f"  {each}" for each in self.refusals)])
        live = f"{self.lives[0].title} ({self.lives[0].pin})" if self.lives else "nothing"
        lines = [f"{self.target}: {live} is live"]
        lines += [f"  before it: {life.title} ({life.pin})" for life in self.lives[1:]]
        lines += [f"  change: {change}" for change in self.changes] or ["  the journal agrees with the places"]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


@dataclass(frozen=True)
class Recorded:
    """The part of a journal that an adoption is compared with."""

    lives: tuple[Life, ...] = ()
    order: int = 0
    doubt: str = ""


def adopt(
    target: str,
    places: Sequence[Observed],
    found: Mapping[str, Version],
    marked: Mapping[str, Version],
    recorded: Recorded,
    *,
    now: Shards | None = None,
    live: str = "",
) -> Adoption:
    """Conclude what the journal of a target has to contain.

    Args:
        target: Its name.
        places: Its places as they are.
        found: By pin: the versions at the places that a hub knows.
        marked: By role: the versions that have the target's tags.
        recorded: The journal as it is.
        now: By table: the number of shards from now on.
        live: The pin that is live, where the operator decides.
    """
    there = [place for place in places if place.is_reachable]
    if not there:
        whys = "; ".join(f"{place.name}: {place.error}" for place in places) or "it has none"
        return _refused(target, "unreachable", f"no place answers: {whys}", "Start them with `cloudedge up`.")
    answering = _answering(there, now or {})
    pin = live or _live(answering, marked, recorded)
    if pin is None:
        names = ", ".join(sorted(answering))
        return _refused(
            target,
            "ambiguous",
            f"places answer with {names}, and no tag of the hub names one of them as live",
            "Decide with `--live PIN`; `cloudedge resume` then brings every place to it.",
        )
    if pin and pin not in found:
        return _refused(
            target,
            "unknown",
            f"no hub knows the version {pin}, which {'places answer with' if pin in answering else 'you named'}",
            "Pull or pack its bundle again; its digest begins with that pin.",
        )
    lives: dict[str, Life] = {}
    if pin:  # first by the tags, then by the journal as it is, then what every place still holds
        held = [version for other, version in sorted(found.items()) if _is_held(other, there)]
        named = [_life(version, there, now or {}) for version in (found[pin], *_tagged(marked))]
        rest = [_life(version, there, now or {}) for version in held]
        for life in (*named, *recorded.lives, *rest):
            lives.setdefault(life.pin, life)
    highest = max([recorded.order, *(place.order for place in there)])
    changes = tuple(_changes(tuple(lives.values()), recorded, highest))
    return Adoption(
        target=target,
        lives=tuple(lives.values()),
        known=tuple(sorted({*found, *lives})),
        retained=max(1, sum(role.startswith("previous") for role in marked)),
        behind=tuple(marked[role].ref for role in sorted(marked) if role.startswith("behind-")),
        order=highest + _AHEAD if changes else recorded.order,
        changes=changes,
        notes=tuple(_notes(pin, places, found, answering)),
    )


def _refused(target: str, rule: str, what: str, hint: str) -> Adoption:
    return Adoption(target, refusals=(Refusal(rule, what, hint),))


def _answering(there: Sequence[Observed], now: Shards) -> dict[str, list[str]]:
    """Return by pin the places that answer with it; shards of an earlier layout have no say where others have one."""
    found: dict[str, list[str]] = {}
    current = {place.table for place in there if place.leg == "sparse" and now.get(place.table) == place.shards}
    for place in there:
        if place.leg == "sparse" and place.table in current and now.get(place.table) != place.shards:
            continue
        for pin in place.active:
            found.setdefault(pin, []).append(place.name)
    return found


def _live(answering: Mapping[str, list[str]], marked: Mapping[str, Version], recorded: Recorded) -> str | None:
    """Return the live pin; empty: nothing is live. None: nothing decides it."""
    if len(answering) <= 1:
        return next(iter(answering), "")
    if "live" in marked and marked["live"].pin in answering:
        return marked["live"].pin
    return next((life.pin for life in recorded.lives[:1] if life.pin in answering), None)


def _tagged(marked: Mapping[str, Version]) -> list[Version]:
    """Return what the tags call live and what they keep to go back to, the newest first."""
    roles = ["live", "previous", *sorted((role for role in marked if role.startswith("previous-")), key=_number)]
    return [marked[role] for role in roles if role in marked]


def _life(version: Version, there: Sequence[Observed], now: Shards) -> Life:
    return Life(version.pin, version.ref, str(version), _shards(version, there, now))


def _number(role: str) -> int:
    number = role.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


def _is_held(pin: str, there: Sequence[Observed]) -> bool:
    """Tell whether every serving replica and fleet holds a version, and at least one replica of each shard."""
    others = [place for place in there if place.leg != "sparse"]
    rows = [place for place in there if place.has(pin) and place.leg == "sparse"]
    is_somewhere = bool(others) or bool(rows)
    return is_somewhere and all(place.has(pin) for place in others)


def _shards(version: Version, there: Sequence[Observed], now: Shards) -> Shards:
    """Return the layout that places hold a version in, by table."""
    shards = dict(version.shards)
    for table, count in version.shards.items():
        cuts = {place.shards for place in there if place.leg == "sparse" and place.table == table}
        whole = [cut for cut in cuts if _holds_every_shard(version.pin, table, cut, there)]
        if whole and count not in whole:
            shards[table] = now[table] if now.get(table) in whole else max(whole)
    return shards


def _holds_every_shard(pin: str, table: str, cut: int, there: Sequence[Observed]) -> bool:
    held = {place.shard for place in there if (place.table, place.shards) == (table, cut) and place.has(pin)}
    return held == set(range(cut))


def _changes(lives: tuple[Life, ...], recorded: Recorded, highest: int) -> Iterator[str]:
    before = recorded.lives[0].title if recorded.lives else "nothing"
    if [life.pin for life in lives[:1]] != [life.pin for life in recorded.lives[:1]]:
        yield f"{lives[0].title if lives else 'nothing'} is live, and not {before}"
    elif [life.pin for life in lives] != [life.pin for life in recorded.lives]:
        yield "the versions to go back to"
    if highest > recorded.order:
        yield f"orders continue above {highest}, and not above {recorded.order}"
    if recorded.doubt:
        yield f"the doubt ends: {recorded.doubt}"


def _notes(
    pin: str, places: Sequence[Observed], found: Mapping[str, Version], answering: Mapping[str, list[str]]
) -> Iterator[str]:
    for place in places:
        if not place.is_reachable:
            yield f"{place.name} does not answer: {place.error}"
    for other, names in answering.items():
        if other != pin:
            yield f"{', '.join(names)}: answering with {other}; `cloudedge resume` brings every place to what is live"
    strange = {each for place in places for each in place.versions} - set(found)
    for each in sorted(strange):
        yield f"no hub knows the version {each}, which places hold; releases leave it loaded"
