"""What a release stands on: the places, the journal, the shelf of bundles, the clock, and who does it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from cloudedge.clock import Clock, SystemClock
from cloudedge.errors import CloudEdgeError, NotFound
from cloudedge.io import Backoff, in_threads, retry
from cloudedge.journal import Journal, Writer
from cloudedge.release.core._places import Estimate, Observed, Part, Place
from cloudedge.release.core._plan import ReleaseWorld
from cloudedge.release.core._steps import Life
from cloudedge.release.core._table_layouts import FixedLayout, Layouts, Shards, at_home, takes
from cloudedge.release.core._version import Version

__all__ = ["BundleSource", "ReleaseContext", "Runner"]

_LOOKS = 3
_LOOK_AGAIN_S, _LOOK_SELDOM_S = 0.3, 5.0

Runner = Callable[[Sequence[Callable[[], None]], int], None]
"""Runs calls side by side, at most so many at once, and returns when all have ended."""


class BundleSource(Protocol):
    """Where versions come from, and what says which of them must be kept."""

    def version(self, ref: str) -> Version:
        """Look at a version, wherever it is; brings nothing here.

        Raises:
            NotFound: it is nowhere.
        """
        ...

    def fetch(self, version: Version) -> int:
        """Bring what is missing of a version here, where `version` then finds its bytes; return how much that was.

        Raises:
            Interrupted: it stopped on the way; fetching again goes on there.
        """
        ...

    def verify(self, version: Version) -> None:
        """Check every byte.

        Raises:
            IntegrityError: something is missing or damaged.
        """
        ...

    def mark(self, roles: Mapping[str, str | None]) -> str | None:
        """Keep what plays a role on this target (`live`, `previous`, `next`) from collection; None: nothing does.

        Returns:
            Why somebody else who should know could not be told; None: all know. That is told again later.

        Raises:
            NotFound: it is nowhere.
        """
        ...


@dataclass
class ReleaseContext:
    """Everything that plans and releases of one target work with."""

    name: str
    places: dict[str, Place]
    journal: Journal
    shelf: BundleSource
    clock: Clock = field(default_factory=SystemClock)
    runner: Runner = in_threads
    by: str = "somebody"
    jobs: int = 16
    layouts: Layouts = field(default_factory=FixedLayout)
    tell: Callable[[str], None] = lambda _: None
    """Told, in words for people, what is waited for."""
    _waits_for: str = field(default="", init=False, repr=False)

    def observe(self) -> list[Observed]:
        """Ask every place; one that does not answer is there with its error."""
        found: dict[str, Observed] = {}

        def ask(place: Place) -> None:
            try:
                found[place.name] = retry(
                    place.observe,
                    attempts=_LOOKS,
                    backoff=Backoff(_LOOK_AGAIN_S, _LOOK_AGAIN_S, 0.5, 1.5),
                    clock=self.clock,
                    may_repeat=lambda error: isinstance(error, CloudEdgeError) and error.retry_helps,
                )
            except CloudEdgeError as error:
                found[place.name] = _away(place, error.message)

        self.runner([partial(ask, place) for place in self.places.values()], self.jobs)
        return [found[name] for name in self.places]

    def pause(self, round_: int, what: str) -> None:
        """Wait a moment before looking again, longer from time to time; say what for, once."""
        if what != self._waits_for:
            self._waits_for = what
            self.tell(what)
        self.clock.sleep(Backoff(_LOOK_AGAIN_S, _LOOK_SELDOM_S, 0.5, 1.5).pause_s(round_ + 1, self.clock))

    def lives(self) -> tuple[Life, ...]:
        """Return what is live and what was, the newest first."""
        return tuple(Life(**life) for life in self.journal.recall("lives") or ())

    def look(self, ref: str, shards: Shards | None = None) -> tuple[Version, ReleaseWorld]:
        """Look at everything a plan for a version is made from.

        Args:
            ref: The version.
            shards: How its tables are cut, where that was decided before.

        Returns:
            The version, in the layout it lives in or would live in, and what is there.
        """
        # In this order: who was here meanwhile then changed what the plan says was live, and the plan is refused.
        lives, observed = self.lives(), self.observe()
        found = self.shelf.version(ref)
        desired = found.cut(shards) if shards else at_home(found, lives, observed)
        estimates: dict[str, Estimate] = {}
        has_shards = any(place.leg == "sparse" for place in observed)  # else serving replicas hold the rows

        def ask(place: Observed) -> None:
            try:
                found = self.places[place.name].estimate(desired)
                if place.leg == "dense" and not has_shards:
                    found = replace(found, memory_bytes=found.memory_bytes + desired.merged_bytes)
                estimates[place.name] = found
            except CloudEdgeError:
                return  # a place without an estimate is one whose room nobody knows

        lacking = [p for p in observed if p.is_reachable and takes(p, desired) and not p.has(desired.pin)]
        self.runner([partial(ask, place) for place in lacking], self.jobs)
        was = self._was(lives, desired)
        return desired, ReleaseWorld(self.name, observed, estimates, lives, self.known(), was, self.layouts.now())

    def mark(self, roles: Mapping[str, str | None], writer: Writer) -> str | None:
        """Mark what plays which role, and what somebody could not be told before; remember what still has to be.

        Returns:
            Why somebody could not be told; None: all know.

        Raises:
            NotFound: it is nowhere.
        """
        before: dict[str, str | None] = self.journal.recall("untold") or {}
        untold: dict[str, str | None] = {}
        why: str | None = None
        for role, ref in ({role: ref for role, ref in before.items() if role not in roles} | dict(roles)).items():
            try:
                not_told = self.shelf.mark({role: ref})
            except NotFound:
                if role in roles:
                    raise
                continue  # what was to be marked then is no longer there
            if not_told is not None:
                untold[role], why = ref, not_told
        if untold != before:
            writer.remember("untold", untold)
        return why

    def retire(self) -> None:
        """End places that hold nothing and that nothing will use."""
        for name in self.layouts.retire():
            self.places.pop(name, None)

    def known(self) -> Collection[str]:
        """Return the pins this target was ever asked to take."""
        return frozenset(self.journal.recall("known") or ())

    def _was(self, lives: Sequence[Life], desired: Version) -> Version | None:
        if not lives or lives[0].pin == desired.pin:
            return None
        try:
            return self.shelf.version(lives[0].ref)
        except CloudEdgeError:
            return None  # its places still say what clients use


def _away(place: Place, error: str) -> Observed:
    if isinstance(place, Part):
        return Observed(place.name, place.leg, table=place.table, shard=place.shard, shards=place.shards, error=error)
    return Observed(place.name, place.leg, error=error)
