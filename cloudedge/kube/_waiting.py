"""Waiting until an object is as it should be, and what to say when it is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cloudedge.errors import DeadlineExceeded, Unavailable
from cloudedge.kube._events import Notice, state_of
from cloudedge.kube._kinds import Kind, Object
from cloudedge.kube._watch import Watch

__all__ = ["Waiting"]

_EVENTS_SHOWN = 8


class Waiting:
    """One wait.

    Args:
        watch: Of the object, and of it alone.
        until: Is asked whether it is as it should be; None stands for no object.
    """

    def __init__(self, watch: Watch, until: Callable[[Object | None], bool | None]) -> None:
        self._watch, self._until = watch, until
        self.now: Object | None = None
        """The object as it was last seen."""
        self.silence: Unavailable | None = None
        """What the server said at the end instead of showing it."""

    def run(self) -> bool:
        """Wait; tell whether it is as it should be, or the time is over."""
        try:
            for event in self._watch:
                if event is not None and event.type == "DELETED":
                    self.now = None if self.now and self.now["metadata"]["uid"] == event.uid else self.now
                elif event is not None:
                    self.now = event.object
                if self._until(self.now):
                    return True
        except Unavailable as error:
            if self._watch.session.clock.monotonic() < self._watch.end:
                raise  # it is what the question raised
            self.silence = error
        return False

    def failure(self, what: str, timeout_s: float, told: Sequence[Notice]) -> DeadlineExceeded:
        """Return what to raise: with the last state, and the events."""
        state = f"the API server does not answer: {self.silence.message}" if self.silence else state_of(self.now)
        lines = "".join(f"\n  {notice}" for notice in told[-_EVENTS_SHOWN:])
        return DeadlineExceeded(
            f"{what}: not done after {timeout_s:.0f} s: {state}{lines}",
            state=state,
            events=[str(notice) for notice in told],
            last=self.now if self._watch.kind != Kind.SECRET else None,
        )
