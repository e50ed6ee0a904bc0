"""Execution of a plan: write the intent into the journal, do one idempotent step, write the outcome; and the way back.

The commit point is the intent to move the first pointer for good (`COMMIT_STAGES`). Before it, a step that fails, a
canary that breaks a limit or an operator's abort takes everything back. After it a release goes forward only, unless an
operator asks to go back before it is marked as live: a step that fails leaves it unfinished with both versions loaded.
Memory holds nothing that the journal and the places could not supply again, so any process can continue.

The way back ends with every place on what was live. It waits for places that do not answer, and then leaves them with
the rows of both versions loaded, so that either version they answer with is whole. A later resume brings them along.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import count, groupby, islice
from typing import Any, Literal

from cloudedge.errors import CloudEdgeError, Conflict, NotFound, StorageError
from cloudedge.io import Backoff, retry
from cloudedge.journal import What, Writer
from cloudedge.release.core._canary import Breach, Paused, watch_canary
from cloudedge.release.core._context import ReleaseContext
from cloudedge.release.core._errors import Refused, Unfinished
from cloudedge.release.core._plan import plan as plan_for
from cloudedge.release.core._plan import plan_undo, same_shares
from cloudedge.release.core._steps import COMMIT_STAGES, TIDY_STAGES, Life, Plan, Stage, Step
from cloudedge.release.core._table_layouts import takes
from cloudedge.release.core._version import Version

__all__ = ["Outcome", "Run", "committed", "is_past_return", "lives_after"]

_BACKOFF = Backoff(0.4, 5.0, 0.5, 1.5)
_LIVES = 50
"""How many releases a plain rollback can go back, one after the other; an older one is named by its number."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of an operation."""

    number: int
    state: Literal["done", "undone"]
    """`done`, or `undone`: everything is as it was."""
    pin: str
    why: str = ""
    bytes: int = 0
    seconds: float = 0.0
    done: tuple[str, ...] = ()
    undone: tuple[str, ...] = ()
    owed: Mapping[str, str] = field(default_factory=dict)
    """Steps that tidy up and failed, and why; the next release does them."""
    away: Mapping[str, str] = field(default_factory=dict)
    """Places that did not answer, and why; a resume brings them to what is live."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return dict(vars(self))


class Run:
    """One operation, carried out by the process that holds the journal's lock.

    Args:
        context: The target's places, journal, bundles and clock.
        writer: The right to write the journal.
        number: The operation's number.
        plan: Its plan; after a resume, one made from what the places have now.
        version: The version with its bytes; not needed to go back.
    """

    def __init__(
        self, context: ReleaseContext, writer: Writer, number: int, plan: Plan, version: Version | None = None
    ) -> None:
        self._context = context
        self._writer = writer
        self._number = number
        self._plan = plan
        self._version = version
        self._began = context.clock.monotonic()
        self.is_committed = committed(context.journal.last_words(number))

    def forward(self) -> Outcome:
        """Carry out the plan, or take it back.

        Raises:
            Unfinished: it stopped half way; the hint names the ways on.
            StorageError: the journal cannot be written, so nothing more was begun.
        """
        owed: dict[str, str] = {}
        for stage, steps in self._stages():
            if self.is_committed and stage in ("dense.canary", "bake"):
                continue
            asked = self.asked_back
            if asked and not self.is_too_late(stage):
                return self.back(f"{asked} asked for it")
            self.is_committed = self.is_committed or stage in COMMIT_STAGES
            try:
                failed = self._do(steps)
            except Breach as breach:
                return self.back(str(breach))
            except Paused as paused:
                self._writer.set_state(self._number, "paused", why=str(paused))
                raise self._stopped(
                    {"bake": str(paused)},
                    "Its canary stays. Run `cloudedge promote`, `cloudedge resume` or `cloudedge abort`.",
                ) from None
            if failed and stage in TIDY_STAGES:
                owed |= failed
                self._drain(stage, failed)
            elif failed and self.is_committed:
                raise self._stopped(
                    failed, "Both versions stay loaded. Go on with `cloudedge resume`, or back with `cloudedge abort`."
                )
            elif failed:
                return self.back("; ".join(f"{step}: {why}" for step, why in failed.items()))
        why = f"{self.asked_back} asked to take it back when it was too late" if self.asked_back else ""
        return self._end("done", why=why, owed=owed, away=self._plan.away)

    def _stages(self) -> Iterator[tuple[Stage, list[Step]]]:
        """Yield the plan's stages; the first one fetches, and the fetched bytes may change the others."""
        for first in islice(self._plan.stages(), 1):
            yield first
            yield from (later for later in self._plan.stages() if later[0] != first[0])

    @property
    def asked_back(self) -> str:
        """The operator who asked to take it back; empty if none did."""
        return next((w.by for w in self._context.journal.wishes(self._number) if w.what == "abort"), "")

    def is_too_late(self, stage: str = "") -> bool:
        """Tell whether it can no longer be taken back, only rolled back once it is done."""
        steps = set(self._context.journal.last_words(self._number))
        return is_past_return({*steps, stage} if stage else steps, self._plan)

    def back(self, why: str) -> Outcome:
        """Take everything back, in an order that leaves rows loaded until their last reader is gone.

        Raises:
            Unfinished: a pointer could not be moved back at a place that answers; nothing was unloaded.
        """
        self._writer.record(self._number, "undo", "note", why=why)
        end = self._context.clock.monotonic() + self._plan.options.patience_s
        left: dict[str, str] = {}
        for round_ in count():
            owed: dict[str, str] = {}
            failed = self._walk_back(left, owed)
            if not failed:
                return self._end("undone", why=why, owed=owed, away={**self._plan.away, **left})
            if self._context.clock.monotonic() < end:
                self._context.pause(round_, f"to take {self._plan.title} back, waiting for {', '.join(failed)}")
                continue
            away = {place.name: place.error for place in self._context.observe() if not place.is_reachable}
            places = [step.partition(":")[2] for step in failed]
            if left.keys() >= set(places) or not away.keys() >= set(places):
                raise self._stopped(failed, "It is being taken back. Continue with `cloudedge resume`.")
            left |= {name: away[name] for name in places}
        raise AssertionError  # counting does not end

    def _walk_back(self, left: Mapping[str, str], owed: dict[str, str]) -> dict[str, str]:
        """Go back at all places but the ones that are left; return the steps whose pointer did not move."""
        places, touched = self._context.observe(), set(self._context.journal.last_words(self._number))
        # A replica that is left may still answer with the undone version, and reads its rows.
        may_read = any(place.name in left and place.leg == "dense" for place in places)
        for steps in plan_undo(self._plan, places, touched):
            mine = [step for step in steps if step.place not in left]
            if steps[0].stage == "sparse.forget" and may_read:
                owed |= {step.id: f"{', '.join(left)} may still read these rows" for step in steps}
                continue
            if left and any(step.pin and step.shares == {} for step in mine):
                return {step.id: "it lost what was live, and the places that have it do not answer" for step in mine}
            failed = self._do(mine, undo=True)
            if failed and steps[0].action != "unload":
                return failed
            owed |= failed
            self._drain(steps[0].stage, failed)
        return {}

    def _do(self, steps: Sequence[Step], *, undo: bool = False) -> dict[str, str]:
        """Carry out the steps of a stage: places in parallel, the steps of one place in order; return what failed."""
        failed: dict[str, str] = {}
        by_place = [list(group) for _, group in groupby(sorted(steps, key=lambda s: s.place), key=lambda s: s.place)]
        calls = [partial(self._one_place, mine, failed, undo=undo) for mine in by_place]
        self._context.runner(calls, self._plan.options.jobs)
        return failed

    def _one_place(self, steps: Sequence[Step], failed: dict[str, str], *, undo: bool) -> None:
        """Carry out the steps of one place, each as often as trying again can help, between two journal entries.

        This layer owns the retries of a release, except for those that a delivery to cube servers owns.
        """
        words: tuple[What, What] = ("undo", "undone") if undo else ("intent", "done")
        for step in steps:
            facts = {"pin": step.pin} | ({"shares": dict(step.shares)} if step.shares is not None else {})
            order = self._writer.record(self._number, step.id, words[0], **facts)
            try:
                detail = retry(
                    partial(self._act, step, order, undo=undo),
                    attempts=self._plan.options.attempts,
                    backoff=_BACKOFF,
                    clock=self._context.clock,
                    may_repeat=_may_repeat,
                )
            except (Breach, Paused) as stop:
                self._writer.record(self._number, step.id, "failed", why=str(stop))
                raise
            except StorageError as error:
                if error.facts.get("path") == str(self._context.journal.path):
                    raise  # what cannot be written down must not be done
                failed[step.id] = self._failed(step, error)
            except Exception as error:  # noqa: BLE001 - any error of a place takes the release back
                failed[step.id] = self._failed(step, error)
            else:
                self._writer.record(self._number, step.id, words[1], **detail)

    def _failed(self, step: Step, error: Exception) -> str:
        why = error.message if isinstance(error, CloudEdgeError) else f"{type(error).__name__}: {error}"
        self._writer.record(self._number, step.id, "failed", why=why)
        return why

    def _act(self, step: Step, order: int, *, undo: bool) -> dict[str, Any]:
        if step.place:
            return self._at_place(step, order)
        if step.action == "fetch":
            return {"bytes": self._fetch()}
        if step.action in ("gate", "settle"):
            self._confirm(answering=step.action == "settle")
        elif step.action == "bake":
            return watch_canary(self._context, self._writer, self._number, self._plan)
        elif step.action == "tag":
            self._tag(self._plan.lives if undo else lives_after(self._plan), undo=undo)
        elif step.action == "retire":
            self._context.retire()
        return {}

    def _fetch(self) -> int:
        fetched = self._context.bundles.fetch(self._wanted)
        self._set_tags({"next": self._plan.ref})
        if self._plan.away and self._plan.lives:
            self._keep_for(self._plan.away, self._plan.lives[0].ref)
        if any(step.action == "verify" for step in self._plan.steps):  # else every place has it and verified it
            self._context.bundles.verify(self._wanted)
        self._look_again()
        return fetched

    def _look_again(self) -> None:
        """Plan the rest again with the fetched bytes: they decide what each shard gets and each place needs.

        Raises:
            Refused: the version does not fit; no place was touched.
        """
        if not self._wanted.missing_bytes:
            return
        planned = self._plan
        self._version, world = self._context.look(planned.ref, planned.shards)
        world = replace(world, lives=planned.lives)
        fresh = plan_for(self._version, world, planned.options, kind=planned.kind, leave_away=bool(planned.away))
        reasons = [refusal.what for refusal in fresh.refusals if refusal.rule != "unreachable"]
        if reasons:
            raise Refused("; ".join(reasons), rules=[refusal.rule for refusal in fresh.refusals])
        if fresh.steps:  # else a place does not answer just now, and its step waits for it
            self._plan = replace(planned, steps=fresh.steps)

    def _at_place(self, step: Step, order: int) -> dict[str, Any]:
        place = self._context.places[step.place]
        if step.action == "load":
            return asdict(place.load(self._wanted, order=order))
        if step.action == "verify":
            place.verify(self._wanted)
        elif step.action == "activate":
            place.activate(step.shares or {}, order=order)
        else:
            place.unload(step.pin, order=order)
        return {}

    @property
    def _wanted(self) -> Version:
        if self._version is None:
            raise Conflict(f"the bytes of {self._plan.ref} are not here")
        return self._version

    def _confirm(self, *, answering: bool) -> None:
        """Ask every place again: servers restart while a release goes on.

        Raises:
            Conflict: a place does not have the version, or does not answer with it.
        """
        pin, moved = self._plan.pin, {step.place for step in self._plan.steps if step.pin == self._plan.pin}
        for place in self._context.observe():
            # A place that does not answer cannot say what it holds; the plan knows whether it had a part.
            if not (takes(place, self._wanted) if place.is_reachable else place.name in moved):
                continue
            if not place.has(pin):
                raise Conflict(f"{place.name} {'does not answer' if place.error else 'lost ' + pin}: {place.error}")
            if answering and not same_shares(place.active, {pin: 1.0}):
                raise Conflict(f"{place.name} answers with {dict(place.active) or 'nothing'}")

    def _tag(self, lives: Sequence[Life], *, undo: bool) -> None:
        """Tag what is live and what was, one tag at a time.

        The order keeps every bundle under at least one tag in between: going forward, a tag takes over from the one
        before it (`next` holds what becomes live); going back, `live` takes over from `previous`.
        """
        marked: int = self._context.journal.recall("retained") or 1
        # Only a release decides how many versions are kept; tags beyond that must not keep a bundle for ever.
        retain = self._plan.options.retain if self._plan.kind == "release" and not undo else marked
        roles = ["live", "previous", *(f"previous-{back}" for back in range(2, max(retain, marked) + 1))]
        kept = lives[: retain + 1]
        wanted = {role: kept[back].ref if back < len(kept) else None for back, role in enumerate(roles)}
        for role in roles if undo else reversed(roles):
            self._mark(role, wanted[role])
        if lives:
            self._context.layouts.publish(lives[0].shards)
        if retain != marked:
            self._writer.remember("retained", retain)
        self._writer.remember("lives", [asdict(life) for life in lives])

    def _mark(self, role: str, ref: str | None) -> None:
        try:
            self._set_tags({role: ref})
        except NotFound:
            if role == "live":
                raise
            self._set_tags({role: None})  # it was collected long ago, when more recent ones stood between

    def _set_tags(self, roles: Mapping[str, str | None]) -> str | None:
        return self._context.mark(roles, self._writer)

    def _drain(self, stage: str, failed: Mapping[str, str]) -> None:
        # A replica that did not answer may still have requests that read these rows.
        if failed and not stage.startswith("sparse"):
            self._context.clock.sleep(self._plan.options.drain_s)

    def _stopped(self, failed: Mapping[str, str], hint: str) -> Unfinished:
        lines = "; ".join(f"{step}: {why}" for step, why in failed.items())
        return Unfinished(
            f"{self._context.name}: {self._plan.kind} {self._number} of {self._plan.title} stopped: {lines}",
            hint=hint,
            number=self._number,
            failed=dict(failed),
        )

    def _keep_for(self, away: Mapping[str, str], ref: str) -> None:
        """Keep from collection what unreachable places may still answer with, until every one was seen again."""
        before: list[str] = self._context.journal.recall("behind") or []
        kept = list(dict.fromkeys([*before, ref])) if away else []
        for number in range(max(len(before), len(kept))):
            self._mark(f"behind-{number + 1}", kept[number] if number < len(kept) else None)
        if kept != before:
            self._writer.remember("behind", kept)

    def _end(
        self,
        state: Literal["done", "undone"],
        *,
        why: str = "",
        owed: Mapping[str, str],
        away: Mapping[str, str] | None = None,
    ) -> Outcome:
        self._keep_for(away or {}, self._plan.ref)
        missed = self._set_tags({"next": None})  # only now: what is live and what was have tags of their own
        owed = {**owed, **({"tag": f"the target's hub missed it: {missed}"} if missed else {})}
        entries = self._context.journal.entries(self._number)
        outcome = Outcome(
            number=self._number,
            state=state,
            pin=self._plan.pin,
            why=why,
            bytes=sum(entry.detail.get("bytes", 0) for entry in entries if entry.what == "done"),
            seconds=round(self._context.clock.monotonic() - self._began, 3),
            done=tuple(dict.fromkeys(entry.step for entry in entries if entry.what == "done")),
            undone=tuple(dict.fromkeys(entry.step for entry in entries if entry.what == "undone")),
            owed=dict(owed),
            away=dict(away or {}),
        )
        facts = {key: value for key, value in outcome.to_json().items() if key not in ("number", "state")}
        self._writer.set_state(self._number, state, **facts)
        return outcome


def committed(steps: Collection[str]) -> bool:
    """Tell whether steps that were at least intended passed the commit point."""
    return any(step.split(":")[0] in COMMIT_STAGES for step in steps)


def is_past_return(steps: Collection[str], plan: Plan) -> bool:
    """Tell whether an abort comes too late after steps that were at least intended.

    Once the version is marked as live, going back is a rollback; where nothing was live before, there is no way back.
    """
    is_marked = any(step == "tag" or step.split(":")[0] in TIDY_STAGES for step in steps)
    return committed(steps) and (is_marked or not plan.lives)


def lives_after(plan: Plan) -> tuple[Life, ...]:
    """Return what is live and what was, after a plan: a release is put on top, a rollback takes versions off."""
    life = Life(plan.pin, plan.ref, plan.title, plan.shards)
    pins = [each.pin for each in plan.lives]
    if plan.kind == "rollback" and plan.pin in pins:
        return plan.lives[pins.index(plan.pin) :]
    after = (life, *(each for each in plan.lives if each.pin != plan.pin))
    return after[: max(_LIVES, plan.options.retain + 1)]


def _may_repeat(error: Exception) -> bool:
    return isinstance(error, CloudEdgeError) and error.retry_helps and not error.was_repeated
