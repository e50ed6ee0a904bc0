"""The operations of one target: begin one, resume it, wait for places, take it back, repair.

`Operations` owns the life of an operation in the journal, from the plan that begins it to its outcome. `Run` carries
out its steps; `Target`, the object that people use, takes the journal's lock and decides which operation to call. Every
method that takes a `Writer` runs under that lock.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from itertools import count

from cloudedge.errors import Conflict, InputError, NotFound, Unavailable
from cloudedge.journal import Operation, Writer
from cloudedge.release.core._adopt import Adoption, BundleFinder, Recorded, adopt
from cloudedge.release.core._apply import Outcome, Run, committed
from cloudedge.release.core._context import ReleaseContext
from cloudedge.release.core._errors import Refused, Unfinished
from cloudedge.release.core._plan import plan as plan_for
from cloudedge.release.core._plan import plan_undo
from cloudedge.release.core._steps import Options, Plan
from cloudedge.release.core._version import Version

__all__ = ["ALLOWED", "Operations", "describe", "require_feasible", "without"]

ALLOWED = Options(allow_signature_change=True, allow_older=True)
"""The options for a version that was live here before: its clients were there then."""

_KNOWN = 1000
"""How many pins the journal remembers as this target's own; an older one counts as another target's."""


class Operations:
    """The operations of one target.

    Args:
        context: The target's places, journal, bundles and clock.
    """

    def __init__(self, context: ReleaseContext) -> None:
        self._context = context

    def begin(self, writer: Writer, plan: Plan, version: Version) -> Outcome:
        """Begin an operation and carry it out.

        Raises:
            Conflict: the target changed since the plan was made, or an operation is unfinished.
        """
        if plan.lives != self._context.lives():
            raise Conflict(f"{self._context.name} changed since this was planned", hint="Plan again.")
        known = [pin for pin in self._context.journal.recall("known") or () if pin != plan.pin]
        writer.remember("known", [*known[-_KNOWN:], plan.pin])
        operation = writer.begin(plan.kind, plan.ref, plan=plan.to_json(), by=self._context.by)
        return self._forward(writer, operation, plan, version)

    def _forward(
        self, writer: Writer, operation: Operation, plan: Plan, version: Version, *, leave_away: bool = False
    ) -> Outcome:
        """Go forward. Once requests have moved, wait for what stops it: a supervisor starts servers again."""
        end = self._context.clock.monotonic() + plan.options.patience_s
        for round_ in count():
            run = Run(self._context, writer, operation.number, plan, version)
            try:
                return run.forward()
            except Unfinished as stopped:
                is_over = self._context.clock.monotonic() >= end
                if is_over or not run.is_committed or self._why_undone(operation) is not None:
                    raise
                self._context.pause(round_, f"{stopped.message}; waiting")
                fresh = self.patiently(
                    lambda: self._plan_again(operation, leave_away=leave_away),
                    end - self._context.clock.monotonic(),
                    until=partial(_is_asked_back, run),
                )
                if run.asked_back and not run.is_too_late():
                    return run.back(f"{run.asked_back} asked for it")
                if fresh[0].refusals:
                    raise
                plan, version = fresh
        raise AssertionError  # counting does not end

    def _plan_again(self, operation: Operation, *, leave_away: bool = False) -> tuple[Plan, Version]:
        """Plan the rest of an operation from what the places have now."""
        plan = Plan.from_json(operation.plan)
        version, world = self._context.look(plan.ref, plan.shards)
        world = replace(world, lives=plan.lives)
        # It was fresh enough when it began; a signature that expires half way must not leave it there.
        options = replace(plan.options, allow_older=True)
        fresh = plan_for(version, world, options, kind=plan.kind, before=plan.before, leave_away=leave_away)
        return fresh, version

    def patiently(
        self,
        make: Callable[[], tuple[Plan, Version]],
        patience_s: float,
        *,
        until: Callable[[], bool] = lambda: False,
    ) -> tuple[Plan, Version]:
        """Plan again while only places that do not answer are in the way, until patience ends."""
        end = self._context.clock.monotonic() + patience_s
        for round_ in count():
            planned = make()
            rules = {refusal.rule for refusal in planned[0].refusals}
            if rules != {"unreachable"} or self._context.clock.monotonic() >= end or until():
                return planned
            self._context.pause(round_, f"waiting: {'; '.join(refusal.what for refusal in planned[0].refusals)}")
        raise AssertionError  # counting does not end

    def _why_undone(self, operation: Operation) -> str | None:
        """Return why an operation is being taken back; None if it goes forward."""
        entries = self._context.journal.entries(operation.number)
        return next((each.detail["why"] for each in entries if (each.step, each.what) == ("undo", "note")), None)

    def resume(self, writer: Writer, operation: Operation) -> Outcome:
        """Finish an operation, forward or back as the journal says.

        Raises:
            Unfinished: it cannot be finished as things are.
        """
        self.require_journal()
        why = self._why_undone(operation)
        if why is not None:
            return Run(self._context, writer, operation.number, Plan.from_json(operation.plan)).back(why)
        is_committed = committed(self._context.journal.last_words(operation.number))
        patience_s = Plan.from_json(operation.plan).options.patience_s
        fresh, version = self.patiently(lambda: self._plan_again(operation, leave_away=is_committed), patience_s)
        if fresh.refusals:
            reasons = "; ".join(refusal.what for refusal in fresh.refusals)
            raise Unfinished(
                f"{self._context.name}: {fresh.kind} {operation.number} cannot go on: {reasons}",
                hint="Mend that and run `cloudedge resume`, or go back with `cloudedge abort`.",
                number=operation.number,
                failed={},
            )
        writer.set_state(operation.number, "open")
        left = [step.id for step in fresh.steps]
        writer.record(operation.number, "resume", "note", by=self._context.by, left=left)
        return self._forward(writer, operation, fresh, version, leave_away=is_committed)

    def plan_rest(self, operation: Operation) -> Plan:
        """Plan the rest of an operation, for an operator to read."""
        if self._why_undone(operation) is not None:
            return self.plan_back(operation)
        is_committed = committed(self._context.journal.last_words(operation.number))
        plan, _ = self._plan_again(operation, leave_away=is_committed)
        return without(plan, *(("dense.canary", "bake") if is_committed else ()))

    def plan_back(self, operation: Operation) -> Plan:
        """Plan the way back, for an operator to read; `take_back` plans it again."""
        plan, touched = self._way_back(operation), self._context.journal.last_words(operation.number)
        stages = plan_undo(plan, self._context.observe(), touched)
        return replace(plan, kind="undo", steps=tuple(step for steps in stages for step in steps), warnings=())

    def take_back(self, writer: Writer, operation: Operation, why: str) -> Outcome:
        """Take an operation back.

        Raises:
            Refused: requests have moved, and nothing was live before.
            Unfinished: a place that answers could not be brought back.
        """
        self.require_journal()
        return Run(self._context, writer, operation.number, self._way_back(operation)).back(why)

    def require_journal(self) -> None:
        """Check that the journal can be believed; a plan has a rule for that, and going back has none.

        Raises:
            Refused: it cannot.
        """
        doubt = self._context.doubt(self._context.observe())
        if doubt:
            raise Refused(
                f"{self._context.name}: {doubt}",
                hint=f"Run `cloudedge journal rebuild {self._context.name}`.",
                rules=["journal"],
            )

    def plan_adoption(self, live: str = "") -> Adoption:
        """Conclude from the places and the hub's tags what the journal has to contain; nothing changes.

        Args:
            live: The pin that is live, where the operator decides.

        Raises:
            InputError: the target's source of bundles cannot find them by pin.
        """
        context, bundles = self._context, self._context.bundles
        if not isinstance(bundles, BundleFinder):
            raise InputError(f"{context.name}: its bundles cannot be found by their pins")
        places = context.observe()
        pins = {pin for place in places for pin in (*place.versions, *place.active)}
        found = {pin: version for pin in sorted({*pins, *filter(None, [live])}) if (version := bundles.find(pin))}
        marked: dict[str, Version] = {}
        for role, ref in bundles.marked().items():
            with suppress(NotFound):
                marked[role] = bundles.version(ref)
        recorded = Recorded(context.lives(), context.journal.order, context.journal.doubt)
        return adopt(context.name, places, found, marked, recorded, now=context.layouts.now(), live=live)

    def adopt(self, writer: Writer, adoption: Adoption) -> None:
        """Write an adoption into the journal, as one; then set the tags that go with it. No place is touched.

        Raises:
            Refused: nothing decides which version is live.
        """
        if adoption.refusals:
            rules = [refusal.rule for refusal in adoption.refusals]
            raise Refused(adoption.summary(), hint="Nothing was changed.", rules=rules)
        if not adoption.changes:
            return
        journal, lives = self._context.journal, adoption.lives
        roles: dict[str, str | None] = {
            **{f"previous-{back}": lives[back].ref for back in range(adoption.retained, 1, -1) if back < len(lives)},
            "previous": lives[1].ref if len(lives) > 1 else None,
            "live": lives[0].ref if lives else None,
            "next": None,
        }
        with writer.together():
            unfinished = journal.unfinished()
            if unfinished is not None:
                writer.set_state(unfinished.number, "failed", why="the journal was rebuilt from the places")
            writer.continue_above(adoption.order)
            facts = {"lives": [asdict(life) for life in lives], "known": list(adoption.known), "untold": roles}
            for key, value in {**facts, "retained": adoption.retained, "behind": list(adoption.behind)}.items():
                writer.remember(key, value)
            writer.settle()
            if lives:
                live = lives[0]
                plan = Plan("adopt", self._context.name, live.pin, live.ref, live.title, lives, shards=live.shards)
                operation = writer.begin(plan.kind, plan.ref, plan=plan.to_json(), by=self._context.by)
                writer.record(operation.number, "adopt", "note", changes=list(adoption.changes))
                writer.set_state(operation.number, "done", why="; ".join(adoption.changes))
        if lives:
            self._context.layouts.publish(lives[0].shards)
        self._context.mark(roles, writer)  # in this order, a tag takes over from the one before it

    def _way_back(self, operation: Operation) -> Plan:
        plan = Plan.from_json(operation.plan)
        if not plan.lives and committed(self._context.journal.last_words(operation.number)):
            raise Refused(
                f"{self._context.name}: requests have moved to {plan.title}, and nothing was live before",
                hint="Finish it with `cloudedge resume`, then release another bundle.",
                rules=["nothing-before"],
            )
        return plan

    def unfinished(self, expected: int | None = None) -> Operation:
        """Return the unfinished operation.

        Args:
            expected: The number of the one that is meant.

        Raises:
            NotFound: nothing is unfinished.
            Conflict: the one that is meant has ended.
        """
        operation = self._context.journal.unfinished()
        if operation is not None and expected not in (None, operation.number):
            return self.still_open(self._context.journal.operation(expected or 0))
        if operation is None:
            self.require_journal()
            raise NotFound(f"{self._context.name}: nothing is unfinished", hint="See `cloudedge history`.")
        return operation

    def still_open(self, seen: Operation) -> Operation:
        """Read an operation again under the lock: another process may have ended it before the lock was free.

        Raises:
            Conflict: it is over.
        """
        now = self._context.journal.operation(seen.number)
        if not now.is_open:
            raise Conflict(
                f"{self._context.name}: {describe(now)} ended in the meantime: it is {now.state}",
                hint=f"See `cloudedge status {self._context.name}`; take back what is live with `cloudedge rollback`.",
            )
        return now

    def roll_back(self, writer: Writer, plan: Plan, version: Version) -> Outcome:
        """Roll back. Places that go away before requests move do not stop it, as long as others answer for them."""
        outcome = self.begin(writer, plan, version)
        while outcome.state == "undone":
            version, world = self._context.look(plan.ref, plan.shards)
            fewer = plan_for(version, world, plan.options, kind="rollback")
            asked = any(wish.what == "abort" for wish in self._context.journal.wishes(outcome.number))
            if asked or fewer.refusals or fewer.away.keys() <= plan.away.keys():
                break
            plan, outcome = fewer, self.begin(writer, fewer, version)
        return outcome

    def plan_repair(self) -> tuple[Plan, Version] | None:
        """Plan how every place gets to what is live; None if all are there."""
        lives = self._context.lives()
        if not lives:
            self.require_journal()
            return None
        version, world = self._context.look(lives[0].ref)
        plan = plan_for(version, world, ALLOWED, kind="repair")
        return None if plan.is_empty and not plan.away else (plan, version)

    def repair(self, writer: Writer) -> None:
        """Bring back what a place lost during a release; a place that does not answer waits for the next resume."""
        found = self.plan_repair()
        if found is not None and found[0].steps:
            self.begin(writer, *found)

    def bring_up_to_date(self, writer: Writer, patience_s: float) -> Outcome | None:
        """Bring places that lag to what is live, and wait for those that do not answer.

        Returns:
            What came of it; None if nothing had to be done.

        Raises:
            Refused: a place cannot take what is live.
            Unavailable: only places that do not answer are left.
        """
        end = self._context.clock.monotonic() + patience_s
        done: Outcome | None = None
        for round_ in count():
            found = self.plan_repair()
            if found is None:
                self._context.mark({}, writer)  # tags that a hub missed while it was down
                return replace(done, away={}) if done else None
            plan = found[0]
            if plan.steps:
                done = self.begin(writer, *found)
                if done.state == "undone" or not done.away:
                    return done
            is_waiting = not {refusal.rule for refusal in plan.refusals} - {"unreachable"}
            if self._context.clock.monotonic() >= end or not is_waiting:
                break
            waiting = [*plan.away, *(refusal.what for refusal in plan.refusals)]
            self._context.pause(round_, f"waiting for {', '.join(waiting)}")
        if done is not None:
            return done
        if plan.refusals:
            require_feasible(plan)
        raise Unavailable(
            f"{self._context.name}: {', '.join(plan.away)} cannot be observed: {'; '.join(plan.away.values())}",
            hint="All others are up to date. Start these and run `cloudedge resume`, or take them out of the target.",
        )

    def catch_up(self, writer: Writer, outcome: Outcome, patience_s: float) -> Outcome:
        """Wait for the places that an operation left out, and bring them to what is live."""
        if outcome.state == "undone" or not outcome.away:
            return outcome
        try:
            brought = self.bring_up_to_date(writer, patience_s)
        except (Refused, Unavailable):
            return outcome
        return replace(outcome, away=brought.away if brought else {})


def _is_asked_back(run: Run) -> bool:
    return bool(run.asked_back)


def require_feasible(plan: Plan) -> None:
    """Check that a plan can be carried out.

    Raises:
        Refused: it cannot; the message has every reason.
        InputError: there is nothing to do.
    """
    if plan.refusals:
        raise Refused(plan.summary(), hint="Nothing was touched.", rules=[refusal.rule for refusal in plan.refusals])
    if not plan.steps:
        why = " ".join(plan.warnings) or "There is nothing to do."
        raise InputError(f"{plan.title} is live on {plan.target} already, everywhere", hint=why)


def describe(operation: Operation) -> str:
    """Name an operation in a message."""
    return f"{operation.kind} {operation.number} of {operation.plan['title']}"


def without(plan: Plan, *stages: str) -> Plan:
    """Return a plan without some stages."""
    return replace(plan, steps=tuple(step for step in plan.steps if step.stage not in stages))
