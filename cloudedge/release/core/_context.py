"""The context of a release: places, journal, source of bundles, clock and operator."""

from __future__ import annotations

import warnings
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
from cloudedge.release.core._renamed_verbs import adopt_old_verbs
from cloudedge.release.core._steps import Life
from cloudedge.release.core._table_layouts import FixedLayout, Layouts, Shards, at_home, takes
from cloudedge.release.core._version import Version

__all__ = ["BundleSource", "ReleaseContext", "Runner"]

_LOOKS = 3
_LOOK_AGAIN_S, _LOOK_SELDOM_S = 0.3, 5.0

Runner = Callable[[Sequence[Callable[[], None]], int], None]
"""Runs calls in parallel, at most so many at once, and returns when all have ended."""


class BundleSource(Protocol):
    """The source of versions, and the tags that keep some of them from collection."""

    def version(self, ref: str) -> Version:
        """Return a version's facts, wherever its bytes are; fetches nothing.

        Raises:
            NotFound: no hub has it.
        """
        ...

    def fetch(self, version: Version) -> int:
        """Fetch the missing bytes of a version, where `version` then finds them; return how many there were.

        Raises:
            Interrupted: it stopped on the way; the next fetch continues there.
        """
        ...

    def verify(self, version: Version) -> None:
        """Check every byte.

        Raises:
            IntegrityError: something is missing or damaged.
        """
        ...

    def mark(self, roles: Mapping[str, str | None]) -> str | None:
        """Tag the bundles that play a role on this target (`live`, `previous`, `next`); None removes a tag.

        Returns:
            Why another hub missed it; None if none did. The caller repeats it later.

        Raises:
            NotFound: no hub has it.
        """
        ...


@dataclass
class ReleaseContext:
    """Everything that plans and releases of one target use."""

    name: str
    places: dict[str, Place]
    journal: Journal
    bundles: BundleSource
    clock: Clock = field(default_factory=SystemClock)
    runner: Runner = in_threads
    by: str = "unknown"
    jobs: int = 16
    layouts: Layouts = field(default_factory=FixedLayout)
    tell: Callable[[str], None] = lambda _: None
    """Called with a sentence for the operator when a release begins to wait."""
    _waits_for: str = field(default="", init=False, repr=False)

    def __post_init__(self) -> None:
        for place in self.places.values():
            adopt_old_verbs(place)

    @property
    def shelf(self) -> BundleSource:
        """The old name of `bundles`."""
        warnings.warn("ReleaseContext.shelf is now ReleaseContext.bundles", DeprecationWarning, stacklevel=2)
        return self.bundles

    def observe(self) -> list[Observed]:
        """Ask every place; one that does not answer is listed with its error."""
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
        """Wait before the next look, longer from round to round; tell the operator once what for."""
        if what != self._waits_for:
            self._waits_for = what
            self.tell(what)
        self.clock.sleep(Backoff(_LOOK_AGAIN_S, _LOOK_SELDOM_S, 0.5, 1.5).pause_s(round_ + 1, self.clock))

    def lives(self) -> tuple[Life, ...]:
        """Return what is live and what was, the newest first."""
        return tuple(Life(**life) for life in self.journal.recall("lives") or ())

    def look(self, ref: str, shards: Shards | None = None) -> tuple[Version, ReleaseWorld]:
        """Collect everything that a plan for a version is made from.

        Args:
            ref: The version.
            shards: How its tables are cut, where an earlier plan decided that.

        Returns:
            The version, in the layout it lives in or would live in, and the target as it is.
        """
        # In this order, a release in between changes what the plan calls live, and the plan is refused.
        lives, observed = self.lives(), self.observe()
        found = self.bundles.version(ref)
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
                return  # without an estimate, no rule judges the place's room

        lacking = [p for p in observed if p.is_reachable and takes(p, desired) and not p.has(desired.pin)]
        self.runner([partial(ask, place) for place in lacking], self.jobs)
        was, doubt = self._was(lives, desired), self.doubt(observed)
        return desired, ReleaseWorld(
            self.name, observed, estimates, lives, self.known(), was, self.layouts.now(), doubt=doubt
        )

    def doubt(self, observed: Sequence[Observed]) -> str:
        """Return why the journal cannot be believed; empty if it can.

        An entry is written before its id goes to a place as an order. So a place that has seen a higher one got it from
        another journal, or this one is an old copy.
        """
        if self.journal.doubt:
            return f"the journal was repaired, and this is missing: {self.journal.doubt}"
        ahead = max(observed, key=lambda place: place.order, default=None)
        order = self.journal.order
        if ahead is None or ahead.order <= order:
            return ""
        seen = f"{ahead.name} has obeyed {ahead.order}"
        return f"the journal ends at order {order}, and {seen}: the journal was lost, or is an old copy"

    def mark(self, roles: Mapping[str, str | None], writer: Writer) -> str | None:
        """Set tags, also those that a hub missed before; remember in the journal which ones it misses now.

        Returns:
            Why a hub missed some; None if none did.

        Raises:
            NotFound: no hub has it.
        """
        before: dict[str, str | None] = self.journal.recall("untold") or {}
        missed: dict[str, str | None] = {}
        why: str | None = None
        for role, ref in ({role: ref for role, ref in before.items() if role not in roles} | dict(roles)).items():
            try:
                problem = self.bundles.mark({role: ref})
            except NotFound:
                if role in roles:
                    raise
                continue  # that bundle is gone by now
            if problem is not None:
                missed[role], why = ref, problem
        if missed != before:
            writer.remember("untold", missed)
        return why

    def retire(self) -> None:
        """End places that hold nothing and that no version will use."""
        for name in self.layouts.retire():
            self.places.pop(name, None)

    def known(self) -> Collection[str]:
        """Return the pins of every version that this target was ever asked to take."""
        return frozenset(self.journal.recall("known") or ())

    def _was(self, lives: Sequence[Life], desired: Version) -> Version | None:
        if not lives or lives[0].pin == desired.pin:
            return None
        try:
            return self.bundles.version(lives[0].ref)
        except CloudEdgeError:
            return None  # the places still report the signature that clients use


def _away(place: Place, error: str) -> Observed:
    if isinstance(place, Part):
        return Observed(place.name, place.leg, table=place.table, shard=place.shard, shards=place.shards, error=error)
    return Observed(place.name, place.leg, error=error)
