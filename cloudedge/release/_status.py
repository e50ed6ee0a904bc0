"""What a target answers with right now, place by place, and what was live when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal

from cloudedge.journal import Operation, What
from cloudedge.release._ground import Ground
from cloudedge.release._places import Observed, Shares
from cloudedge.release._plan import same_shares
from cloudedge.release._steps import Life

__all__ = ["PlaceStatus", "Record", "Status", "record", "status"]


@dataclass(frozen=True)
class PlaceStatus:
    """One place, now."""

    name: str
    leg: str
    state: Literal["current", "behind", "canary", "empty", "away"]
    answers: Shares
    """The versions unpinned requests get, with their shares."""
    since: str
    """When this cloudedge last moved its pointer; empty if it never did."""
    versions: Mapping[str, str]
    """State of every loaded version, by pin."""
    memory_bytes: int
    memory_free_bytes: int | None
    error: str = ""


@dataclass(frozen=True)
class Status:
    """A target, now."""

    target: str
    live: Life | None
    unfinished: str
    """What somebody has to finish or undo; empty if nothing is."""
    places: tuple[PlaceStatus, ...]

    @property
    def lagging(self) -> tuple[str, ...]:
        """Places that do not answer with what is live."""
        return tuple(place.name for place in self.places if place.state != "current")

    @property
    def is_skewed(self) -> bool:
        """Whether places of one leg answer with different versions."""
        legs: dict[str, set[tuple[str, ...]]] = {}
        for place in self.places:
            if place.state != "away":
                legs.setdefault(place.leg, set()).add(tuple(sorted(place.answers)))
        return any(len(versions) > 1 for versions in legs.values())

    @property
    def is_whole(self) -> bool:
        """Whether every place answers with what is live and nothing is left to do."""
        return self.live is not None and not self.unfinished and not self.lagging

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self) | {"lagging": self.lagging, "is_skewed": self.is_skewed, "is_whole": self.is_whole}


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

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


def status(ground: Ground) -> Status:
    """Ask every place and say how it stands."""
    lives = ground.lives()
    live = lives[0] if lives else None
    unfinished = ground.journal.unfinished()
    words = f"{unfinished.kind} {unfinished.number} ({unfinished.state})" if unfinished else ""
    return Status(ground.name, live, words, tuple(_place(ground, place, live) for place in ground.observe()))


def _place(ground: Ground, place: Observed, live: Life | None) -> PlaceStatus:
    steps = [f"{place.leg}.{how}:{place.name}" for how in ("switch", "canary")]
    words: tuple[What, ...] = ("done", "undone")
    moves = [entry for what in words if (entry := ground.journal.newest(steps, what))]
    return PlaceStatus(
        name=place.name,
        leg=place.leg,
        state=_state(place, live),
        answers=dict(place.active),
        since=max(moves, key=lambda entry: entry.id).at if moves else "",
        versions={pin: loaded.state for pin, loaded in place.versions.items()},
        memory_bytes=sum(loaded.memory_bytes for loaded in place.versions.values()),
        memory_free_bytes=place.memory_free_bytes,
        error=place.error,
    )


def _state(place: Observed, live: Life | None) -> Literal["current", "behind", "canary", "empty", "away"]:
    if not place.is_reachable:
        return "away"
    if not place.active:
        return "empty"
    if live is not None and same_shares(place.active, {live.pin: 1.0}):
        return "current"
    return "canary" if live is not None and live.pin in place.active else "behind"


def record(operation: Operation) -> Record:
    """Tell an operation in one line."""
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
    )


def _seconds(operation: Operation) -> float:
    """Return how long it took by the wall clock, which somebody may have set back in between."""
    if not operation.ended_at:
        return 0.0
    begun, ended = (
        datetime.fromisoformat(at.replace("Z", "+00:00")) for at in (operation.begun_at, operation.ended_at)
    )
    return max((ended - begun).total_seconds(), 0.0)
