"""The bake: a canary is watched against what is live until the time is over, somebody promotes it, or it does badly."""

from __future__ import annotations

from typing import Any

from cloudedge.errors import CloudEdgeError
from cloudedge.journal import Writer
from cloudedge.release.core._canary import add_up, breach
from cloudedge.release.core._context import ReleaseContext
from cloudedge.release.core._places import Health, Traffic
from cloudedge.release.core._steps import Plan

__all__ = ["Breach", "Paused", "bake"]

_LOOKS = 20
"""How often a bake looks, at least; and every five seconds if that is more."""
_LOOK_S = 5.0


class Breach(Exception):
    """The canary did badly, or somebody asked to take it back."""


class Paused(Exception):
    """The canary did badly and shall stay as it is until somebody decides."""


def bake(ground: ReleaseContext, writer: Writer, number: int, plan: Plan) -> dict[str, Any]:
    """Watch a canary.

    Returns:
        What was seen.

    Raises:
        Breach: it did badly, or somebody asked to abort.
        Paused: it did badly, and the plan says to pause then.
    """
    live, canary, limits = plan.live, plan.pin, plan.options.limits
    watched = _watched_before(ground, number)
    seen: list[Health] = []
    _look(ground)  # what was counted before the canary began says nothing of it
    while True:
        for wish in ground.journal.wishes(number):
            if wish.what == "abort":
                raise Breach(f"{wish.by} asked for it")
            if wish.what == "promote":
                return {"watched_s": watched, "promoted_by": wish.by}
        if watched >= plan.options.bake_s:
            break
        pause = min(max(plan.options.bake_s / _LOOKS, 0.05), _LOOK_S, plan.options.bake_s - watched)
        ground.clock.sleep(pause)
        watched += pause
        seen = [Health(add_up([*seen, *_look(ground)]))]
        traffic = seen[0].traffic
        bad = breach(traffic.get(live, Traffic()), traffic.get(canary, Traffic()), limits)
        if bad and plan.options.on_breach == "pause":
            raise Paused(bad)
        if bad:
            raise Breach(f"the canary did badly: {bad}")
        writer.record(number, "bake", "note", watched_s=round(watched, 3))
    total = seen[0].traffic if seen else {}
    counts = {pin: total.get(pin, Traffic()).requests for pin in (live, canary)}
    return {"watched_s": watched, "requests": counts}


def _watched_before(ground: ReleaseContext, number: int) -> float:
    """Return how long an interrupted bake had gone well; one that was paused for doing badly begins anew."""
    watched = 0.0
    for entry in ground.journal.entries(number):
        if entry.step == "bake":
            watched = float(entry.detail.get("watched_s", 0.0)) if entry.what == "note" else watched
            watched = 0.0 if entry.what == "failed" else watched
    return watched


def _look(ground: ReleaseContext) -> list[Health]:
    seen: list[Health] = []
    for place in ground.places.values():
        if place.leg == "dense":
            try:
                seen.append(place.watch())
            except CloudEdgeError:
                continue  # it is away and serves nobody; the gate and settle look after that
    return seen
