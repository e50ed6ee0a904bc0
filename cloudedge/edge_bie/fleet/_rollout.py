"""A rollout as data: its plan, and its progress, which is read from the journal alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from cloudedge.edge_bie.fleet._waves import RolloutPolicy, Wave
from cloudedge.journal import Entry, Wish

__all__ = ["Labelled", "RolloutPlan", "RolloutState", "Settled", "Unfit"]


@dataclass(frozen=True)
class Unfit:
    """One reason why a node cannot take a revision."""

    node: str
    rule: str
    what: str

    def __str__(self) -> str:
        return f"{self.node}: {self.what}"


@dataclass(frozen=True)
class RolloutPlan:
    """The plan of a rollout. Its targets are the nodes of the fleet at planning time, and no others."""

    app: str
    title: str
    """The bundle's name and version, for people."""
    pin: str
    revisions: tuple[str, ...]
    """In the order in which nodes get them: a new image first, with the previous model; then the model."""
    waves: tuple[Wave, ...]
    previous: Mapping[str, str]
    """The revision of each target at planning time; empty: none."""
    offline: tuple[str, ...] = ()
    """Targets that were offline then; they get their label, and catch up when they return."""
    unfit: tuple[Unfit, ...] = ()
    policy: RolloutPolicy = field(default_factory=RolloutPolicy)

    @property
    def targets(self) -> tuple[str, ...]:
        """Every node that takes part."""
        return tuple(self.previous)

    def summary(self) -> str:
        """Return the plan in lines, for an operator's approval."""
        lines = [f"rollout of {self.title} ({self.pin}) to {len(self.previous)} nodes as {self.app}"]
        for number, wave in enumerate(self.waves, 1):
            names = ", ".join(wave.nodes[:3]) + (", ..." if len(wave.nodes) > 3 else "")  # noqa: PLR2004 - enough to see
            lines.append(f"  wave {number} ({wave.name}): {len(wave.nodes)} nodes → {wave.revision}: {names}")
        if self.offline:
            lines.append(f"  {len(self.offline)} of them are offline and catch up when they return")
        lines += [f"  unfit: {unfit}" for unfit in self.unfit]
        if not self.waves:
            lines.append("  nothing to do: every node has it already")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return plain data that `from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RolloutPlan:
        """Read the data of `to_json`."""
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
    """Time of the label, without the time in which no maintenance window was open."""
    is_back: bool = False


@dataclass(frozen=True)
class Settled:
    """The newest definite verdict on a node."""

    state: Literal["done", "failed", "offline"]
    why: str = ""
    at: float = 0.0


@dataclass
class RolloutState:
    """The progress of a rollout. Times are seconds of its own clock, which stops while no process works on it."""

    at: float = 0.0
    wave: int = 0
    """The wave that is under way or comes next; waves before it are over."""
    is_wave_open: bool = False
    bake_from: float | None = None
    """The time at which every node of the wave was settled."""
    labelled: dict[str, Labelled] = field(default_factory=dict)
    touched: dict[str, None] = field(default_factory=dict)
    """Nodes in the order in which they were first touched."""
    settled: dict[str, Settled] = field(default_factory=dict)
    """Verdicts about the newest label."""
    undo: str = ""
    """The reason why it is rolled back; empty: it goes forward."""
    back: dict[str, str] | None = None
    """While rolling back: by a node's previous revision, the one with a new number and the same content."""
    is_paused: bool = False
    why_paused: str = ""
    approved: set[int] = field(default_factory=set)
    abort: str = ""
    """The request to roll it back; empty: none."""
    tolerated: frozenset[str] = frozenset()
    """Nodes that had failed when it paused for that: the operator who resumes it has seen them."""
    repairs: int = 0
    """Labels that were lost and written again."""
    closed_at: float | None = None
    """The time at which the maintenance window closed; None: one is open."""

    @classmethod
    def replay(cls, entries: Iterable[Entry], wishes: Iterable[Wish]) -> RolloutState:
        """Read the progress of a rollout from the journal."""
        state = cls()
        for entry in entries:
            state.take(entry.step, entry.detail)
        state.hear(wishes)
        return state

    def hear(self, wishes: Iterable[Wish]) -> None:
        """Apply the operators' requests; of pause and resume the newest counts."""
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
        """Apply one line of the journal, when it is written or read again."""
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
                self.touched.setdefault(node)  # by a completed rollout that is now rolled back
        elif step == "back":
            self.back = dict(detail["revisions"])
        elif step == "window":
            self._turn_window(is_open=detail["open"])

    def _turn_window(self, *, is_open: bool) -> None:
        """Exclude the time in which no label could be written from every node's time."""
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
        """Count the verdicts on some nodes."""
        counts = {"done": 0, "failed": 0, "offline": 0, "waiting": 0}
        for node in nodes:
            settled = self.settled.get(node)
            counts[settled.state if settled else "waiting"] += 1
        return counts
