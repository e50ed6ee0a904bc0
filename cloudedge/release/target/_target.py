"""Targets: the object through which a program plans, applies, resumes, takes back and watches releases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

from cloudedge.errors import CloudEdgeError, Conflict, InputError, NotFound
from cloudedge.release.core import (
    ALLOWED,
    Adoption,
    Health,
    Kind,
    Operations,
    Options,
    Outcome,
    Plan,
    Record,
    ReleaseContext,
    Status,
    Version,
    describe,
    history,
    is_past_return,
    require_feasible,
    status,
    without,
)
from cloudedge.release.core import plan as plan_for
from cloudedge.release.target._release import Release
from cloudedge.release.target._target_kinds import build

if TYPE_CHECKING:
    from cloudedge.bundle import Bundle
    from cloudedge.config import Config
    from cloudedge.journal import Operation

__all__ = ["Target"]


class Target:
    """A named set of places that runs one bundle at a time.

    Example:
        >>> target = Target.load("prod")  # doctest: +SKIP
        >>> plan = target.plan("ctr:4")  # doctest: +SKIP
        >>> print(plan.summary())  # doctest: +SKIP
        >>> target.apply(plan).wait()  # doctest: +SKIP

    Args:
        context: Its places, journal, bundles and clock.
    """

    def __init__(self, context: ReleaseContext) -> None:
        self._context = context
        self._operations = Operations(context)

    @classmethod
    def load(cls, name: str, *, config: Config | None = None, tell: Callable[[str], None] = lambda _: None) -> Target:
        """Open a target that cloudedge.yaml names.

        Args:
            name: Its name.
            config: What to read instead of cloudedge.yaml.
            tell: Called with a sentence when the target begins to wait for something.

        Raises:
            ConfigError: there is no target of that name, or its kind is unknown here.
        """
        context = build(name, config)
        context.tell = tell
        return cls(context)

    @property
    def name(self) -> str:
        """Its name in cloudedge.yaml."""
        return self._context.name

    @property
    def unfinished(self) -> str | None:
        """The unfinished operation in words; None if there is none."""
        operation = self._context.journal.unfinished()
        return describe(operation) if operation else None

    @property
    def unfinished_number(self) -> int | None:
        """The number of the unfinished operation; None if there is none."""
        operation = self._context.journal.unfinished()
        return operation.number if operation else None

    def plan(self, bundle: Bundle | Version | str, options: Options | None = None, **choices: Any) -> Plan:
        """Plan the release of a bundle; nothing on the target changes.

        Args:
            bundle: The bundle, or a reference such as `ctr:4`.
            options: All options; or give single fields of `Options` by name.
            choices: Fields of `Options`, such as `canary=0.05, bake_s=600`.
        """
        ref = bundle if isinstance(bundle, str) else f"{bundle.name}@{bundle.digest}"
        return plan_for(*self._context.look(ref), options or Options(**choices))

    def apply(self, plan: Plan) -> Release:
        """Begin a release in a thread; `Release.wait` waits for it."""
        return Release(self, plan)

    def run(self, plan: Plan) -> Outcome:
        """Carry out a plan in the calling thread.

        Raises:
            Refused: the plan cannot work, and names the reasons.
            Conflict: another release is under way or unfinished, or the plan is out of date.
            Unfinished: it stopped half way.
            StorageError: the journal cannot be written; everything that was begun is in it.
        """
        require_feasible(plan)
        version = self._context.bundles.version(plan.ref).cut(plan.shards)
        with self._context.journal.writing(self._context.by) as writer:
            begin = self._operations.roll_back if plan.kind == "rollback" else self._operations.begin
            return self._operations.catch_up(writer, begin(writer, plan, version), plan.options.patience_s)

    def plan_resume(self) -> Plan | None:
        """Plan what `resume` would do, forward or back; None if everything is as it should be. Nothing changes."""
        operation = self._context.journal.unfinished()
        if operation is None:
            found = self._operations.plan_repair()
            return found[0] if found else None
        return self._operations.plan_rest(operation)

    def plan_abort(self) -> Plan:
        """Plan what `abort` would do. Nothing changes.

        Raises:
            NotFound: nothing is unfinished.
            Refused: requests have moved and there was nothing before to go back to.
        """
        return self._operations.plan_back(self._operations.unfinished())

    def plan_promote(self) -> Plan:
        """Plan what `promote` would do: the rest without the watch over the canary. Nothing changes.

        Raises:
            NotFound: nothing is unfinished.
        """
        return without(self._operations.plan_rest(self._operations.unfinished()), "bake")

    def resume(self) -> Outcome | None:
        """Finish the unfinished operation, forward or back as the journal says; then bring places that lag up to date.

        It waits for places that do not answer. A release that has not moved requests needs them all; everything else
        goes on without them, as long as others answer for them.

        Returns:
            The outcome; None if everything was as it should be.

        Raises:
            Conflict: another process is at work on it.
            Unfinished: it still cannot be finished.
            Unavailable: only places that do not answer are left.
        """
        with self._context.journal.writing(self._context.by) as writer:
            operation = self._context.journal.unfinished()
            if operation is None:
                return self._operations.bring_up_to_date(writer, Options().patience_s)
            outcome = self._operations.resume(writer, operation)
            if outcome.state == "undone":
                self._operations.repair(writer)
            return self._operations.catch_up(writer, outcome, Plan.from_json(operation.plan).options.patience_s)

    def abort(self, *, expected: int | None = None) -> Outcome | None:
        """Take the unfinished release back. If another process runs it, ask that process to.

        Args:
            expected: The number of the release that is meant.

        Returns:
            The outcome; None if another process was asked.

        Raises:
            NotFound: nothing is unfinished.
            Conflict: it ended in the meantime, or is so far that it can only be rolled back once it is done.
            Refused: requests have moved and there was nothing before to go back to.
        """
        seen = self._operations.unfinished(expected)
        try:
            with self._context.journal.writing(self._context.by) as writer:
                outcome = self._operations.take_back(
                    writer, self._operations.still_open(seen), f"{self._context.by} asked for it"
                )
                self._operations.repair(writer)
                return outcome
        except Conflict as error:
            if "holder" not in error.facts:
                raise
        if is_past_return(self._context.journal.last_words(seen.number), Plan.from_json(seen.plan)):
            raise Conflict(
                f"{self.name}: requests have moved with {describe(seen)}, too far to be taken back half way",
                hint=f"Once it is done, run `cloudedge rollback {self.name}`.",
            )
        self._context.journal.ask(seen.number, "abort", by=self._context.by)
        return None

    def promote(self) -> Outcome | None:
        """End the watch over the canary early. If another process runs the release, ask that process to.

        Raises:
            NotFound: nothing is unfinished.
            Conflict: it ended in the meantime.
        """
        seen = self._operations.unfinished()
        self._context.journal.ask(seen.number, "promote", by=self._context.by)
        try:
            with self._context.journal.writing(self._context.by) as writer:
                return self._operations.resume(writer, self._operations.still_open(seen))
        except Conflict as error:
            if "holder" not in error.facts:
                raise
            return None  # the process that works on it sees the wish at its next look

    def plan_rollback(self, to: int | str | None = None, *, patient: bool = False, **choices: Any) -> Plan:
        """Plan a rollback.

        Args:
            to: The number of a release, or a bundle; None: what was live before.
            patient: Wait for places that do not answer and that no other place answers for.
            choices: Fields of `Options`.

        Raises:
            NotFound: there is nothing to go back to.
            InputError: that was never live here.
        """
        lives = self._context.lives()
        if to is None and len(lives) < 2:  # noqa: PLR2004 - the live one and the one before
            self._operations.require_journal()
            raise NotFound(f"{self.name}: nothing was live before what is live now")
        ref = lives[1].ref if to is None else self._ref_of(to) if isinstance(to, int) else to
        options = replace(ALLOWED, **choices)

        def look() -> tuple[Plan, Version]:
            version, world = self._context.look(ref)
            kind: Kind = "rollback" if any(life.pin == version.pin for life in lives) else "release"
            if kind == "release" and not self._was_live(version.pin):
                raise InputError(
                    f"{version} was never live on {self.name}",
                    hint=f"Release it with `cloudedge release {version.name}:{version.label} --to {self.name}`.",
                )
            return plan_for(version, world, options, kind=kind), version

        return self._operations.patiently(look, options.patience_s if patient else 0.0)[0]

    def rollback(self, to: int | str | None = None, *, expected: int | None = None) -> Outcome:
        """Roll back. An unfinished release is taken back first, and that is all unless `to` names a version.

        Args:
            to: See `plan_rollback`.
            expected: The number of the unfinished release that is meant to be taken back.

        Raises:
            NotFound: there is nothing to go back to.
            Conflict: the unfinished operation ended in the meantime, and not with success.
        """
        seen = self._context.journal.unfinished() if expected is None else self._context.journal.operation(expected)
        if seen is not None:
            outcome = self._taken_back(seen)
            if outcome is not None and to is None:
                return outcome
        return self.run(self.plan_rollback(to, patient=True))

    def _taken_back(self, seen: Operation) -> Outcome | None:
        """Take an operation back; one that another process carries out, by asking that process.

        Returns:
            The outcome; None if it came to its end first: then there is something to roll back.

        Raises:
            Conflict: another process still works on it when patience ends, or it was taken back before.
        """
        end = self._context.clock.monotonic() + Options().patience_s
        asked = False
        for round_ in count():
            try:
                with self._context.journal.writing(self._context.by) as writer:
                    ended = self._context.journal.operation(seen.number)
                    if ended.is_open:
                        outcome = self._operations.take_back(writer, ended, f"{self._context.by} rolls back")
                        self._operations.repair(writer)
                        return outcome
                    if ended.state == "undone" and asked:
                        return Outcome(ended.number, "undone", **ended.outcome)
                    if ended.state != "done":
                        self._operations.still_open(seen)
                    return None
            except Conflict as error:
                if "holder" not in error.facts or self._context.clock.monotonic() >= end:
                    raise
                holder = error.facts["holder"]
            if not asked:
                self._context.journal.ask(seen.number, "abort", by=self._context.by)
                asked = True
            self._context.pause(round_, f"{holder} carries out {describe(seen)} and was asked to take it back; waiting")
        raise AssertionError  # counting does not end

    def plan_adoption(self, live: str = "") -> Adoption:
        """Conclude from the places and the hub's tags what the journal has to contain. Nothing changes.

        Args:
            live: The pin that is live, where places disagree and the operator decides.
        """
        return self._operations.plan_adoption(live)

    def adopt(self, adoption: Adoption | None = None) -> Adoption:
        """Write into the journal what the places answer with, after it was lost or repaired. No place is touched.

        Afterwards `status` is true again, orders continue above those that places have seen, and `rollback` leads to
        what places still hold. An unfinished operation of the journal ends as failed; a resume brings its places to
        what is live.

        Args:
            adoption: What `plan_adoption` returned; planned again if left out.

        Raises:
            Refused: nothing decides which version is live.
            Conflict: another process is at work on the target.
        """
        with self._context.journal.writing(self._context.by) as writer:
            chosen = adoption or self._operations.plan_adoption()
            self._operations.adopt(writer, chosen)
        return chosen

    def status(self) -> Status:
        """Ask every place which version it answers with now."""
        return status(self._context)

    def history(self, limit: int = -1) -> list[Record]:
        """List the operations of this target, the newest first."""
        return history(self._context, limit)

    def watch(self) -> Mapping[str, Health]:
        """Return each place's traffic by version since the last call, without places that do not answer."""
        seen: dict[str, Health] = {}
        for name, place in self._context.places.items():
            try:
                seen[name] = place.watch()
            except CloudEdgeError:
                continue
        return seen

    def _ref_of(self, number: int) -> str:
        operation = self._context.journal.operation(number)
        if operation.state != "done":
            raise InputError(
                f"{self.name}: {describe(operation)} was never live: it is {operation.state}",
                hint=f"See what was live with `cloudedge history {self.name}`.",
            )
        ref: str = operation.plan["ref"]
        return ref

    def _was_live(self, pin: str) -> bool:
        return any(each.state == "done" and each.plan["pin"] == pin for each in self._context.journal.operations())
