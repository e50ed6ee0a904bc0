"""Clocks: time and randomness, injected so that tests control both.

Wall-clock time is only ever *shown* (in a tag's history, in a manifest). Order and deadlines come from
counters and from the monotonic clock, which never goes back.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Protocol

__all__ = ["Clock", "ManualClock", "SystemClock", "rfc3339"]


class Clock(Protocol):
    """The source of time and randomness for the rest of cloudedge."""

    def now(self) -> datetime:
        """Return the wall-clock time, in UTC."""
        ...

    def monotonic(self) -> float:
        """Return the seconds since a fixed moment; the value never goes back."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...

    def random(self) -> float:
        """Return a number in [0, 1), for jitter and names; not a secret."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        """Return the wall-clock time, in UTC."""
        return datetime.now(timezone.utc)

    def monotonic(self) -> float:
        """Return the machine's monotonic clock."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def random(self) -> float:
        """Return a number in [0, 1)."""
        return random.random()  # noqa: S311 - jitter, not a secret


@dataclass
class ManualClock:
    """A clock that moves only when a test sets `elapsed` or code sleeps on it."""

    at: datetime = datetime(2026, 1, 1, tzinfo=timezone.utc)
    seed: int = 0
    elapsed: float = 0.0
    _rng: random.Random = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)  # noqa: S311 - seeded on purpose

    def now(self) -> datetime:
        """Return the start time plus the seconds elapsed."""
        return self.at + timedelta(seconds=self.elapsed)

    def monotonic(self) -> float:
        """Return the seconds elapsed so far."""
        return self.elapsed

    def sleep(self, seconds: float) -> None:
        """Advance the clock without waiting."""
        self.elapsed += seconds

    def random(self) -> float:
        """Return the next number of the seeded sequence."""
        return self._rng.random()


def rfc3339(moment: datetime) -> str:
    """Format a time as OCI annotations require: UTC, to the second."""
    return moment.astimezone(timezone.utc).replace(tzinfo=None).isoformat(timespec="seconds") + "Z"
