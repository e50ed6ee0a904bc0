"""A release that runs in a thread, and its outcome for the caller that waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cloudedge.errors import Conflict
from cloudedge.release.core import Outcome, Plan, ReleaseUndone, Unfinished

if TYPE_CHECKING:
    from cloudedge.release.target._target import Target

__all__ = ["Release"]


class Release:
    """A release that runs in a thread of its own."""

    def __init__(self, target: Target, plan: Plan) -> None:
        self.target = target
        self.plan = plan
        self._outcome: Outcome | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"release-{plan.pin}")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._outcome = self.target.run(self.plan)
        except BaseException as error:  # noqa: BLE001 - `wait` raises it again in the caller's thread
            self._error = error

    def wait(self, timeout_s: float | None = None) -> Outcome:
        """Wait for the outcome.

        Raises:
            ReleaseUndone: the release was taken back.
            Unfinished: it stopped half way.
            Conflict: it still runs after `timeout_s`, or another release was in the way.
        """
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise Conflict(f"the release of {self.plan.title} is still under way", hint="Wait again, or abort it.")
        if self._error is not None:
            raise self._error
        if self._outcome is None:
            raise AssertionError  # the thread leaves one or the other
        return _whole(self._outcome, self.plan)

    def promote(self) -> None:
        """End the watch over the canary early."""
        self.target.promote()

    def abort(self) -> None:
        """Take it back as soon as the step under way ends."""
        self.target.abort()

    def rollback(self) -> Outcome:
        """Take this release back, once it has ended: finished or half way.

        Raises:
            Conflict: it is not live: it was taken back already, or another release followed.
            NotFound: nothing was live before it.
        """
        self._thread.join()
        if isinstance(self._error, Unfinished):
            return self.target.rollback(expected=self._error.number)
        if self._outcome is None or self._outcome.state != "done":
            raise Conflict(f"{self.plan.title} is not live on {self.target.name}: there is nothing to take back")
        planned = self.target.plan_rollback(patient=True)
        if planned.live != self.plan.pin:
            raise Conflict(
                f"{self.plan.title} is no longer what is live on {self.target.name}",
                hint=f"See what followed with `cloudedge history {self.target.name}`.",
            )
        return self.target.run(planned)


def _whole(outcome: Outcome, plan: Plan) -> Outcome:
    if outcome.state != "done":
        raise ReleaseUndone(
            f"{plan.target}: {plan.title} was taken back: {outcome.why}",
            hint=" ".join(["Everything answers as before.", *_leftovers(outcome)]),
            number=outcome.number,
            why=outcome.why,
            done=outcome.done,
            undone=outcome.undone,
        )
    return outcome


def _leftovers(outcome: Outcome) -> Iterator[str]:
    if outcome.owed:
        yield f"Left to the next release: {', '.join(outcome.owed)}."
    if outcome.away:
        yield f"Left to `cloudedge resume`: {', '.join(outcome.away)}."
