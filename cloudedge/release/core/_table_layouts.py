"""Layouts: into how many shards each table is cut, and which version reads which cut.

A version stays in the layout it was prepared in. When a target is cut anew, the next version goes to the new shards,
what is live stays in the old ones, and both are there until nobody wants to go back any more. Pure but for `Layouts`,
which is what a kind of target has to do for that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from cloudedge.release.core._places import Observed
    from cloudedge.release.core._steps import Life
    from cloudedge.release.core._version import Version

__all__ = ["FixedLayout", "Layouts", "Shards", "at_home", "is_idle", "takes"]

Shards = Mapping[str, int]
"""By table: into how many shards it is cut."""


class Layouts(Protocol):
    """What a kind of target does whose tables can be cut anew."""

    def now(self) -> Shards:
        """Say how the target cuts its tables from now on; empty: as ever, and then no place ends."""
        ...

    def publish(self, shards: Shards) -> None:
        """Tell readers that ask for no version where the rows of what is live are; doing it twice is doing it once."""
        ...

    def retire(self) -> Collection[str]:
        """End the places of other layouts than `now` once all of a layout's hold nothing; returns their names."""
        ...


class FixedLayout:
    """A target whose tables stay cut as they are."""

    def now(self) -> Shards:
        """Nothing changes."""
        return {}

    def publish(self, shards: Shards) -> None:
        """Readers know where rows are."""

    def retire(self) -> Collection[str]:
        """Nothing ends."""
        return ()


def at_home(desired: Version, lives: Sequence[Life], places: Iterable[Observed]) -> Version:
    """Return a version in the layout it lives in: where it is live, or was and is still loaded; else as it is."""
    life = next((life for life in lives if life.pin == desired.pin), None)
    if life is None or not life.shards or life.shards == desired.shards:
        return desired
    home = [place for place in places if place.leg == "sparse" and life.shards.get(place.table) == place.shards]
    is_there = {(place.table, place.shards) for place in home}.issuperset(life.shards.items())
    is_loaded = any(desired.pin in place.versions for place in home)
    return desired.cut(life.shards) if is_there and (is_loaded or life is lives[0]) else desired


def takes(place: Observed, desired: Version) -> bool:
    """Tell whether a place has anything to hold of a version: shards of another table or another layout do not.

    Of a shard that does not answer and cannot be told from others, nobody knows; it is taken for one that has.
    """
    return place.leg != "sparse" or not place.table or desired.shards.get(place.table) == place.shards


def is_idle(place: Observed, now: Shards, kept: Iterable[Shards]) -> bool:
    """Tell whether a shard belongs to a layout that neither the target nor any version that is kept uses."""
    if place.leg != "sparse" or not place.is_reachable or not now:
        return False
    return all(shards and shards.get(place.table) != place.shards for shards in (now, *kept))
