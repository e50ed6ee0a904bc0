"""Whether a canary does worse than what is live. Pure: traffic in, a reason or none out."""

from __future__ import annotations

import math
from collections.abc import Iterable

from cloudedge.release.core._places import Health, Traffic
from cloudedge.release.core._steps import Limits

__all__ = ["add_up", "breach"]

_BEYOND = 0.01
"""The share of requests beyond the 99th percentile."""
_BY_CHANCE = 4.0
"""Standard errors. A bake looks up to hundreds of times, and a stall of the machine hits one of the two by chance."""


def add_up(reports: Iterable[Health]) -> dict[str, Traffic]:
    """Add the traffic of several places, or of several moments, by pin.

    Where latencies are not counted, the worst percentile stands for all.
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
    """Say in what a canary does worse than allowed; empty if it does not, or if too little was seen to tell."""
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
        # Of a few answers the mean is wherever chance puts it.
        by_chance = _BY_CHANCE * math.hypot(deviation / math.sqrt(live.scores), spread / math.sqrt(canary.scores))
        if abs(moved - mean) > limits.score_drift * deviation + by_chance:
            return f"a mean score of {moved:.4g}, {mean:.4g} ± {deviation:.4g} with what is live"
    return ""


def _is_slower(live: Traffic, canary: Traffic, limits: Limits) -> bool:
    """Tell whether the 99th percentile is beyond what is allowed, and not by chance.

    It is a matter of one request in a hundred, so a few say nothing: of fewer than a hundred it is the slowest one.
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
