"""The status of a target, place by place, and the history of what was live when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal

from cloudedge._renamed_arguments import renamed_arguments
from cloudedge.errors import CloudEdgeError
from cloudedge.journal import Operation, What
from cloudedge.release.core._context import ReleaseContext
from cloudedge.release.core._places import Group, Loaded, Member, Observed, Shares, Supervised
from cloudedge.release.core._plan import same_shares
from cloudedge.release.core._steps import Life, is_other, stage_of

__all__ = ["PlaceStatus", "Record", "Status", "history", "status"]


PlaceState = Literal["current", "behind", "canary", "empty", "spare", "away", "failed"]
"""`failed`: what is live is there and could not be loaded, mostly because its bytes are not those of its pin. `spare`:
a shard of a layout that the live version does not use, kept for a rollback or for the next release."""

_SETTLED = ("settle", "done")


@renamed_arguments(memory_free_bytes="free_memory_bytes")
@dataclass(frozen=True)
class PlaceStatus:
    """One place, now."""

    name: str
    leg: str
    state: PlaceState
    answers: Shares
    """The versions that answer unpinned requests, with their shares."""
    since: str
    """The time when this cloudedge last moved its pointer; empty if it never did."""
    versions: Mapping[str, str]
    """By pin: the state of every loaded version."""
    memory_bytes: int
    free_memory_bytes: int | None
    error: str = ""
    lag: int | None = None
    """The number of releases it is behind; None: no version answers there, or one that was never live here."""
    memory_share: float | None = None
    """The share of a member's memory that is in use, if it reports that."""
    members: tuple[PlaceStatus, ...] = ()
    """The nodes of a fleet. A release moves the place's pointer; a node that does not answer catches up later."""
    restarts: str = ""
    """The restarts of its process on this machine and the reason of the last one; empty if there were none."""


@dataclass(frozen=True)
class Status:
    """A target, now."""

    target: str
    live: Life | None
    unfinished: str
    """The operation that has to be finished or undone; empty if there is none."""
    places: tuple[PlaceStatus, ...]
    doubt: str = ""
    """Why the journal cannot be believed, and with it `live` and `unfinished`; empty: it can."""

    @property
    def lagging(self) -> tuple[str, ...]:
        """The places that do not answer with what is live."""
        return tuple(place.name for place in self.places if place.state not in ("current", "spare"))

    @property
    def is_skewed(self) -> bool:
        """True if places of one leg answer with different versions."""
        return bool(self.skew)

    @property
    def skew(self) -> Mapping[str, tuple[str, ...]]:
        """By leg whose places or nodes answer with different versions: their pins."""
        legs: dict[str, set[tuple[str, ...]]] = {}
        for place in self.places:
            for each in place.members or (place,):
                if each.state not in ("away", "spare"):
                    legs.setdefault(place.leg, set()).add(tuple(sorted(each.answers)))
        return {
            leg: tuple(sorted({pin for pins in found for pin in pins})) for leg, found in legs.items() if len(found) > 1
        }

    @property
    def is_whole(self) -> bool:
        """True if every place answers with what is live and nothing is left to do."""
        return self.live is not None and not self.unfinished and not self.lagging and not self.doubt

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self) | {
            "places": [_with_old_names(asdict(place)) for place in self.places],
            "lagging": self.lagging,
            "is_skewed": self.is_skewed,
            "skew": dict(self.skew),
            "is_whole": self.is_whole,
        }


@dataclass(frozen=True)
class Record:
    """One line of the history."""

    number: int
    kind: str
    title: str
    pin: str
    ref: str
    state: str
    by: str
    begun_at: str
    ended_at: str
    seconds: float
    bytes: int
    why: str
    live_from: str = ""
    """The time when every place answered with it; empty: that never happened, or it was live before."""
    live_until: str = ""
    """The time when another version took its place; empty: it is still live, or never was."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


def _with_old_names(place: dict[str, Any]) -> dict[str, Any]:
    """Return a place's status with its free memory under the old name too."""
    members = [_with_old_names(member) for member in place["members"]]
    return place | {"members": members, "memory_free_bytes": place["free_memory_bytes"]}


def status(context: ReleaseContext) -> Status:
    """Ask every place and sum up the target."""
    lives = context.lives()
    live = lives[0] if lives else None
    unfinished = context.journal.unfinished()
    words = f"{unfinished.kind} {unfinished.number} ({unfinished.state})" if unfinished else ""
    observed = context.observe()
    places = tuple(_place(context, place, lives) for place in observed)
    return Status(context.name, live, words, places, context.doubt(observed))


def _place(context: ReleaseContext, place: Observed, lives: Sequence[Life]) -> PlaceStatus:
    live = lives[0] if lives else None
    steps = [f"{stage_of(place.leg, how)}:{place.name}" for how in ("activate", "canary")]
    words: tuple[What, ...] = ("done", "undone")
    moves = [entry for what in words if (entry := context.journal.newest(steps, what))]
    return PlaceStatus(
        name=place.name,
        leg=place.leg,
        state=_state(place, live),
        answers=dict(place.active),
        since=max(moves, key=lambda entry: entry.id).at if moves else "",
        versions={pin: loaded.state for pin, loaded in place.versions.items()},
        memory_bytes=sum(loaded.memory_bytes for loaded in place.versions.values()),
        free_memory_bytes=place.free_memory_bytes,
        error=place.error or (_live_at(place, live).error if live else ""),
        lag=_lag(place.active, lives),
        members=tuple(_member(member, place.leg, lives) for member in _members(context, place)),
        restarts=_restarts(context, place.name),
    )


def _restarts(context: ReleaseContext, name: str) -> str:
    place = context.places[name]
    return place.restarts() if isinstance(place, Supervised) else ""


def _members(context: ReleaseContext, place: Observed) -> Sequence[Member]:
    group = context.places[place.name]
    if not isinstance(group, Group) or not place.is_reachable:
        return ()
    try:
        return group.members()
    except CloudEdgeError:
        return ()  # the place itself answered a moment ago; the next look shows its members again


def _member(member: Member, leg: str, lives: Sequence[Life]) -> PlaceStatus:
    answers = {member.pin: 1.0} if member.pin else {}
    is_current = bool(lives) and member.pin == lives[0].pin
    return PlaceStatus(
        name=member.name,
        leg=leg,
        state="away" if not member.is_there else "current" if is_current else "behind" if member.pin else "empty",
        answers=answers,
        since=member.since,
        versions={},
        memory_bytes=0,
        free_memory_bytes=None,
        error=member.error,
        lag=_lag(answers, lives),
        memory_share=member.memory_share,
    )


def _lag(answers: Shares, lives: Sequence[Life]) -> int | None:
    """Return how many releases the oldest answering version is behind what is live."""
    pins = [life.pin for life in lives]
    found = [pins.index(pin) if pin in pins else None for pin in answers]
    known = [lag for lag in found if lag is not None]
    return max(known) if known and len(known) == len(found) else None


def _live_at(place: Observed, live: Life) -> Loaded:
    return place.versions.get(live.pin) or Loaded()


def _state(place: Observed, live: Life | None) -> PlaceState:
    if not place.is_reachable:
        return "away"
    if live is None:
        return "behind" if place.active else "empty"
    if place.leg == "sparse" and live.shards.get(place.table) != place.shards:
        return "spare"  # what is live has no such table, or has it in another layout
    if live.pin not in place.active:
        has_failed = _live_at(place, live).state == "failed"
        return "failed" if has_failed else "behind" if place.active else "empty"
    if is_other(_live_at(place, live).digest, live.digest):
        return "behind"  # another bundle, whose digest begins alike
    return "current" if same_shares(place.active, {live.pin: 1.0}) else "canary"


def history(context: ReleaseContext, limit: int = -1) -> list[Record]:
    """List the operations, the newest first, with the time for which each version was live."""
    records: list[Record] = []
    until = ""
    for operation in context.journal.operations(limit=limit):
        since = _went_live(context, operation)
        records.append(_record(operation, since, until if since else ""))
        until = since or until
    return records


def _went_live(context: ReleaseContext, operation: Operation) -> str:
    """Return when the version of an operation went live; empty if it did not, or was live before."""
    before = operation.plan["lives"]
    if operation.state != "done" or (before and before[0]["pin"] == operation.plan["pin"]):
        return ""
    settled = [entry.at for entry in context.journal.entries(operation.number) if (entry.step, entry.what) == _SETTLED]
    return settled[-1] if settled else operation.ended_at


def _record(operation: Operation, live_from: str, live_until: str) -> Record:
    plan, outcome = operation.plan, operation.outcome
    return Record(
        number=operation.number,
        kind=operation.kind,
        title=plan["title"],
        pin=plan["pin"],
        ref=plan["ref"],
        state=operation.state,
        by=operation.by,
        begun_at=operation.begun_at,
        ended_at=operation.ended_at,
        seconds=_seconds(operation),
        bytes=outcome.get("bytes", 0),
        why=outcome.get("why", ""),
        live_from=live_from,
        live_until=live_until,
    )


def _seconds(operation: Operation) -> float:
    """Return the duration by the wall clock, which may have been set back in between."""
    if not operation.ended_at:
        return 0.0
    begun, ended = (
        datetime.fromisoformat(at.replace("Z", "+00:00")) for at in (operation.begun_at, operation.ended_at)
    )
    return max((ended - begun).total_seconds(), 0.0)
