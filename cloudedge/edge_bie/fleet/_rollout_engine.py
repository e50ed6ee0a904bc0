"""The rollout engine: observe the nodes, `decide`, journal the action, do it; until the rollout is over.

Intent goes into the journal before a label is written. Labels are read back; one that is missing at the next look is
written again. The process may be killed anywhere: `RolloutState.replay` and the nodes show how to go on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol

from cloudedge.clock import Clock
from cloudedge.edge_bie.fleet._next_action import (
    Action,
    Bake,
    Finish,
    Label,
    OpenWave,
    Pause,
    PublishBack,
    Seen,
    Settle,
    TurnBack,
    Wait,
    decide,
)
from cloudedge.edge_bie.fleet._node_verdict import UNASKED, Probed, Verdict, judge, needs_probe
from cloudedge.edge_bie.fleet._rollout import RolloutPlan, RolloutState
from cloudedge.edge_bie.fleet._waves import is_open
from cloudedge.edge_bie.model import app_name, node_label
from cloudedge.errors import CloudEdgeError, Interrupted, NotFound
from cloudedge.io import in_threads
from cloudedge.journal import Writer

if TYPE_CHECKING:
    from cloudedge.edge_bie.client import Node

__all__ = ["Cloud", "Engine", "Outcome", "Runner", "run_all"]

_CLOUD_AWAY_S = 900.0
"""Longest time without an answer of the cloud before a rollout stops with an error."""
_LEAST_S = 0.1
"""Shortest interval between two looks."""
_TICK_S = 30.0
"""Interval at which a waiting rollout journals its clock."""

Runner = Callable[[Sequence[Callable[[], None]], int], None]
"""Runs calls side by side, at most so many at once, begins them in their order, and returns when all have ended."""


def run_all(calls: Sequence[Callable[[], None]], jobs: int) -> None:
    """Make all calls in threads, also after one failed: every node of a wave gets its turn."""
    in_threads(calls, jobs, finish=True)


class Cloud(Protocol):
    """The part of BIE that a rollout uses."""

    def nodes(self, *, selector: str = "") -> list[Node]:
        """List nodes with their newest reports."""
        ...

    def node(self, name: str) -> Node | None:
        """Return one node."""
        ...

    def set_labels(self, name: str, changes: Mapping[str, str | None], *, apps: Collection[str] = ()) -> Node:
        """Change labels, and read back that they changed and that the node's desire has these apps."""
        ...


@dataclass(frozen=True)
class Outcome:
    """The outcome of a rollout."""

    number: int
    state: Literal["done", "undone", "paused"]
    pin: str
    why: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Number of nodes that are done, failed, or offline; after a rollback, with their previous revision."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Reasons by failed node."""
    offline: tuple[str, ...] = ()
    repairs: int = 0
    """Labels that were lost and written again."""
    seconds: float = 0.0

    @property
    def summary(self) -> str:
        """The counts in words."""
        words = {"done": "back"} if self.state == "undone" else {}
        found = [f"{count} {words.get(what, what)}" for what, count in self.counts.items() if count]
        return ", ".join(found) or "no node touched"

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return dict(vars(self))


class Engine:
    """Carries out one rollout; its process holds the journal's lock.

    Args:
        cloud: BIE.
        writer: The right to write the journal.
        number: Number of the operation.
        plan: The plan.
        selector: Selects the nodes of the fleet.
        republish: Publishes an old revision with a new number, and returns its name.
        probe: Probes a node's server, for nodes that do not probe themselves.
        clock: Source of time.
        runner: Writes labels in parallel.
        turn: Keeps other processes of this machine from writing to the account meanwhile.
        tell: Called with each line of progress.
    """

    def __init__(
        self,
        cloud: Cloud,
        writer: Writer,
        number: int,
        plan: RolloutPlan,
        *,
        selector: str,
        republish: Callable[[str], str],
        probe: Callable[[Node], Probed],
        clock: Clock,
        runner: Runner = run_all,
        turn: Callable[[], AbstractContextManager[None]] = nullcontext,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._cloud = cloud
        self._writer = writer
        self._number = number
        self._plan = plan
        self._selector = selector
        self._republish = republish
        self._probe = probe
        self._clock = clock
        self._runner = runner
        self._turn = turn
        self._tell = tell
        self._label = node_label(plan.app)
        self._state = RolloutState.replay(writer.journal.entries(number), ())
        self._began_at, self._began = self._state.at, clock.monotonic()
        self._verdicts: dict[str, tuple[str, Verdict]] = {}
        self._probed: dict[str, tuple[str, Probed]] = {}
        self._conditions: dict[str, tuple[tuple[bool, str], float]] = {}
        self._last_line = ""

    def run(self, *, wait_paused: bool = False, is_rollback: bool = False) -> Outcome:
        """Run until the rollout is over.

        Args:
            wait_paused: Keep waiting while it is paused, instead of returning.
            is_rollback: The operation is a rollback: once back, it is done and not undone.

        Raises:
            Interrupted: The cloud gave no answer for too long; `resume` goes on.
        """
        last_answer = last_tick = self._clock.monotonic()
        while True:
            try:
                seen = self._look()
                last_answer = self._clock.monotonic()
                action = self._act(seen)
            except CloudEdgeError as error:
                if not error.retry_helps or self._clock.monotonic() - last_answer > _CLOUD_AWAY_S:
                    raise self._stopped(error) from error
                action = Wait(f"the cloud does not answer: {error.message}")
            if isinstance(action, Finish):
                return self._finish(replace(action, state="done") if is_rollback else action)
            if isinstance(action, Wait):
                self._say(action.why)
                if self._state.is_paused and not self._state.undo and not wait_paused:
                    self._writer.set_state(self._number, "paused", why=self._state.why_paused)
                    return self._outcome("paused", self._state.why_paused, self._state.count(self._plan.targets))
            if self._clock.monotonic() - last_tick > _TICK_S:
                last_tick = self._clock.monotonic()
                self._record("clock")
            self._clock.sleep(max(self._plan.policy.every_s, _LEAST_S))

    def _act(self, seen: Mapping[str, Seen]) -> Action:
        """Do every action that the observation allows; return the one after which to look again."""
        window = is_open(self._plan.policy.windows, self._clock.now())
        while True:
            self._state.hear(self._writer.journal.wishes(self._number))
            self._state.at = self._now()
            if window is (self._state.closed_at is not None):
                self._record("window", open=window)
            action = decide(self._plan, self._state, seen, is_window_open=window)
            if isinstance(action, Label):
                self._write_labels(action)
                return action
            if isinstance(action, (Wait, Finish)):
                return action
            self._note(action)

    def _note(self, action: Action) -> None:
        """Do an action that is only journaled, or journaled first."""
        if isinstance(action, Settle):
            self._record("settle", nodes={node: list(verdict) for node, verdict in action.nodes.items()})
            for node, (what, why) in action.nodes.items():
                self._say(f"{node}: {what}{': ' + why if why else ''}")
        elif isinstance(action, OpenWave):
            self._record("wave", wave=action.wave, open=action.is_open)
        elif isinstance(action, Bake):
            self._record("bake")
        elif isinstance(action, Pause):
            # The request first: a kill in between then pauses it once more, rather than not at all.
            self._writer.journal.ask(self._number, "pause", by=f"the rollout ({action.why})")
            self._record("pause", failed=list(action.failed), why=action.why)
        elif isinstance(action, TurnBack):
            self._say(f"going back: {action.why}")
            self._record("undo", why=action.why)
        elif isinstance(action, PublishBack):
            self._record("back", revisions={old: self._republish(old) for old in action.revisions})

    def _write_labels(self, action: Label) -> None:
        self._record("label", nodes=dict(action.nodes), back=action.is_back, repairs=action.repairs)
        if action.repairs:
            self._say(f"writing {action.repairs} lost labels again")
        calls = [partial(self._write_label, node, revision) for node, revision in action.nodes.items()]
        with self._turn():
            self._runner(calls, self._plan.policy.jobs)

    def _write_label(self, node: str, revision: str) -> None:
        apps = [app_name(self._plan.app, revision)] if revision else []
        try:
            self._cloud.set_labels(node, {self._label: revision or None}, apps=apps)
        except NotFound:
            return  # the node is gone, which the next look shows
        except CloudEdgeError as error:
            self._say(f"{node}: its label could not be written: {error.message}")  # the next look tries again

    def _look(self) -> dict[str, Seen]:
        found = {node.name: node for node in self._cloud.nodes(selector=self._selector)}
        for name in self._plan.targets:
            if name not in found:  # its labels changed; it takes part all the same
                node = self._cloud.node(name)
                if node is not None:
                    found[name] = node
        mine = [found[name] for name in self._plan.targets if name in found]
        probes = self._probes(mine)
        return {node.name: self._seen(node, probes.get(node.name, UNASKED)) for node in mine}

    def _seen(self, node: Node, probe: Probed) -> Seen:
        labelled = self._state.labelled.get(node.name)
        revision = labelled.revision if labelled else ""
        if not revision:
            state: Literal["waiting", "offline"] = "waiting" if node.ready == "online" else "offline"
            verdict = Verdict(state)
        else:
            was, last = self._verdicts.get(node.name, ("", None))
            app = app_name(self._plan.app, revision)
            rule = self._plan.policy.probe
            if self._state.undo and rule == "required":
                rule = "reachable"  # the previous bundle may have no probes
            verdict = judge(node, app, last if was == revision else None, probe=probe, probe_rule=rule)
            self._verdicts[node.name] = revision, verdict
        return Seen(node.labels.get(self._label, ""), verdict, self._since(node, revision))

    def _since(self, node: Node, revision: str) -> float:
        """Return the seconds for which a node has been online, or offline, with its current label."""
        now, condition = self._now(), (node.ready == "online", revision)
        was, since = self._conditions.get(node.name, (None, now))
        if was != condition:
            since = now
            self._conditions[node.name] = condition, since
        return now - since

    def _probes(self, nodes: Iterable[Node]) -> dict[str, Probed]:
        if self._plan.policy.probe == "off":
            return {}
        found: dict[str, Probed] = {}

        def ask(node: Node, revision: str) -> None:
            found[node.name] = self._probe(node)
            self._probed[node.name] = revision, found[node.name]

        calls = []
        for node in nodes:
            labelled = self._state.labelled.get(node.name)
            revision = labelled.revision if labelled else ""
            if not revision or not self._is_worth_asking(node.name, revision):
                continue
            if needs_probe(node, app_name(self._plan.app, revision)):
                calls.append(partial(ask, node, revision))
        if calls:
            self._runner(calls, self._plan.policy.jobs)
        return found

    def _is_worth_asking(self, node: str, revision: str) -> bool:
        """Return True if a probe could change anything: of settled nodes, only the wave under way is watched.

        Of those, unreachable ones are not probed again: behind a firewall each costs a time-out.
        """
        settled = self._state.settled.get(node)
        if settled is None or settled.state == "offline":
            return True
        waves = self._plan.waves
        is_watched = self._state.wave < len(waves) and node in waves[self._state.wave].nodes
        was, probed = self._probed.get(node, ("", UNASKED))
        return is_watched and not (was == revision and probed.state == "unreachable")

    def _now(self) -> float:
        return self._began_at + self._clock.monotonic() - self._began

    def _record(self, step: str, **detail: Any) -> None:
        detail["at"] = round(self._now(), 3)
        self._writer.record(self._number, step, "intent" if step == "label" else "note", **detail)
        self._state.take(step, detail)

    def _finish(self, action: Finish) -> Outcome:
        outcome = self._outcome(action.state, self._state.undo, action.counts)
        detail = {key: value for key, value in outcome.to_json().items() if key not in ("number", "state")}
        self._writer.set_state(self._number, action.state, **detail)
        return outcome

    def _outcome(self, state: Literal["done", "undone", "paused"], why: str, counts: Mapping[str, int]) -> Outcome:
        settled = self._state.settled
        return Outcome(
            self._number,
            state,
            self._plan.pin,
            why,
            dict(counts),
            {node: what.why for node, what in settled.items() if what.state == "failed"},
            tuple(node for node, what in settled.items() if what.state == "offline"),
            self._state.repairs,
            round(self._state.at, 3),
        )

    def _say(self, what: str) -> None:
        if what != self._last_line:
            self._last_line = what
            self._tell(what)

    def _stopped(self, error: CloudEdgeError) -> Interrupted:
        what = "Nodes keep their revisions. Mend that, then run `cloudedge fleet resume` or `cloudedge fleet abort`."
        return Interrupted(
            f"rollout {self._number} of {self._plan.title} stopped: {error.message}",
            hint=f"{error.hint} {what}".lstrip(),
            number=self._number,
        )
