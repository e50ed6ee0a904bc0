"""Upstream's delivery in the same simulated world: it has to break the promises that ours keeps.

Download, reload and enable go to all instances, each stage once every instance agreed to the one before, with retries
for ever. Readers ask for no version, an instance that does not answer becomes zeros, and a restart of Serving replaces
the dense part some time later. There is no way back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudedge.errors import CloudEdgeError
from cloudedge.testing._requests import Clients

if TYPE_CHECKING:
    from cloudedge.testing._simulated_places import SimPlace
    from cloudedge.testing._simulated_world import SimulatedWorld

__all__ = ["stock_delivery"]

_RETRY_S = 5.0
_TRIES = 20
"""Upstream tries for ever; a scenario has to end."""


def stock_delivery(world: SimulatedWorld, pin: str) -> None:
    """Deliver a version as upstream's transfer and agents do."""
    Clients(world, pinned=False)
    world.journal, world.explain = None, lambda: None  # it keeps no record to compare with
    world.rival_at = -1
    shards = [place for place in world.places.values() if place.leg == "sparse"]
    for stage in ("reload", "enable"):
        waiting = list(shards)
        for _ in range(_TRIES):
            world.rng.shuffle(waiting)
            waiting = [place for place in waiting if not _ask(world, place, stage, pin)]
            if not waiting:
                break
            world.now += _RETRY_S
            world.churn()
        world.now += 2 * _RETRY_S
    for replica in [place for place in world.places.values() if place.leg == "dense"]:
        _ask(world, replica, "reload", pin)
        _ask(world, replica, "enable", pin)


def _ask(world: SimulatedWorld, place: SimPlace, stage: str, pin: str) -> bool:
    def act() -> None:
        if stage == "reload":
            place.load_unverified(pin)
        else:
            place.activate_at_once(pin)

    try:
        world.call(place, f"{stage} {pin}", act, changes=True)
    except CloudEdgeError:
        return False
    return True
