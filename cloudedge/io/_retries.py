"""Attempts that are repeated: how often, after which pauses, until when, and which failures may be.

One layer of a path owns its retries, and its docstring says so; the layers below it fail at once. Two layers that each
repeat six times make thirty-six attempts, and neither knows how long the other waits. A layer that repeated marks the
error it gives up with (`CloudEdgeError.was_repeated`), for a caller whose other steps no one below repeats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from cloudedge.clock import Clock

__all__ = ["Backoff", "Patience", "retry"]

T = TypeVar("T")

_LARGEST_EXPONENT = 60


@dataclass(frozen=True)
class Backoff:
    """Pauses that double from failure to failure up to a cap, at random, so that no two callers keep in step."""

    first_s: float
    longest_s: float
    least: float = 0.5
    """The shortest and the longest pause, as parts of the doubled one."""
    most: float = 1.0
    longest_asked_s: float = 30.0
    """A server that asks for a longer pause than this gets no further attempt."""

    def pause_s(self, failures: int, clock: Clock, *, at_least_s: float | None = None) -> float:
        """Return the pause after the failure of that number, from 1 on; no less than a server asked for."""
        grown_s = min(self.longest_s, self.first_s * 2.0 ** min(failures - 1, _LARGEST_EXPONENT))
        return max(grown_s * (self.least + (self.most - self.least) * clock.random()), at_least_s or 0.0)


class Patience:
    """Counts the failures of something that is tried again, and waits between two attempts.

    Args:
        attempts: Failures in a row after which there is no further attempt.
        backoff: The pauses.
        clock: Where time and chance come from.
        deadline: By `clock.monotonic()`; a pause that would end later is not begun.

    Attributes:
        failures: Failures in a row.
        is_late: Whether the deadline, and not the number of attempts, ended it.
    """

    def __init__(self, attempts: int, backoff: Backoff, clock: Clock, *, deadline: float | None = None) -> None:
        self.failures = 0
        self.is_late = False
        self._attempts = attempts
        self._backoff = backoff
        self._clock = clock
        self._deadline = deadline

    def wait(self, *, progressed: bool = False, at_least_s: float | None = None) -> bool:
        """Count a failure; wait and return True, or return False at once if there is no further attempt.

        Args:
            progressed: The failed attempt brought something: the count begins anew with this failure.
            at_least_s: The pause that a server asked for.
        """
        self.failures = 1 if progressed else self.failures + 1
        pause_s = self._backoff.pause_s(self.failures, self._clock, at_least_s=at_least_s)
        if self.failures >= self._attempts or (at_least_s or 0.0) > self._backoff.longest_asked_s:
            return False
        if self._deadline is not None and self._clock.monotonic() + pause_s >= self._deadline:
            self.is_late = True
            return False
        self._clock.sleep(pause_s)
        return True


def retry(
    call: Callable[[], T],
    *,
    attempts: int,
    backoff: Backoff,
    clock: Clock,
    may_repeat: Callable[[Exception], bool],
    at_least_s: Callable[[Exception], float | None] = lambda _: None,
    deadline: float | None = None,
    late: Callable[[Exception], Exception] | None = None,
) -> T:
    """Make a call until it succeeds, fails in a way that no repetition changes, or has failed too often.

    Args:
        call: Safe to repeat, at least after a failure that `may_repeat` lets pass.
        attempts: How often at most, the first one included.
        backoff: The pauses.
        clock: Where time and chance come from.
        may_repeat: Decides whether another attempt can help after this failure.
        at_least_s: The pause that a failure asks for.
        deadline: By `clock.monotonic()`.
        late: Makes the error to raise when the deadline ends it; the last failure if left out.

    Raises:
        Exception: the last failure.
    """
    patience = Patience(attempts, backoff, clock, deadline=deadline)
    while True:
        try:
            return call()
        except Exception as error:
            if may_repeat(error) and patience.wait(at_least_s=at_least_s(error)):
                continue
            if patience.is_late and late is not None:
                raise late(error) from error
            raise
