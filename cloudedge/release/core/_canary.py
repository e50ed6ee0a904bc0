"""The canary: a share of requests tries the new version, which is compared with the live one while it does.

`watch_canary` looks at every serving replica until the time is over, an operator promotes the canary or aborts, or the
canary breaks a limit. `breach` decides that, from traffic alone. An interrupted watch continues after a resume with the
time that is left; one that stopped at a breach begins anew.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from cloudedge.errors import CloudEdgeError
from cloudedge.journal import Writer
from cloudedge.release.core._context import ReleaseContext
from cloudedge.release.core._places import Health, Traffic
from cloudedge.release.core._steps import Limits, Plan

__all__ = ["Breach", "Paused", "add_up", "breach", "watch_canary"]

_LOOKS = 20
_LOOK_S = 5.0
"""A watch looks at least `_LOOKS` times, and at least every `_LOOK_S` seconds."""
_BEYOND = 0.01
"""The share of requests beyond the 99th percentile."""
_BY_CHANCE = 4.0
"""Standard errors. A watch looks up to hundreds of times, and a stall of the machine hits one of the two by chance."""


class Breach(Exception):
    """The canary broke a limit, or an operator asked to take it back."""


class Paused(Exception):
    """The canary broke a limit and stays as it is until an operator decides."""


def watch_canary(context: ReleaseContext, writer: Writer, number: int, plan: Plan) -> dict[str, Any]:
    """Compare a canary with what is live until the plan's time is over.

    Returns:
        What was seen, for the journal.

    Raises:
        Breach: it broke a limit, or an operator asked to abort.
        Paused: it broke a limit, and the plan pauses then.
    """
    live, canary, options = plan.live, plan.pin, plan.options
    watched = _watched_before(context, number)
    seen: list[Health] = []
    _look(context)  # counts from before the canary began say nothing about it
    while True:
        for wish in context.journal.wishes(number):
            if wish.what == "abort":
                raise Breach(f"{wish.by} asked for it")
            if wish.what == "promote":
                return {"watched_s": watched, "promoted_by": wish.by}
        if watched >= options.bake_s:
            break
        pause = min(max(options.bake_s / _LOOKS, 0.05), _LOOK_S, options.bake_s - watched)
        context.clock.sleep(pause)
        watched += pause
        seen = [Health(add_up([*seen, *_look(context)]))]
        traffic = seen[0].traffic
        bad = breach(traffic.get(live, Traffic()), traffic.get(canary, Traffic()), options.limits)
        if bad and options.on_breach == "pause":
            raise Paused(bad)
        if bad:
            raise Breach(f"the canary did badly: {bad}")
        writer.record(number, "bake", "note", watched_s=round(watched, 3))
    total = seen[0].traffic if seen else {}
    counts = {pin: total.get(pin, Traffic()).requests for pin in (live, canary)}
    return {"watched_s": watched, "requests": counts}


def _watched_before(context: ReleaseContext, number: int) -> float:
    """Return how long an interrupted watch had gone well; one that stopped at a breach begins anew."""
    watched = 0.0
    for entry in context.journal.entries(number):
        if entry.step == "bake":
            watched = float(entry.detail.get("watched_s", 0.0)) if entry.what == "note" else watched
            watched = 0.0 if entry.what == "failed" else watched
    return watched


def _look(context: ReleaseContext) -> list[Health]:
    seen: list[Health] = []
    for place in context.places.values():
        if place.leg == "dense":
            try:
                seen.append(place.watch())
            except CloudEdgeError:
                continue  # it does not answer, so it serves no requests; `gate` and `settle` notice that
    return seen


def add_up(reports: Iterable[Health]) -> dict[str, Traffic]:
    """Add the traffic of several places, or of several looks, by pin.

    Where a place does not count latencies, the worst percentile stands for all.
    """
    total: dict[str, Traffic] = {}
    for report in reports:
        for pin, more in report.traffic.items():
            so_far = total.get(pin, Traffic())
            total[pin] = Traffic(
                requests=so_far.requests + more.requests,
                errors=so_far.errors + more.errors,
                latency_p50_ms=max(so_far.latency_p50_ms, more.latency_p50_ms),
                latency_p99_ms=max(so_far.latency_p99_ms, more.latency_p99_ms),
                lookups=so_far.lookups + more.lookups,
                misses=so_far.misses + more.misses,
                scores=so_far.scores + more.scores,
                score_sum=so_far.score_sum + more.score_sum,
                score_squares=so_far.score_squares + more.score_squares,
                latencies={
                    upper: so_far.latencies.get(upper, 0) + more.latencies.get(upper, 0)
                    for upper in {*so_far.latencies, *more.latencies}
                },
            )
    return total


def breach(live: Traffic, canary: Traffic, limits: Limits) -> str:
    """Name the limit that a canary breaks; empty if it breaks none, or if there were too few requests to tell. Pure."""
    if canary.requests < limits.min_requests:
        return ""
    errors, usual = canary.errors / canary.requests, live.errors / max(live.requests, 1)
    if errors > usual + limits.error_rate:
        return f"{errors:.1%} of requests fail, {usual:.1%} with what is live"
    return _worse(live, canary, limits) if live.requests >= limits.min_requests else ""


def _worse(live: Traffic, canary: Traffic, limits: Limits) -> str:
    if _is_slower(live, canary, limits):
        return f"a 99th percentile of {canary.latency_p99_ms:.1f} ms, {live.latency_p99_ms:.1f} ms with what is live"
    misses, normal = canary.misses / max(canary.lookups, 1), live.misses / max(live.lookups, 1)
    if misses > normal + limits.miss_rate:
        return f"{misses:.1%} of rows are missing, {normal:.1%} with what is live"
    if min(live.scores, canary.scores) >= limits.min_requests:
        (mean, deviation), (moved, spread) = _moments(live), _moments(canary)
        # The mean of a few answers is wherever chance puts it.
        by_chance = _BY_CHANCE * math.hypot(deviation / math.sqrt(live.scores), spread / math.sqrt(canary.scores))
        if abs(moved - mean) > limits.score_drift * deviation + by_chance:
            return f"a mean score of {moved:.4g}, {mean:.4g} ± {deviation:.4g} with what is live"
    return ""


def _is_slower(live: Traffic, canary: Traffic, limits: Limits) -> bool:
    """Tell whether the 99th percentile is beyond its limit, and not by chance.

    One request in a hundred decides it, so a few requests prove nothing: of fewer than a hundred it is the slowest.
    """
    allowed = live.latency_p99_ms * limits.latency_factor + limits.latency_slack_ms
    if min(live.requests, canary.requests) < limits.latency_requests or canary.latency_p99_ms <= allowed:
        return False
    if not live.latencies or not canary.latencies:
        return True
    ours, theirs = sum(canary.latencies.values()), sum(live.latencies.values())
    slow, usual = canary.slower_than(allowed), live.slower_than(allowed)
    share = (slow + usual) / (ours + theirs)
    if slow <= _BEYOND * ours:
        return False
    return slow / ours - usual / theirs > _BY_CHANCE * math.sqrt(share * (1 - share) * (1 / ours + 1 / theirs))


def _moments(traffic: Traffic) -> tuple[float, float]:
    mean = traffic.score_sum / traffic.scores
    return mean, math.sqrt(max(traffic.score_squares / traffic.scores - mean * mean, 0.0))
