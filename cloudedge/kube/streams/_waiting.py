"""Waits for an object to meet a condition, and the error when it does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cloudedge.errors import DeadlineExceeded, Unavailable
from cloudedge.kube.objects import Kind, Notice, Object, state_of
from cloudedge.kube.streams._watch import Watch

__all__ = ["Waiting"]

_EVENTS_SHOWN = 8


class Waiting:
    """One wait for one object.

    Args:
        watch: A watch of this object alone.
        until: The condition; None stands for no object.
    """

    def __init__(self, watch: Watch, until: Callable[[Object | None], bool | None]) -> None:
        self._watch, self._until = watch, until
        self.now: Object | None = None
        """The object as last seen."""
        self.silence: Unavailable | None = None
        """The error of a server that stopped answering."""

    def run(self) -> bool:
        """Wait; return whether the condition holds, or False when the time is over."""
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
                raise  # the condition raised it
            self.silence = error
        return False

    def failure(self, what: str, timeout_s: float, notices: Sequence[Notice]) -> DeadlineExceeded:
        """Return the error to raise: with the last state, and the events."""
        state = f"the API server does not answer: {self.silence.message}" if self.silence else state_of(self.now)
        lines = "".join(f"\n  {notice}" for notice in notices[-_EVENTS_SHOWN:])
        return DeadlineExceeded(
            f"{what}: not done after {timeout_s:.0f} s: {state}{lines}",
            state=state,
            events=[str(notice) for notice in notices],
            last=self.now if self._watch.kind != Kind.SECRET else None,
        )
