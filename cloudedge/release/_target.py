"""A target: the one object through which releases are planned, applied, resumed, taken back and watched."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cloudedge.errors import Conflict, InputError, NotFound, Unavailable
from cloudedge.journal import Operation, Writer
from cloudedge.release._apply import Outcome, Run, committed
from cloudedge.release._errors import Refused, ReleaseUndone, Unfinished
from cloudedge.release._ground import Ground
from cloudedge.release._kinds import build
from cloudedge.release._places import Health
from cloudedge.release._plan import plan as plan_for
from cloudedge.release._plan import plan_undo
from cloudedge.release._status import Record, Status, history, status
from cloudedge.release._steps import Kind, Options, Plan
from cloudedge.release._version import Version

if TYPE_CHECKING:
    from cloudedge.bundle import Bundle
    from cloudedge.config import Config

__all__ = ["Release", "Target"]

_KNOWN = 1000
"""Pins remembered as this target's own; what was loaded longer ago than so many releases is somebody else's."""


class Release:
    """A release under way in a thread of its own."""

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
        except BaseException as error:  # noqa: BLE001 - raised again by `wait`, in the caller's thread
            self._error = error

    def wait(self, timeout_s: float | None = None) -> Outcome:
        """Wait until it is done.

        Raises:
            ReleaseUndone: it was taken back.
            Unfinished: it stopped half way.
            Conflict: it is still under way after `timeout_s`, or another release was in the way.
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
        """End the bake early."""
        self.target.promote()

    def abort(self) -> None:
        """Take it back as soon as the step under way ends."""
        self.target.abort()

    def rollback(self) -> Outcome:
        """Go back to what was live before this release, once it is done."""
        self._thread.join()
        return self.target.rollback()


class Target:
    """A named place that can run a bundle.

    Example:
        >>> target = Target.load("prod")  # doctest: +SKIP
        >>> plan = target.plan("ctr:4")  # doctest: +SKIP
        >>> print(plan.summary())  # doctest: +SKIP
        >>> target.apply(plan).wait()  # doctest: +SKIP
    """

    def __init__(self, ground: Ground) -> None:
        self._ground = ground

    @classmethod
    def load(cls, name: str, *, config: Config | None = None) -> Target:
        """Open a target that cloudedge.yaml names.

        Raises:
            ConfigError: there is none of that name, or its kind cannot be had here.
        """
        return cls(build(name, config))

    @property
    def name(self) -> str:
        """What cloudedge.yaml calls it."""
        return self._ground.name

    @property
    def unfinished(self) -> str | None:
        """What somebody has to finish or undo, in words."""
        operation = self._ground.journal.unfinished()
        return f"{operation.kind} {operation.number} of {operation.plan['title']}" if operation else None

    def plan(self, bundle: Bundle | Version | str, options: Options | None = None, **choices: Any) -> Plan:
        """Decide what releasing a bundle here would do; nothing on the target changes.

        Args:
            bundle: The bundle, or a reference such as `ctr:4`.
            options: What to choose, whole; or single fields of `Options` by name.
            choices: Fields of `Options`, such as `canary=0.05, bake_s=600`.
        """
        ref = bundle if isinstance(bundle, str) else f"{bundle.name}@{bundle.digest}"
        return plan_for(*self._ground.look(ref), options or Options(**choices))

    def apply(self, plan: Plan) -> Release:
        """Begin a release in the background; `wait` for it."""
        return Release(self, plan)

    def run(self, plan: Plan) -> Outcome:
        """Carry out a plan, here and now.

        Raises:
            Refused: the plan says why it cannot work.
            Conflict: another release is under way or unfinished, or the plan is out of date.
            Unfinished: it stopped half way.
            StorageError: the journal cannot be written; nothing was begun that it does not say.
        """
        _check(plan)
        version = self._ground.shelf.version(plan.ref).cut(plan.shards)
        with self._ground.journal.writing(self._ground.by) as writer:
            return self._begin(writer, plan, version)

    def plan_resume(self) -> Plan | None:
        """Decide what `resume` would do, forward or back; None: everything is as it should be. Nothing changes."""
        operation = self._ground.journal.unfinished()
        if operation is None:
            found = self._plan_repair()
            return found[0] if found else None
        return self._plan_rest(operation)

    def plan_abort(self) -> Plan:
        """Decide what `abort` would do. Nothing changes.

        Raises:
            NotFound: nothing is unfinished.
            Refused: requests have moved and there was nothing before to go back to.
        """
        return self._plan_back(self._unfinished())

    def plan_promote(self) -> Plan:
        """Decide what `promote` would do: what is left but for the bake. Nothing changes.

        Raises:
            NotFound: nothing is unfinished.
        """
        return _without(self._plan_rest(self._unfinished()), "bake")

    def resume(self) -> Outcome | None:
        """Finish what is unfinished, forward or back as the journal says; then bring places that lag to what is live.

        Returns:
            What came of it; None if everything was as it should be.

        Raises:
            Conflict: somebody is at work on it.
            Unfinished: it still cannot be finished.
        """
        with self._ground.journal.writing(self._ground.by) as writer:
            operation = self._ground.journal.unfinished()
            if operation is None:
                return self._repair(writer)
            outcome = self._go_on(writer, operation)
            if outcome.state == "undone":
                self._mend(writer)
            return outcome

    def abort(self) -> Outcome | None:
        """Take the unfinished release back. If it is under way in another process, ask that one to.

        Returns:
            What came of it; None if somebody else was asked.

        Raises:
            NotFound: nothing is unfinished.
            Refused: requests have moved and there was nothing before to go back to.
        """
        operation = self._unfinished()
        try:
            with self._ground.journal.writing(self._ground.by) as writer:
                outcome = self._back(writer, operation, f"{self._ground.by} asked for it")
                self._mend(writer)
                return outcome
        except Conflict as error:
            if "holder" not in error.facts:
                raise
            self._ground.journal.ask(operation.number, "abort", by=self._ground.by)
            return None

    def promote(self) -> Outcome | None:
        """End the bake early. If the release is under way in another process, ask that one to.

        Raises:
            NotFound: nothing is unfinished.
        """
        operation = self._unfinished()
        self._ground.journal.ask(operation.number, "promote", by=self._ground.by)
        try:
            with self._ground.journal.writing(self._ground.by) as writer:
                return self._go_on(writer, operation)
        except Conflict as error:
            if "holder" not in error.facts:
                raise
            return None  # whoever works on it sees the wish at its next look

    def plan_rollback(self, to: int | str | None = None, **choices: Any) -> Plan:
        """Decide how to go back.

        Args:
            to: The number of a release, or a bundle; None: what was live before.
            choices: Fields of `Options`.

        Raises:
            NotFound: there is nothing to go back to.
        """
        lives = self._ground.lives()
        if to is None:
            if len(lives) < 2:  # noqa: PLR2004 - the live one and the one before
                raise NotFound(f"{self.name}: nothing was live before what is live now")
            ref = lives[1].ref
        else:
            ref = self._ground.journal.operation(to).plan["ref"] if isinstance(to, int) else to
        version, world = self._ground.look(ref)
        kind: Kind = "rollback" if any(life.pin == version.pin for life in lives) else "release"
        return plan_for(version, world, Options(**choices), kind=kind)

    def rollback(self, to: int | str | None = None) -> Outcome:
        """Go back; an unfinished release is taken back first, and that is all unless `to` says otherwise.

        Raises:
            NotFound: there is nothing to go back to.
        """
        unfinished = self._ground.journal.unfinished()
        if unfinished is not None:
            with self._ground.journal.writing(self._ground.by) as writer:
                outcome = self._back(writer, unfinished, f"{self._ground.by} rolls back")
                self._mend(writer)
            if to is None:
                return outcome
        return self.run(self.plan_rollback(to))

    def status(self) -> Status:
        """Ask every place what it answers with right now."""
        return status(self._ground)

    def history(self, limit: int = -1) -> list[Record]:
        """List what was done here, the newest first."""
        return history(self._ground, limit)

    def watch(self) -> Mapping[str, Health]:
        """Return what every place's versions did since this was last asked; places that are away are left out."""
        seen: dict[str, Health] = {}
        for name, place in self._ground.places.items():
            try:
                seen[name] = place.watch()
            except Unavailable:
                continue
        return seen

    def _unfinished(self) -> Operation:
        operation = self._ground.journal.unfinished()
        if operation is None:
            raise NotFound(f"{self.name}: nothing is unfinished", hint="The history lists what there was.")
        return operation

    def _begin(self, writer: Writer, plan: Plan, version: Version) -> Outcome:
        if plan.lives != self._ground.lives():
            raise Conflict(f"{self.name} changed since this was planned", hint="Plan again.")
        known = [pin for pin in self._ground.journal.recall("known") or () if pin != plan.pin]
        writer.remember("known", [*known[-_KNOWN:], plan.pin])
        operation = writer.begin(plan.kind, plan.ref, plan=plan.to_json(), by=self._ground.by)
        return Run(self._ground, writer, operation.number, plan, version).forward()

    def _go_on(self, writer: Writer, operation: Operation) -> Outcome:
        why = self._why_back(operation)
        if why is not None:
            return Run(self._ground, writer, operation.number, Plan.from_json(operation.plan)).back(why)
        fresh, version = self._plan_on(operation)
        if fresh.refusals:
            reasons = "; ".join(refusal.what for refusal in fresh.refusals)
            raise Unfinished(
                f"{self.name}: {fresh.kind} {operation.number} cannot go on: {reasons}",
                hint="Mend that and resume, or abort.",
                number=operation.number,
                failed={},
            )
        writer.set_state(operation.number, "open")
        left = [step.id for step in fresh.steps]
        writer.record(operation.number, "resume", "note", by=self._ground.by, left=left)
        return Run(self._ground, writer, operation.number, fresh, version).forward()

    def _plan_on(self, operation: Operation) -> tuple[Plan, Version]:
        """Plan the rest of an operation anew, from what is there."""
        plan = Plan.from_json(operation.plan)
        version, world = self._ground.look(plan.ref, plan.shards)
        world = replace(world, lives=plan.lives)
        return plan_for(version, world, plan.options, kind=plan.kind, before=plan.before), version

    def _plan_rest(self, operation: Operation) -> Plan:
        """Plan how an operation ends, for people to read."""
        if self._why_back(operation) is not None:
            return self._plan_back(operation)
        is_committed = committed(self._ground.journal.last_words(operation.number))
        return _without(self._plan_on(operation)[0], *(("dense.canary", "bake") if is_committed else ()))

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
                f"{self.name}: requests have moved to {plan.title}, and nothing was live before",
                hint="Resume finishes it; release another bundle after that.",
                rules=["nothing-before"],
            )
        return plan

    def _why_back(self, operation: Operation) -> str | None:
        """Return why an operation is being taken back; None if it is not."""
        entries = self._ground.journal.entries(operation.number)
        return next((each.detail["why"] for each in entries if (each.step, each.what) == ("undo", "note")), None)

    def _mend(self, writer: Writer) -> None:
        """Bring back what a place lost while a release was under way; one that is away stays for the next resume."""
        with suppress(Refused):
            self._repair(writer)

    def _repair(self, writer: Writer) -> Outcome | None:
        found = self._plan_repair()
        if found is None:
            return None
        _check(found[0])
        return self._begin(writer, *found)

    def _plan_repair(self) -> tuple[Plan, Version] | None:
        lives = self._ground.lives()
        if not lives:
            return None
        version, world = self._ground.look(lives[0].ref)
        plan = plan_for(version, world, kind="repair")
        return None if plan.is_empty else (plan, version)


def _without(plan: Plan, *stages: str) -> Plan:
    return replace(plan, steps=tuple(step for step in plan.steps if step.stage not in stages))


def _check(plan: Plan) -> None:
    if plan.refusals:
        raise Refused(plan.summary(), hint="Nothing was touched.", rules=[refusal.rule for refusal in plan.refusals])
    if not plan.steps:
        why = " ".join(plan.warnings) or "There is nothing to do."
        raise InputError(f"{plan.title} is live on {plan.target} already, everywhere", hint=why)


def _whole(outcome: Outcome, plan: Plan) -> Outcome:
    if outcome.state != "done":
        raise ReleaseUndone(
            f"{plan.target}: {plan.title} was taken back: {outcome.why}",
            hint="Everything is as it was before.",
            number=outcome.number,
            why=outcome.why,
            done=outcome.done,
            undone=outcome.undone,
        )
    return outcome
