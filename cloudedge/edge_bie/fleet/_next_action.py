"""The next action of a rollout, decided from plan, progress and observed nodes. Pure.

The engine does the action, journals it and decides again, until only waiting is left. An action depends only on the
plan, on the journal and on what the nodes report now, so neither another process nor a kill in between changes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from cloudedge.edge_bie.fleet._node_verdict import Verdict
from cloudedge.edge_bie.fleet._rollout import Labelled, RolloutPlan, RolloutState, Settled

__all__ = [
    "Action",
    "Bake",
    "Finish",
    "Label",
    "OpenWave",
    "Pause",
    "PublishBack",
    "Seen",
    "Settle",
    "TurnBack",
    "Wait",
    "decide",
]


@dataclass(frozen=True)
class Seen:
    """The observed state of one node."""

    label: str
    """The revision its label points at; empty: none."""
    verdict: Verdict
    """The verdict about its last intended revision."""
    for_s: float = 0.0
    """Seconds for which it has been online, or offline, since its label was written."""

    @property
    def is_online(self) -> bool:
        """The node is online."""
        return self.verdict.state != "offline"


@dataclass(frozen=True)
class Label:
    """Write labels, in this order."""

    nodes: Mapping[str, str]
    is_back: bool = False
    repairs: int = 0


@dataclass(frozen=True)
class Settle:
    """Journal the verdicts about nodes."""

    nodes: Mapping[str, tuple[str, str]]


@dataclass(frozen=True)
class OpenWave:
    """Begin a wave, or end the one before it."""

    wave: int
    is_open: bool = True


@dataclass(frozen=True)
class Bake:
    """Begin to watch a wave whose nodes are all settled."""


@dataclass(frozen=True)
class Pause:
    """Stop until an operator resumes or aborts."""

    why: str
    failed: tuple[str, ...]


@dataclass(frozen=True)
class TurnBack:
    """Give up and roll back every touched node."""

    why: str


@dataclass(frozen=True)
class PublishBack:
    """Publish the previous revisions of nodes with new numbers, since nodes refuse lower ones."""

    revisions: tuple[str, ...]


@dataclass(frozen=True)
class Wait:
    """Look again later."""

    why: str


@dataclass(frozen=True)
class Finish:
    """End the rollout."""

    state: Literal["done", "undone"]
    counts: Mapping[str, int] = field(default_factory=dict)


_CLOSED = "no maintenance window is open"

Action = Label | Settle | OpenWave | Bake | Pause | TurnBack | PublishBack | Wait | Finish


def decide(plan: RolloutPlan, state: RolloutState, seen: Mapping[str, Seen], *, is_window_open: bool = True) -> Action:  # noqa: PLR0911 - rules in their order
    """Decide the next action.

    Args:
        plan: The plan.
        state: Its progress.
        seen: The observed targets; a missing one has left the account.
        is_window_open: Nodes may be moved now. Going back does not wait for that.
    """
    if state.undo:
        return _back(plan, state, seen)
    if state.abort:
        return TurnBack(state.abort)
    settled = dict(_settled(plan, state, seen, is_window_open=is_window_open))
    if settled:
        return Settle(settled)
    if state.is_paused:
        return Wait(f"paused: {state.why_paused}")
    lost = _lost(state, seen)
    if lost and is_window_open:
        return Label(lost, repairs=len(lost))
    trouble = _trouble(plan, state)
    if trouble:
        return _give_up(plan, state, trouble)
    if lost:
        return Wait(f"{len(lost)} labels are lost, and {_CLOSED}")
    if state.wave >= len(plan.waves):
        return Finish("done", state.count(plan.targets))
    return _wave(plan, state, seen, is_window_open=is_window_open)


def _wave(  # noqa: PLR0911 - rules in their order
    plan: RolloutPlan, state: RolloutState, seen: Mapping[str, Seen], *, is_window_open: bool
) -> Action:
    wave, policy = plan.waves[state.wave], plan.policy
    if not state.is_wave_open:
        if _needs_approval(plan, state.wave) and state.wave not in state.approved:
            return Wait(f"wave {state.wave + 1} ({len(wave.nodes)} nodes) needs approval")
        if not is_window_open:
            return Wait(_CLOSED)
        return OpenWave(state.wave)
    missing = [node for node in wave.nodes if not _is_labelled(state, node, wave.revision)]
    if missing:
        return Label(dict.fromkeys(missing, wave.revision)) if is_window_open else Wait(_CLOSED)
    counts = state.count(wave.nodes)
    if counts["waiting"]:
        return Wait(f"wave {state.wave + 1}: {_counted(counts)}")
    trouble = _missed(plan, state, seen)
    if trouble:
        return _give_up(plan, state, trouble)
    if state.bake_from is None:
        return Bake()
    left = policy.bake_s - (state.at - state.bake_from)
    if left > 0:
        return Wait(f"wave {state.wave + 1}: {_counted(counts)}; watched for {left:.0f} s more")
    return OpenWave(state.wave + 1, is_open=False)


def _needs_approval(plan: RolloutPlan, wave: int) -> bool:
    """Return True if a wave needs an approval; `after-first` asks after the first wave of each revision."""
    if plan.policy.approval != "after-first" or wave == 0:
        return plan.policy.approval == "every"
    tried = plan.waves[wave - 1].revision
    return all(before.revision != tried for before in plan.waves[: wave - 1])


def _settled(
    plan: RolloutPlan, state: RolloutState, seen: Mapping[str, Seen], *, is_window_open: bool = True
) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the nodes with a new verdict."""
    for node, labelled in state.labelled.items():
        was = state.settled.get(node)
        at = state.at if is_window_open else labelled.at  # no node times out while no label may be written
        now = _verdict(plan, labelled, seen.get(node), was, at)
        if now is not None and (was is None or was.state != now[0]):
            yield node, now


def _verdict(  # noqa: PLR0911 - rules in their order
    plan: RolloutPlan, labelled: Labelled, seen: Seen | None, was: Settled | None, at: float
) -> tuple[str, str] | None:
    if seen is None:
        return "offline", "it is gone"
    is_open = was is None or was.state == "offline"
    if seen.label != labelled.revision:
        late = is_open and at - labelled.at > plan.policy.failed_after_s
        return ("failed", "its label cannot be written") if late else None
    if not labelled.revision:
        return "done", "without a revision, as before"
    verdict = seen.verdict
    if verdict.state in ("done", "failed"):
        return verdict.state, verdict.why
    # A node that connects and disconnects gets both time-outs together, and no more.
    longest = plan.policy.failed_after_s + plan.policy.offline_after_s
    if was is None and at - labelled.at > longest:
        state = "offline" if verdict.state == "offline" else "failed"
        return state, f"not done after {longest:g} s in which it came and went: {verdict.why}"
    if verdict.state == "offline":
        return ("offline", verdict.why) if was is None and seen.for_s > plan.policy.offline_after_s else None
    if is_open and seen.for_s > plan.policy.failed_after_s:
        return "failed", f"not done after {plan.policy.failed_after_s:g} s: {verdict.why}"
    return None


def _lost(state: RolloutState, seen: Mapping[str, Seen]) -> dict[str, str]:
    """Return labels that were written and are missing now."""
    return {
        node: labelled.revision
        for node, labelled in state.labelled.items()
        if node in seen and seen[node].label != labelled.revision
    }


def _trouble(plan: RolloutPlan, state: RolloutState) -> str:
    """Return the reason to give up at once; empty: none."""
    tried, failed = _tried(plan, state)
    if failed and len(tried) >= plan.policy.abort_at_least and len(failed) > plan.policy.abort_failed * len(tried):
        return f"{len(failed)} of {len(tried)} nodes failed: {_first(state, failed)}"
    return ""


def _missed(plan: RolloutPlan, state: RolloutState, seen: Mapping[str, Seen]) -> str:
    """Return the reason why a settled wave must not lead to the next; empty: none."""
    wave = plan.waves[state.wave]
    done = [node for node in wave.nodes if state.settled[node].state == "done"]
    failed = [n for n in wave.nodes if state.settled[n].state == "failed" and n not in state.tolerated]
    if failed and len(done) < plan.policy.success * (len(done) + len(failed)):
        return (
            f"{len(failed)} of {len(done) + len(failed)} nodes of wave {state.wave + 1} failed: {_first(state, failed)}"
        )
    tried, _ = _tried(plan, state)
    later = [node for after in plan.waves[state.wave + 1 :] for node in after.nodes]
    is_proven = any(state.settled[node].state != "offline" for node in (*tried, *wave.nodes) if node in state.settled)
    if not is_proven and any(node in seen and seen[node].is_online for node in later):
        return f"no node of wave {state.wave + 1} was online to try it"
    return ""


def _tried(plan: RolloutPlan, state: RolloutState) -> tuple[list[str], list[str]]:
    """Return the nodes that tried the revision of the wave under way, and those of them that failed."""
    at = min(state.wave, len(plan.waves) - 1)
    revision = plan.waves[at].revision if plan.waves else ""
    nodes = [node for wave in plan.waves[: at + 1] if wave.revision == revision for node in wave.nodes]
    states = {n: state.settled[n].state for n in nodes if n in state.settled and _is_labelled(state, n, revision)}
    tried = [n for n, what in states.items() if what != "offline" and n not in state.tolerated]
    return tried, [n for n in tried if states[n] == "failed"]


def _give_up(plan: RolloutPlan, state: RolloutState, why: str) -> Action:
    if plan.policy.on_failure == "rollback":
        return TurnBack(why)
    return Pause(why, tuple(node for node, settled in state.settled.items() if settled.state == "failed"))


def _back(plan: RolloutPlan, state: RolloutState, seen: Mapping[str, Seen]) -> Action:
    order = list(reversed(state.touched))  # newest first
    if state.back is None:
        return PublishBack(tuple(sorted({plan.previous[node] for node in order} - {""})))
    wanted = {node: state.back.get(plan.previous[node], "") for node in order}
    missing = {n: revision for n, revision in wanted.items() if not _is_labelled(state, n, revision, is_back=True)}
    if missing:
        return Label(missing, is_back=True)
    lost = _lost(state, seen)
    settled = dict(_settled(plan, state, seen))
    if settled:
        return Settle(settled)
    if lost:
        return Label({node: lost[node] for node in order if node in lost}, is_back=True, repairs=len(lost))
    counts = state.count(order)
    if counts["waiting"]:
        return Wait(f"going back: {_counted(counts)}")
    return Finish("undone", counts)


def _is_labelled(state: RolloutState, node: str, revision: str, *, is_back: bool = False) -> bool:
    labelled = state.labelled.get(node)
    return labelled is not None and (labelled.revision, labelled.is_back) == (revision, is_back)


def _first(state: RolloutState, failed: Sequence[str]) -> str:
    node = min(failed, key=lambda name: state.settled[name].at)
    return f"{node}: {state.settled[node].why}"


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)
