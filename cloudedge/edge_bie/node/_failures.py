"""Failures of desired versions on a node, and the times of their next tries."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from cloudedge.clock import Clock
from cloudedge.edge_bie.model import AppRef
from cloudedge.edge_bie.node._report import Phase, Trouble, trouble_of
from cloudedge.errors import CloudEdgeError
from cloudedge.io import Backoff

__all__ = ["Failures"]

_BACKOFF = Backoff(10.0, 600.0)
_SOON_S = 2.0


@dataclass(frozen=True)
class _Failure:
    trouble: Trouble
    count: int
    retry_at: float


class Failures:
    """The failures by version of an app; one thread writes, others read."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[AppRef, _Failure] = {}

    def of(self, ref: AppRef) -> Trouble | None:
        """Return the phase or the failure of a version."""
        found = self._known.get(ref)
        return found.trouble if found else None

    def is_due(self, ref: AppRef) -> bool:
        """Return True if a version may be tried now."""
        found = self._known.get(ref)
        return found is None or found.retry_at <= self._clock.monotonic()

    def note(self, ref: AppRef, trouble: Trouble) -> None:
        """Record the phase of a version."""
        before = self._known.get(ref)
        count, retry_at = (before.count, before.retry_at) if before else (0, 0.0)
        # A known cause of failure stays until another one is known, or the version works.
        if before is None or not before.trouble.cause or trouble.cause:
            self._known[ref] = _Failure(trouble, count, retry_at)

    def failed(self, ref: AppRef, error: CloudEdgeError, phase: Phase) -> Trouble:
        """Record another failure of a version: it is tried again later, each time after a longer pause."""
        before = self._known.get(ref)
        count = (before.count if before else 0) + 1
        pause = _BACKOFF.pause_s(count, self._clock)
        trouble = trouble_of(error, phase)
        if not trouble.cause:  # a cut network, which is no failure
            pause = min(pause, _SOON_S * count)
        self._known[ref] = _Failure(trouble, count, self._clock.monotonic() + pause)
        return trouble

    def forget(self, ref: AppRef) -> None:
        """Record that a version works."""
        self._known.pop(ref, None)

    def keep(self, refs: Collection[AppRef]) -> None:
        """Forget all others: they are no longer desired."""
        self._known = {ref: failure for ref, failure in self._known.items() if ref in refs}
