"""A plan as data: ordered steps with reasons, sizes and undos; printed for people, kept as JSON in the journal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from itertools import groupby
from typing import Any, Literal

from cloudedge.errors import InputError
from cloudedge.release.core._places import Shares

__all__ = [
    "COMMIT_STAGES",
    "STAGES",
    "TIDY_STAGES",
    "Action",
    "Before",
    "Kind",
    "Limits",
    "Options",
    "Plan",
    "Refusal",
    "Stage",
    "Step",
]

Kind = Literal["release", "rollback", "repair", "undo"]
"""`undo` is only ever shown: who takes a release back goes on with that release."""
Action = Literal["fetch", "prepare", "check", "gate", "switch", "bake", "settle", "tag", "forget", "retire"]
Stage = Literal[
    "fetch",
    "dense.trim",
    "edge.trim",
    "sparse.trim",
    "sparse.prepare",
    "sparse.check",
    "dense.prepare",
    "dense.check",
    "edge.prepare",
    "edge.check",
    "gate",
    "dense.canary",
    "bake",
    "edge.switch",
    "dense.switch",
    "sparse.switch",
    "settle",
    "tag",
    "sparse.idle",
    "dense.forget",
    "edge.forget",
    "sparse.forget",
    "retire",
]

STAGES: dict[str, Action] = {
    "fetch": "fetch",
    "dense.trim": "forget",
    "edge.trim": "forget",
    "sparse.trim": "forget",
    "sparse.prepare": "prepare",
    "sparse.check": "check",
    "dense.prepare": "prepare",
    "dense.check": "check",
    "edge.prepare": "prepare",
    "edge.check": "check",
    "gate": "gate",
    "dense.canary": "switch",
    "bake": "bake",
    "edge.switch": "switch",
    "dense.switch": "switch",
    "sparse.switch": "switch",
    "settle": "settle",
    "tag": "tag",
    "sparse.idle": "switch",
    "dense.forget": "forget",
    "edge.forget": "forget",
    "sparse.forget": "forget",
    "retire": "retire",
}
"""Every stage in its order, which is what keeps rows there before anybody reads them and until nobody does."""

COMMIT_STAGES = ("dense.switch", "sparse.switch")
"""Once the first step of these is intended, a release goes forward; before that it can vanish without a trace.

Edge nodes move before that, in waves: a wave that fails takes the whole release back.
"""

TIDY_STAGES = ("sparse.idle", "dense.forget", "edge.forget", "sparse.forget", "retire")
"""What could not be done of these is owed, and the next release does it."""

_SLOW = 60.0
_HOUR = 3600.0


@dataclass(frozen=True)
class Limits:
    """How much worse than the live version a canary may be."""

    error_rate: float = 0.01
    """Errors per request, on top of the live version's."""
    latency_factor: float = 2.0
    latency_slack_ms: float = 5.0
    """The 99th percentile may be so many times the live one's plus so much."""
    miss_rate: float = 0.02
    """Rows not found per row asked for, on top of the live version's."""
    score_drift: float = 1.0
    """How far the mean score may move, in standard deviations of the live version's scores."""
    min_requests: int = 20
    """With fewer requests on either side nothing is concluded."""
    latency_requests: int = 500
    """With fewer on either side nothing is concluded from latency: of 500, five are beyond the 99th percentile."""


@dataclass(frozen=True)
class Options:
    """What somebody chose for a release."""

    canary: float = 0.0
    """Share of requests that try the new version first; 0: all move at once."""
    bake_s: float = 0.0
    """How long the canary is watched."""
    on_breach: Literal["rollback", "pause"] = "rollback"
    retain: int = 1
    """How many versions before the live one stay loaded, to go back to without moving bytes."""
    allow_signature_change: bool = False
    jobs: int = 16
    """Places worked on at the same time."""
    attempts: int = 4
    """How often a step is tried when trying again can help."""
    patience_s: float = 120.0
    """How long places that do not answer are waited for once requests have moved, or on the way back: a supervisor
    starts a process again within half a minute, and loading takes its time."""
    drain_s: float = 30.0
    """How long rows stay for requests under way at a serving replica that could not be asked."""
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        if not 0 <= self.canary < 1:
            raise InputError(f"a canary share of {self.canary:g} is not between 0 and 1")
        if self.bake_s < 0 or (self.bake_s and not self.canary):
            raise InputError("a bake needs a canary to watch", hint="Give both, such as --canary 5% --bake 10m.")
        if self.retain < 1 or self.jobs < 1 or self.attempts < 1 or self.patience_s < 0:
            raise InputError("retain, jobs and attempts are at least 1, and patience at least 0")


@dataclass(frozen=True)
class Life:
    """A version that is or was live on a target."""

    pin: str
    ref: str
    """The one exact bundle: name@digest."""
    title: str
    """As people call it: ctr:3."""
    shards: Mapping[str, int] = field(default_factory=dict)
    """Into how many shards its tables are cut; empty: it has none."""


@dataclass(frozen=True)
class Before:
    """What a place was like before a release touched it, which is what an undo goes back to."""

    active: Shares
    pins: tuple[str, ...]


@dataclass(frozen=True)
class Step:
    """One idempotent thing to do, at one place or for the whole target."""

    stage: Stage
    place: str
    """Empty: the target itself."""
    reason: str
    pin: str = ""
    shares: Shares | None = None
    size_bytes: int = 0
    seconds: float = 0.0
    undo: str = ""
    """What going back would do; empty: nothing."""

    @property
    def id(self) -> str:
        """What the journal calls it."""
        name = f"{self.stage}:{self.place}" if self.place else self.stage
        return f"{name}@{self.pin}" if self.action == "forget" else name

    @property
    def action(self) -> Action:
        """What is done."""
        return STAGES[self.stage]


@dataclass(frozen=True)
class Refusal:
    """Why a plan cannot work, and what would help."""

    rule: str
    what: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.what}\n    {self.hint}" if self.hint else self.what


@dataclass(frozen=True)
class Plan:
    """What would be done, in which order and why, or why nothing can be."""

    kind: Kind
    target: str
    pin: str
    ref: str
    """The one exact bundle: name@digest."""
    title: str
    """The bundle as people call it: ctr:3."""
    lives: tuple[Life, ...] = ()
    """What was live before, the newest first."""
    steps: tuple[Step, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    warnings: tuple[str, ...] = ()
    before: Mapping[str, Before] = field(default_factory=dict)
    shards: Mapping[str, int] = field(default_factory=dict)
    """Into how many shards its tables are cut."""
    options: Options = Options()
    away: Mapping[str, str] = field(default_factory=dict)
    """Places that do not answer and that this goes on without, with why; a resume brings them once they are back."""

    @property
    def live(self) -> str:
        """The pin that was live before; empty if none was."""
        return self.lives[0].pin if self.lives else ""

    @property
    def is_empty(self) -> bool:
        """Whether everything is as it should be already."""
        return not self.steps and not self.refusals

    @property
    def size_bytes(self) -> int:
        """Bytes that travel."""
        return sum(step.size_bytes for step in self.steps)

    @property
    def seconds(self) -> float:
        """Estimated time: places of one stage work side by side."""
        return sum(max(step.seconds for step in steps) for _, steps in self.stages())

    def stages(self) -> Iterator[tuple[Stage, list[Step]]]:
        """Yield the steps stage by stage."""
        for stage, steps in groupby(self.steps, key=lambda step: step.stage):
            yield stage, list(steps)

    def summary(self) -> str:
        """Say it in lines that a person reads before saying yes."""
        ends = (self.live or "nothing", self.pin)
        move = " → ".join(reversed(ends) if self.kind == "undo" else ends) if self.live != self.pin else self.pin
        lines = [f"{self.kind} of {self.title} on {self.target} ({move})"]
        if self.refusals:
            return "\n".join([*lines, "refused:", *(f"  {refusal}" for refusal in self.refusals)])
        if not self.steps:
            return "\n".join([*lines, "  nothing to do: every place is there already"])
        for number, (stage, steps) in enumerate(self.stages(), 1):
            where = _where(steps)
            sizes = sum(step.size_bytes for step in steps)
            longest = max(step.seconds for step in steps)
            costs = ([_bytes(sizes)] if sizes else []) + ([f"about {_time(longest)}"] if longest >= 1 else [])
            back = next((step.undo for step in steps if step.undo), "")
            undo = f" [undo: {back}]" if back else ""
            lines.append(f"  {number:2}. {stage:<14} {where}: {', '.join([steps[0].reason, *costs])}{undo}")
        lines += [f"  note: {warning}" for warning in self.warnings]
        return "\n".join([*lines, f"{_bytes(self.size_bytes)} to move, about {_time(self.seconds)}"])

    def to_json(self) -> dict[str, Any]:
        """Return plain data that `from_json` reads."""
        return vars(self) | {
            "lives": [vars(life) for life in self.lives],
            "steps": [vars(step) | {"id": step.id} for step in self.steps],
            "refusals": [vars(refusal) for refusal in self.refusals],
            "warnings": list(self.warnings),
            "before": {name: vars(was) for name, was in self.before.items()},
            "shards": dict(self.shards),
            "away": dict(self.away),
            "options": asdict(self.options),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Plan:
        """Read what `to_json` wrote, here or in a newer cloudedge."""
        known = {item.name for item in fields(Step)}
        options = dict(value["options"])
        return cls(
            **{name: value[name] for name in ("kind", "target", "pin", "ref", "title")},
            lives=tuple(Life(**life) for life in value["lives"]),
            steps=tuple(Step(**{k: v for k, v in step.items() if k in known}) for step in value["steps"]),
            refusals=tuple(Refusal(**refusal) for refusal in value["refusals"]),
            warnings=tuple(value["warnings"]),
            before={name: Before(was["active"], tuple(was["pins"])) for name, was in value["before"].items()},
            shards=value.get("shards", {}),
            away=value.get("away", {}),
            options=Options(**(options | {"limits": Limits(**options["limits"])})),
        )


def _where(steps: list[Step]) -> str:
    names = list(dict.fromkeys(step.place for step in steps))
    if not names[0]:
        return "the target"
    return names[0] if len(names) == 1 else f"{len(names)} places"


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:  # noqa: PLR2004 - that is what kilo means
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def _time(seconds: float) -> str:
    if seconds < _SLOW:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < _HOUR else f"{seconds / _HOUR:.1f} h"
