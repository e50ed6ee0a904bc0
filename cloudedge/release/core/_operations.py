"""The inner half of a target: operations are begun, gone on with and waited for, by whoever holds the lock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count

from cloudedge.errors import Conflict, InputError, NotFound, Unavailable
from cloudedge.journal import Operation, Writer
from cloudedge.release.core._apply import Outcome, Run, committed
from cloudedge.release.core._context import ReleaseContext
from cloudedge.release.core._errors import Refused, Unfinished
from cloudedge.release.core._plan import plan as plan_for
from cloudedge.release.core._plan import plan_undo
from cloudedge.release.core._steps import Options, Plan
from cloudedge.release.core._version import Version

__all__ = ["ALLOWED", "Driver", "check", "without", "words"]

ALLOWED = Options(allow_signature_change=True)
"""For what was live here before: its clients were there then."""

_KNOWN = 1000
"""Pins remembered as this target's own; what was loaded longer ago than so many releases is somebody else's."""


class Driver:
    """What goes on under the lock; `Target` is what people use."""

    def __init__(self, ground: ReleaseContext) -> None:
        self._ground = ground

    def _begin(self, writer: Writer, plan: Plan, version: Version) -> Outcome:
        if plan.lives != self._ground.lives():
            raise Conflict(f"{self._ground.name} changed since this was planned", hint="Plan again.")
        known = [pin for pin in self._ground.journal.recall("known") or () if pin != plan.pin]
        writer.remember("known", [*known[-_KNOWN:], plan.pin])
        operation = writer.begin(plan.kind, plan.ref, plan=plan.to_json(), by=self._ground.by)
        return self._forward(writer, operation, plan, version)

    def _forward(
        self, writer: Writer, operation: Operation, plan: Plan, version: Version, *, leave_away: bool = False
    ) -> Outcome:
        """Go forward. Once requests have moved, whatever stops it is waited for: servers are started again."""
        end = self._ground.clock.monotonic() + plan.options.patience_s
        for round_ in count():
            run = Run(self._ground, writer, operation.number, plan, version)
            try:
                return run.forward()
            except Unfinished as stopped:
                is_over = self._ground.clock.monotonic() >= end
                if is_over or not run.is_committed or self._why_back(operation) is not None:
                    raise
                self._ground.pause(round_, f"{stopped.message}; waiting for that")
                fresh = self._patiently(
                    lambda: self._plan_on(operation, leave_away=leave_away),
                    end - self._ground.clock.monotonic(),
                    until=partial(_is_asked_back, run),
                )
                if run.asked_back and not run.is_too_late():
                    return run.back(f"{run.asked_back} asked for it")
                if fresh[0].refusals:
                    raise
                plan, version = fresh
        raise AssertionError  # counting does not end

    def _plan_on(self, operation: Operation, *, leave_away: bool = False) -> tuple[Plan, Version]:
        """Plan the rest of an operation anew, from what is there."""
        plan = Plan.from_json(operation.plan)
        version, world = self._ground.look(plan.ref, plan.shards)
        world = replace(world, lives=plan.lives)
        fresh = plan_for(version, world, plan.options, kind=plan.kind, before=plan.before, leave_away=leave_away)
        return fresh, version

    def _patiently(
        self,
        make: Callable[[], tuple[Plan, Version]],
        patience_s: float,
        *,
        until: Callable[[], bool] = lambda: False,
    ) -> tuple[Plan, Version]:
        """Plan again and again while nothing but places that do not answer are in the way, and patience lasts."""
        end = self._ground.clock.monotonic() + patience_s
        for round_ in count():
            planned = make()
            rules = {refusal.rule for refusal in planned[0].refusals}
            if rules != {"unreachable"} or self._ground.clock.monotonic() >= end or until():
                return planned
            self._ground.pause(round_, f"waiting: {'; '.join(refusal.what for refusal in planned[0].refusals)}")
        raise AssertionError  # counting does not end

    def _why_back(self, operation: Operation) -> str | None:
        """Return why an operation is being taken back; None if it is not."""
        entries = self._ground.journal.entries(operation.number)
        return next((each.detail["why"] for each in entries if (each.step, each.what) == ("undo", "note")), None)

    def _go_on(self, writer: Writer, operation: Operation) -> Outcome:
        why = self._why_back(operation)
        if why is not None:
            return Run(self._ground, writer, operation.number, Plan.from_json(operation.plan)).back(why)
        is_committed = committed(self._ground.journal.last_words(operation.number))
        patience_s = Plan.from_json(operation.plan).options.patience_s
        fresh, version = self._patiently(lambda: self._plan_on(operation, leave_away=is_committed), patience_s)
        if fresh.refusals:
            reasons = "; ".join(refusal.what for refusal in fresh.refusals)
            raise Unfinished(
                f"{self._ground.name}: {fresh.kind} {operation.number} cannot go on: {reasons}",
                hint="Mend that and resume, or abort.",
                number=operation.number,
                failed={},
            )
        writer.set_state(operation.number, "open")
        left = [step.id for step in fresh.steps]
        writer.record(operation.number, "resume", "note", by=self._ground.by, left=left)
        return self._forward(writer, operation, fresh, version, leave_away=is_committed)

    def _plan_rest(self, operation: Operation) -> Plan:
        """Plan how an operation ends, for people to read."""
        if self._why_back(operation) is not None:
            return self._plan_back(operation)
        is_committed = committed(self._ground.journal.last_words(operation.number))
        plan, _ = self._plan_on(operation, leave_away=is_committed)
        return without(plan, *(("dense.canary", "bake") if is_committed else ()))

    def _plan_back(self, operation: Operation) -> Plan:
        """Plan the way back, for people to read; whoever goes it plans it again."""
        plan, touched = self._way_back(operation), self._ground.journal.last_words(operation.number)
        stages = plan_undo(plan, self._ground.observe(), touched)
        return replace(plan, kind="undo", steps=tuple(step for steps in stages for step in steps), warnings=())

    def _back(self, writer: Writer, operation: Operation, why: str) -> Outcome:
        return Run(self._ground, writer, operation.number, self._way_back(operation)).back(why)

    def _way_back(self, operation: Operation) -> Plan:
        plan = Plan.from_json(operation.plan)
        if not plan.lives and committed(self._ground.journal.last_words(operation.number)):
            raise Refused(
                f"{self._ground.name}: requests have moved to {plan.title}, and nothing was live before",
                hint="Resume finishes it; release another bundle after that.",
                rules=["nothing-before"],
            )
        return plan

    def _unfinished(self, expected: int | None = None) -> Operation:
        operation = self._ground.journal.unfinished()
        if operation is not None and expected not in (None, operation.number):
            return self._still(self._ground.journal.operation(expected or 0))
        if operation is None:
            raise NotFound(f"{self._ground.name}: nothing is unfinished", hint="The history lists what there was.")
        return operation

    def _still(self, seen: Operation) -> Operation:
        """Look again at an operation under the lock: whoever was at it may have ended it before that.

        Raises:
            Conflict: it is over.
        """
        now = self._ground.journal.operation(seen.number)
        if not now.is_open:
            raise Conflict(
                f"{self._ground.name}: {words(now)} ended in the meantime: it is {now.state}",
                hint=f"See cloudedge status {self._ground.name}; what is live is taken back with rollback.",
            )
        return now

    def _roll(self, writer: Writer, plan: Plan, version: Version) -> Outcome:
        """Roll back; places that go away before requests move do not stop it, as long as others stand in for them."""
        outcome = self._begin(writer, plan, version)
        while outcome.state == "undone":
            version, world = self._ground.look(plan.ref, plan.shards)
            fewer = plan_for(version, world, plan.options, kind="rollback")
            asked = any(wish.what == "abort" for wish in self._ground.journal.wishes(outcome.number))
            if asked or fewer.refusals or fewer.away.keys() <= plan.away.keys():
                break
            plan, outcome = fewer, self._begin(writer, fewer, version)
        return outcome

    def _plan_repair(self) -> tuple[Plan, Version] | None:
        """Plan what brings every place to what is live; None: nothing has to be."""
        lives = self._ground.lives()
        if not lives:
            return None
        version, world = self._ground.look(lives[0].ref)
        plan = plan_for(version, world, ALLOWED, kind="repair")
        return None if plan.is_empty and not plan.away else (plan, version)

    def _mend(self, writer: Writer) -> None:
        """Bring back what a place lost while a release was under way; one that is away stays for the next resume."""
        found = self._plan_repair()
        if found is not None and found[0].steps:
            self._begin(writer, *found)

    def _bring(self, writer: Writer, patience_s: float) -> Outcome | None:
        """Bring places that lag to what is live; those that do not answer are waited for.

        Returns:
            What came of it; None if nothing had to be done.

        Raises:
            Refused: it cannot be.
            Unavailable: what is left are places that do not answer.
        """
        end = self._ground.clock.monotonic() + patience_s
        done: Outcome | None = None
        for round_ in count():
            found = self._plan_repair()
            if found is None:
                self._ground.mark({}, writer)  # what a hub that was down could not be told
                return replace(done, away={}) if done else None
            plan = found[0]
            if plan.steps:
                done = self._begin(writer, *found)
                if done.state == "undone" or not done.away:
                    return done
            is_waiting = not {refusal.rule for refusal in plan.refusals} - {"unreachable"}
            if self._ground.clock.monotonic() >= end or not is_waiting:
                break
            waiting = [*plan.away, *(refusal.what for refusal in plan.refusals)]
            self._ground.pause(round_, f"waiting for {', '.join(waiting)}")
        if done is not None:
            return done
        if plan.refusals:
            check(plan)
        raise Unavailable(
            f"{self._ground.name}: {', '.join(plan.away)} cannot be observed: {'; '.join(plan.away.values())}",
            hint="Everything else is as it should be. Start these, then resume, or take them out of the target.",
        )

    def _catch_up(self, writer: Writer, outcome: Outcome, patience_s: float) -> Outcome:
        """Wait for places that something was done without, and bring them along."""
        if outcome.state == "undone" or not outcome.away:
            return outcome
        try:
            brought = self._bring(writer, patience_s)
        except (Refused, Unavailable):
            return outcome
        return replace(outcome, away=brought.away if brought else {})


def _is_asked_back(run: Run) -> bool:
    return bool(run.asked_back)


def check(plan: Plan) -> None:
    """Make sure that a plan can be carried out.

    Raises:
        Refused: it says why it cannot.
        InputError: there is nothing to do.
    """
    if plan.refusals:
        raise Refused(plan.summary(), hint="Nothing was touched.", rules=[refusal.rule for refusal in plan.refusals])
    if not plan.steps:
        why = " ".join(plan.warnings) or "There is nothing to do."
        raise InputError(f"{plan.title} is live on {plan.target} already, everywhere", hint=why)


def words(operation: Operation) -> str:
    """Say which operation that is."""
    return f"{operation.kind} {operation.number} of {operation.plan['title']}"


def without(plan: Plan, *stages: str) -> Plan:
    """Leave stages out of a plan."""
    return replace(plan, steps=tuple(step for step in plan.steps if step.stage not in stages))
