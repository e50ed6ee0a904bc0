"""A rollout as data: what was planned, and how far it got, which is read from the journal and from nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from cloudedge.edge_bie.fleet._waves import RolloutPolicy, Wave
from cloudedge.journal import Entry, Wish

__all__ = ["Labelled", "RolloutPlan", "RolloutState", "Settled", "Unfit"]


@dataclass(frozen=True)
class Unfit:
    """Why a node cannot take a revision."""

    node: str
    rule: str
    what: str

    def __str__(self) -> str:
        return f"{self.node}: {self.what}"


@dataclass(frozen=True)
class RolloutPlan:
    """What a rollout shall do. Its targets are those that were there when it was planned, and no others."""

    app: str
    title: str
    """The bundle as people call it."""
    pin: str
    revisions: tuple[str, ...]
    """In the order in which nodes get them: a new image first, with the model as it was; then the model."""
    waves: tuple[Wave, ...]
    previous: Mapping[str, str]
    """The revision each target had when this was planned; empty: none."""
    offline: tuple[str, ...] = ()
    """Targets that were away then; they get their label, and catch up when they return."""
    unfit: tuple[Unfit, ...] = ()
    policy: RolloutPolicy = field(default_factory=RolloutPolicy)

    @property
    def targets(self) -> tuple[str, ...]:
        """Every node that takes part."""
        return tuple(self.previous)

    def summary(self) -> str:
        """Say it in lines that a person reads before saying yes."""
        lines = [f"rollout of {self.title} ({self.pin}) to {len(self.previous)} nodes as {self.app}"]
        for number, wave in enumerate(self.waves, 1):
            names = ", ".join(wave.nodes[:3]) + (", ..." if len(wave.nodes) > 3 else "")  # noqa: PLR2004 - enough to see
            lines.append(f"  wave {number} ({wave.name}): {len(wave.nodes)} nodes → {wave.revision}: {names}")
        if self.offline:
            lines.append(f"  {len(self.offline)} of them are away and catch up when they return")
        lines += [f"  unfit: {unfit}" for unfit in self.unfit]
        if not self.waves:
            lines.append("  nothing to do: every node has it already")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return plain data that `from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RolloutPlan:
        """Read what `to_json` wrote."""
        return cls(
            **{name: value[name] for name in ("app", "title", "pin", "previous")},
            revisions=tuple(value["revisions"]),
            waves=tuple(Wave(wave["name"], wave["revision"], tuple(wave["nodes"])) for wave in value["waves"]),
            offline=tuple(value["offline"]),
            unfit=tuple(Unfit(**unfit) for unfit in value["unfit"]),
            policy=RolloutPolicy.from_json(value["policy"]),
        )


@dataclass(frozen=True)
class Labelled:
    """The newest label that was intended for a node."""

    revision: str
    """Empty: no label."""
    at: float
    """When; time in which no maintenance window was open is taken off."""
    is_back: bool = False


@dataclass(frozen=True)
class Settled:
    """What became of a node; the newest definite verdict counts."""

    state: Literal["done", "failed", "offline"]
    why: str = ""
    at: float = 0.0


@dataclass
class RolloutState:
    """How far a rollout got. Times are seconds of its own clock, which stands still while nobody works on it."""

    at: float = 0.0
    wave: int = 0
    """The wave that is under way or comes next; waves before it are over."""
    is_wave_open: bool = False
    bake_from: float | None = None
    """Since when everybody of the wave is settled."""
    labelled: dict[str, Labelled] = field(default_factory=dict)
    touched: dict[str, None] = field(default_factory=dict)
    """Nodes in the order in which they were first touched."""
    settled: dict[str, Settled] = field(default_factory=dict)
    """About the newest label."""
    undo: str = ""
    """Why it is being taken back; empty: it goes forward."""
    back: dict[str, str] | None = None
    """Going back: by the revision a node had, the one with a new number that stands for it."""
    is_paused: bool = False
    why_paused: str = ""
    approved: set[int] = field(default_factory=set)
    abort: str = ""
    """Who asked to take it back."""
    tolerated: frozenset[str] = frozenset()
    """Nodes that had failed when it paused for that: somebody who resumes it then has seen them."""
    repairs: int = 0
    """Labels that were lost and written again."""
    closed_at: float | None = None
    """Since when no maintenance window is open; None: one is."""

    @classmethod
    def replay(cls, entries: Iterable[Entry], wishes: Iterable[Wish]) -> RolloutState:
        """Read from the journal how far a rollout got."""
        state = cls()
        for entry in entries:
            state.take(entry.step, entry.detail)
        state.hear(wishes)
        return state

    def hear(self, wishes: Iterable[Wish]) -> None:
        """Take note of what people asked for; of pause and resume the newest counts."""
        for wish in wishes:
            what, _, number = wish.what.partition(":")
            if what == "abort":
                self.abort = f"{wish.by} asked for it"
            elif what == "approve":
                self.approved.add(int(number))
            elif what in ("pause", "resume"):
                self.is_paused = what == "pause"
                self.why_paused = f"{wish.by} asked for it" if self.is_paused else ""

    def take(self, step: str, detail: Mapping[str, Any]) -> None:  # noqa: C901 - one line per kind of entry
        """Take note of one line of the journal, as it is written or read again."""
        self.at = max(self.at, float(detail.get("at", 0.0)))
        if step == "label":
            for node in detail["nodes"]:
                self._label(node, detail["nodes"][node], is_back=bool(detail.get("back")))
            self.repairs += detail.get("repairs", 0)
        elif step == "settle":
            for node, (what, why) in detail["nodes"].items():
                self.settled[node] = Settled(what, why, self.at)
        elif step == "wave":
            self.wave, self.is_wave_open, self.bake_from = detail["wave"], detail["open"], None
        elif step == "bake":
            self.bake_from = self.at
        elif step == "pause":
            self.tolerated |= frozenset(detail["failed"])
        elif step == "undo":
            self.undo = detail["why"]
            self.settled = {}
            for node in detail.get("touched", ()):
                self.touched.setdefault(node)  # by a rollout that was done, and is now taken back
        elif step == "back":
            self.back = dict(detail["revisions"])
        elif step == "window":
            self._turn_window(is_open=detail["open"])

    def _turn_window(self, *, is_open: bool) -> None:
        """Count for no node the time in which nothing could be written."""
        if self.closed_at is not None:
            for node, label in self.labelled.items():
                waited = self.at - max(self.closed_at, label.at)
                self.labelled[node] = replace(label, at=label.at + waited)
        self.closed_at = None if is_open else self.at

    def _label(self, node: str, revision: str, *, is_back: bool) -> None:
        was = self.labelled.get(node)
        if was is None or (was.revision, was.is_back) != (revision, is_back):
            self.labelled[node] = Labelled(revision, self.at, is_back)
            self.settled.pop(node, None)
        self.touched.setdefault(node)

    def count(self, nodes: Iterable[str]) -> dict[str, int]:
        """Count what became of some nodes."""
        counts = {"done": 0, "failed": 0, "offline": 0, "waiting": 0}
        for node in nodes:
            settled = self.settled.get(node)
            counts[settled.state if settled else "waiting"] += 1
        return counts
