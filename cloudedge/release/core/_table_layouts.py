"""Layouts: the number of shards of each table, and the layout that each version reads.

A version stays in the layout it was loaded in. When a target's tables are cut anew, the next version goes to the new
shards, what is live stays in the old ones, and both exist until no rollback leads back. Pure but for `Layouts`, the
protocol of a kind of target whose tables can be cut anew.
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
"""By table: the number of its shards."""


class Layouts(Protocol):
    """A target whose tables can be cut into another number of shards."""

    def now(self) -> Shards:
        """Return how the target cuts its tables from now on; empty: it never changes, and no place ends."""
        ...

    def publish(self, shards: Shards) -> None:
        """Publish the layout of what is live for readers without a pin; running it twice equals running it once."""
        ...

    def retire(self) -> Collection[str]:
        """End the places of layouts other than `now` once all places of such a layout are empty; return their names."""
        ...


class FixedLayout:
    """A target whose layout never changes."""

    def now(self) -> Shards:
        """Return nothing: the layout never changes."""
        return {}

    def publish(self, shards: Shards) -> None:
        """Do nothing: readers know where rows are."""

    def retire(self) -> Collection[str]:
        """Return nothing: no place ends."""
        return ()


def at_home(desired: Version, lives: Sequence[Life], places: Iterable[Observed]) -> Version:
    """Return a version in the layout where it is live, or was live and is still loaded; else unchanged."""
    life = next((life for life in lives if life.pin == desired.pin), None)
    if life is None or not life.shards or life.shards == desired.shards:
        return desired
    home = [place for place in places if place.leg == "sparse" and life.shards.get(place.table) == place.shards]
    is_there = {(place.table, place.shards) for place in home}.issuperset(life.shards.items())
    is_loaded = any(desired.pin in place.versions for place in home)
    return desired.cut(life.shards) if is_there and (is_loaded or life is lives[0]) else desired


def takes(place: Observed, desired: Version) -> bool:
    """Tell whether a place has a part of a version to hold: shards of another table or another layout do not.

    A shard that neither answers nor knows its table counts as one that has.
    """
    return place.leg != "sparse" or not place.table or desired.shards.get(place.table) == place.shards


def is_idle(place: Observed, now: Shards, kept: Iterable[Shards]) -> bool:
    """Tell whether a shard belongs to a layout that neither the target nor any kept version uses."""
    if place.leg != "sparse" or not place.is_reachable or not now:
        return False
    return all(shards and shards.get(place.table) != place.shards for shards in (now, *kept))
