"""A target: the one object through which releases are planned, applied, resumed, taken back and watched."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cloudedge.errors import CloudEdgeError, Conflict, InputError, NotFound
from cloudedge.release.core import (
    ALLOWED,
    Driver,
    Health,
    Kind,
    Options,
    Outcome,
    Plan,
    Record,
    Status,
    Version,
    check,
    history,
    is_past_return,
    status,
    without,
    words,
)
from cloudedge.release.core import plan as plan_for
from cloudedge.release.target._release import Release
from cloudedge.release.target._target_kinds import build

if TYPE_CHECKING:
    from cloudedge.bundle import Bundle
    from cloudedge.config import Config

__all__ = ["Target"]


class Target(Driver):
    """A named place that can run a bundle.

    Example:
        >>> target = Target.load("prod")  # doctest: +SKIP
        >>> plan = target.plan("ctr:4")  # doctest: +SKIP
        >>> print(plan.summary())  # doctest: +SKIP
        >>> target.apply(plan).wait()  # doctest: +SKIP
    """

    @classmethod
    def load(cls, name: str, *, config: Config | None = None, tell: Callable[[str], None] = lambda _: None) -> Target:
        """Open a target that cloudedge.yaml names.

        Args:
            name: Its name.
            config: What to read instead of cloudedge.yaml.
            tell: Told, in words, what is waited for.

        Raises:
            ConfigError: there is none of that name, or its kind cannot be had here.
        """
        ground = build(name, config)
        ground.tell = tell
        return cls(ground)

    @property
    def name(self) -> str:
        """What cloudedge.yaml calls it."""
        return self._ground.name

    @property
    def unfinished(self) -> str | None:
        """What somebody has to finish or undo, in words."""
        operation = self._ground.journal.unfinished()
        return words(operation) if operation else None

    @property
    def unfinished_number(self) -> int | None:
        """The number of what somebody has to finish or undo."""
        operation = self._ground.journal.unfinished()
        return operation.number if operation else None

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
        check(plan)
        version = self._ground.shelf.version(plan.ref).cut(plan.shards)
        with self._ground.journal.writing(self._ground.by) as writer:
            begin = self._roll if plan.kind == "rollback" else self._begin
            return self._catch_up(writer, begin(writer, plan, version), plan.options.patience_s)

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
        return without(self._plan_rest(self._unfinished()), "bake")

    def resume(self) -> Outcome | None:
        """Finish what is unfinished, forward or back as the journal says; then bring places that lag to what is live.

        Places that do not answer are waited for. A release that has not moved requests needs them all; everything else
        goes on without them, as long as others stand in for them.

        Returns:
            What came of it; None if everything was as it should be.

        Raises:
            Conflict: somebody is at work on it.
            Unfinished: it still cannot be finished.
            Unavailable: nothing is left to do but at places that do not answer.
        """
        with self._ground.journal.writing(self._ground.by) as writer:
            operation = self._ground.journal.unfinished()
            if operation is None:
                return self._bring(writer, Options().patience_s)
            outcome = self._go_on(writer, operation)
            if outcome.state == "undone":
                self._mend(writer)
            return self._catch_up(writer, outcome, Plan.from_json(operation.plan).options.patience_s)

    def abort(self, *, expected: int | None = None) -> Outcome | None:
        """Take the unfinished release back. If it is under way in another process, ask that one to.

        Args:
            expected: The number of the release that is meant.

        Returns:
            What came of it; None if somebody else was asked.

        Raises:
            NotFound: nothing is unfinished.
            Conflict: it ended in the meantime, or is so far that it can only be rolled back once it is done.
            Refused: requests have moved and there was nothing before to go back to.
        """
        seen = self._unfinished(expected)
        try:
            with self._ground.journal.writing(self._ground.by) as writer:
                outcome = self._back(writer, self._still(seen), f"{self._ground.by} asked for it")
                self._mend(writer)
                return outcome
        except Conflict as error:
            if "holder" not in error.facts:
                raise
        if is_past_return(self._ground.journal.last_words(seen.number), Plan.from_json(seen.plan)):
            raise Conflict(
                f"{self.name}: requests have moved with {words(seen)}, too far to be taken back half way",
                hint=f"Once it is done: cloudedge rollback {self.name}",
            )
        self._ground.journal.ask(seen.number, "abort", by=self._ground.by)
        return None

    def promote(self) -> Outcome | None:
        """End the bake early. If the release is under way in another process, ask that one to.

        Raises:
            NotFound: nothing is unfinished.
            Conflict: it ended in the meantime.
        """
        seen = self._unfinished()
        self._ground.journal.ask(seen.number, "promote", by=self._ground.by)
        try:
            with self._ground.journal.writing(self._ground.by) as writer:
                return self._go_on(writer, self._still(seen))
        except Conflict as error:
            if "holder" not in error.facts:
                raise
            return None  # whoever works on it sees the wish at its next look

    def plan_rollback(self, to: int | str | None = None, *, patient: bool = False, **choices: Any) -> Plan:
        """Decide how to go back.

        Args:
            to: The number of a release, or a bundle; None: what was live before.
            patient: Wait for places that do not answer and that nothing stands in for.
            choices: Fields of `Options`.

        Raises:
            NotFound: there is nothing to go back to.
            InputError: that was never live here.
        """
        lives = self._ground.lives()
        if to is None and len(lives) < 2:  # noqa: PLR2004 - the live one and the one before
            raise NotFound(f"{self.name}: nothing was live before what is live now")
        ref = lives[1].ref if to is None else self._ref_of(to) if isinstance(to, int) else to
        options = replace(ALLOWED, **choices)

        def look() -> tuple[Plan, Version]:
            version, world = self._ground.look(ref)
            kind: Kind = "rollback" if any(life.pin == version.pin for life in lives) else "release"
            if kind == "release" and not self._was_live(version.pin):
                raise InputError(
                    f"{version} was never live on {self.name}",
                    hint=f"Release it: cloudedge release {version.name}:{version.label} --to {self.name}",
                )
            return plan_for(version, world, options, kind=kind), version

        return self._patiently(look, options.patience_s if patient else 0.0)[0]

    def rollback(self, to: int | str | None = None, *, expected: int | None = None) -> Outcome:
        """Go back; an unfinished release is taken back first, and that is all unless `to` says otherwise.

        Args:
            to: See `plan_rollback`.
            expected: The number of the unfinished release that is meant to be taken back.

        Raises:
            NotFound: there is nothing to go back to.
            Conflict: what was unfinished ended in the meantime, otherwise than done.
        """
        seen = self._ground.journal.unfinished() if expected is None else self._ground.journal.operation(expected)
        if seen is not None:
            with self._ground.journal.writing(self._ground.by) as writer:
                ended = self._ground.journal.operation(seen.number)
                if ended.is_open:
                    outcome = self._back(writer, ended, f"{self._ground.by} rolls back")
                    self._mend(writer)
                    if to is None:
                        return outcome
                elif ended.state != "done":
                    self._still(seen)
        return self.run(self.plan_rollback(to, patient=True))

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
            except CloudEdgeError:
                continue
        return seen

    def _ref_of(self, number: int) -> str:
        operation = self._ground.journal.operation(number)
        if operation.state != "done":
            raise InputError(
                f"{self.name}: {words(operation)} was never live: it is {operation.state}",
                hint=f"The history lists what was: cloudedge history {self.name}",
            )
        ref: str = operation.plan["ref"]
        return ref

    def _was_live(self, pin: str) -> bool:
        return any(each.state == "done" and each.plan["pin"] == pin for each in self._ground.journal.operations())
