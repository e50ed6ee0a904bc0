"""Metrics: the counters and histograms of a version, and the text format that Prometheus scrapes."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Histogram", "VersionMetrics", "metric", "resident_bytes", "sample"]

LATENCY_S = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.0, 2.0, 5.0)
BATCH_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Histogram:
    """Counts of values by bucket."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """Number of values."""
        return sum(self.counts)

    def quantile(self, share: float) -> float:
        """Return the upper bound of the bucket that holds the `share` quantile."""
        wanted, seen = share * self.count, 0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            seen += count
            if seen >= wanted:
                return bound
        return float("inf")

    def buckets(self, unit: float = 1.0) -> list[tuple[float | None, int]]:
        """Return the count of each bucket with its upper bound; None is the bound of the last bucket."""
        return list(zip([*(bound * unit for bound in self.bounds), None], self.counts, strict=True))

    def lines(self, name: str, labels: str) -> Iterator[str]:
        """Write the histogram in Prometheus' text format."""
        seen = 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            seen += count
            yield sample(f"{name}_bucket", seen, f'{labels},le="{bound}"')
        yield sample(f"{name}_sum", round(self.total, 6), labels)
        yield sample(f"{name}_count", seen, labels)


class VersionMetrics:
    """The counters of one version."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.succeeded = 0
        self.failed = 0
        self.runs = 0
        self.run_s = 0.0
        self.latency = Histogram(LATENCY_S)
        self.batch_rows = Histogram(BATCH_ROWS)
        self.keys = self.missing_keys = self.defaulted_keys = 0
        self.scores = 0
        self.score_sum = self.score_squares = 0.0
        """Sums over the first output: mean and deviation show a version that drifts."""
        self.shadow_compared = self.shadow_differed = self.shadow_dropped = 0

    def count_batch(self, latencies: Iterable[float], rows: int, run_s: float) -> None:
        """Count an answered batch."""
        with self._lock:
            self.runs += 1
            self.run_s += run_s
            self.batch_rows.add(rows)
            for latency in latencies:
                self.succeeded += 1
                self.latency.add(latency)

    def count_scores(self, output: NDArray[Any]) -> None:
        """Add the floats that a batch answered to the sums."""
        if output.dtype.kind == "f":
            values = output.astype(np.float64, copy=False).reshape(-1)
            total, squares = float(values.sum()), float(values @ values)
            with self._lock:
                self.scores += values.size
                self.score_sum += total
                self.score_squares += squares

    def count_failed(self, count: int = 1) -> None:
        """Count requests that got an error."""
        with self._lock:
            self.failed += count

    def count_lookups(self, keys: int, missing: int, defaulted: int) -> None:
        """Count looked-up keys, those that are missing, and those that got a default."""
        with self._lock:
            self.keys += keys
            self.missing_keys += missing
            self.defaulted_keys += defaulted

    def count_shadow(self, *, differed: bool | None) -> None:
        """Count a mirrored request; None: it was dropped."""
        with self._lock:
            if differed is None:
                self.shadow_dropped += 1
            else:
                self.shadow_compared += 1
                self.shadow_differed += differed


def metric(name: str, kind: str, text: str) -> Iterator[str]:
    """Write the header of a metric."""
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"


def sample(name: str, value: float, labels: str = "") -> str:
    """Write one value of a metric."""
    return f"{name}{{{labels}}} {value}" if labels else f"{name} {value}"


def resident_bytes() -> int:
    """Return the resident memory of this process; 0 if it is unknown."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096
    except (OSError, IndexError, ValueError):
        return 0
