"""Promises about the journal of a simulated release, checked at every entry that cloudedge writes.

- A step is written as done once its place has carried it out, and not before.
- Before the commit point, a step that failed ends its run: no later stage begins.
- `settle` is done when every place that answered it answers with the version.
- A canary that answers nonsense, to enough requests that reached cloudedge's counts, does not pass its bake.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from cloudedge.release import Health
from cloudedge.release.core import STAGES

if TYPE_CHECKING:
    from cloudedge.testing._simulated_world import SimulatedWorld

__all__ = ["JournalPromises"]

_ENOUGH = 3
"""The requests of each version after which a canary is judged; the scenario's `Limits.min_requests`."""
_COMMITS = ("dense.switch", "sparse.switch")
"""The commit point, stated again: the judge does not ask the accused."""
_TEMPTING = 0.2
_AT_PLACES = ("load", "activate", "unload")


class JournalPromises:
    """The judge of what is written into a simulated journal."""

    def __init__(self, world: SimulatedWorld) -> None:
        self._world = world
        self.begin()

    def begin(self) -> None:
        """Begin a new operation."""
        self.gated = ""
        """The version that passes the gate and is about to answer."""
        self._is_committed = False
        self._failed = ""
        self._orders: dict[str, int] = {}
        self._settle_at = 0
        self._watches: dict[str, bool] = {}
        self._seen: dict[str, int] = {}

    def check(self, number: int, step: str, what: str, detail: str) -> None:
        """Check an entry."""
        stage, _, where = step.partition(":")
        if what in ("intent", "undo"):
            self._orders[step] = number
            self._intended(stage, step, detail, is_back=what == "undo")
        elif what == "failed":
            self._failed = self._failed or step
        elif what in ("done", "undone"):
            if what == "done":
                self._tempt(stage, where)
            if STAGES[stage] in _AT_PLACES:
                self._check_obeyed(step, where.partition("@")[0])
            elif stage == "settle":
                self._check_settled()
            elif stage == "bake":
                self._check_canary()
        elif step in ("resume", "undo"):  # notes: another run of the same operation begins
            self._failed, self.gated = "", ""

    def watched(self, place: str, health: Health) -> None:
        """Count the traffic that a look at a serving replica reported; the first look of a bake begins the count."""
        if place in self._watches:
            for pin, traffic in health.traffic.items():
                self._seen[pin] = self._seen.get(pin, 0) + traffic.scores
        self._watches[place] = True

    def _intended(self, stage: str, step: str, detail: str, *, is_back: bool) -> None:
        if is_back:
            return
        if self._failed and not self._is_committed and self._failed.partition(":")[0] != stage:
            self._world.broken("unexplained", f"{step} was begun although {self._failed} had failed")
        self._is_committed = self._is_committed or stage in _COMMITS
        if stage == "gate":
            self.gated = json.loads(detail)["pin"]
        elif stage == "settle":
            self._settle_at = self._world.points
        elif stage == "bake":
            self._watches, self._seen = {}, {}

    def _tempt(self, stage: str, name: str) -> None:
        """Perhaps let a place lose what it just promised, when that matters most: before gate and settle."""
        world = self._world
        if world.rng.random() >= _TEMPTING:
            return
        if STAGES[stage] == "verify":  # rows that were there a moment ago
            shards = [place for place in world.places.values() if place.leg == "sparse"]
            if shards:
                world.rng.choice(shards).lose()
        elif stage in _COMMITS and name in world.places:
            world.places[name].go_back()

    def _check_obeyed(self, step: str, name: str) -> None:
        place = self._world.places.get(name)
        if place is not None and self._orders[step] not in place.obeyed:
            self._world.broken("unexplained", f"the journal has {step} as done, and {name} never did it")

    def _check_settled(self) -> None:
        plan = self._plan()
        if plan is None:
            return
        for place in self._world.places.values():
            if place.reported is None or place.reported[0] <= self._settle_at:
                continue
            seen = place.reported[1]
            if seen.leg == "sparse" and plan["shards"].get(seen.table) != seen.shards:
                continue
            if dict(seen.active) != {plan["pin"]: 1.0}:
                what = f"everything settled on {plan['pin']}, and {seen.name} reported {dict(seen.active)}"
                self._world.broken("unexplained", what)

    def _check_canary(self) -> None:
        world, plan = self._world, self._plan()
        if world.clients is None or world.journal is None or plan is None or not plan["lives"]:
            return
        pin, live = plan["pin"], plan["lives"][0]["pin"]
        is_bad = pin in world.clients.scores and live not in world.clients.scores
        unfinished = world.journal.unfinished()
        is_promoted = unfinished is not None and bool(world.journal.wishes(unfinished.number))
        if is_bad and not is_promoted and min(self._seen.get(each, 0) for each in (pin, live)) >= _ENOUGH:
            world.broken("bad canary", f"{pin} answered nonsense, was seen {self._seen} times, and passed")

    def _plan(self) -> Any:
        unfinished = self._world.journal.unfinished() if self._world.journal is not None else None
        return unfinished.plan if unfinished is not None else None
