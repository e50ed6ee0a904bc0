"""The plan as data: ordered steps with reasons, sizes and undos; printed for operators, kept as JSON in the journal."""

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
    "is_other",
    "stage_of",
]

Kind = Literal["release", "rollback", "repair", "adopt", "undo"]
"""`adopt` wrote into the journal what the places answer with, and touched no place.

`undo` is only ever shown: taking a release back continues that release in the journal.
"""
Action = Literal["fetch", "load", "verify", "gate", "activate", "bake", "settle", "tag", "unload", "retire"]
"""What a step does. At a place: load, verify, activate or unload a version, as the methods of `Place` are called."""
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
    "dense.trim": "unload",
    "edge.trim": "unload",
    "sparse.trim": "unload",
    "sparse.prepare": "load",
    "sparse.check": "verify",
    "dense.prepare": "load",
    "dense.check": "verify",
    "edge.prepare": "load",
    "edge.check": "verify",
    "gate": "gate",
    "dense.canary": "activate",
    "bake": "bake",
    "edge.switch": "activate",
    "dense.switch": "activate",
    "sparse.switch": "activate",
    "settle": "settle",
    "tag": "tag",
    "sparse.idle": "activate",
    "dense.forget": "unload",
    "edge.forget": "unload",
    "sparse.forget": "unload",
    "retire": "retire",
}
"""Every stage with its action, in the order of a release: rows are there before the first reader and after the last.

Journals and plans in JSON name stages with the words on the left, which therefore never change.
"""

_STAGE_NAMES: dict[str, str] = {"load": "prepare", "verify": "check", "activate": "switch", "unload": "forget"}

COMMIT_STAGES = ("dense.switch", "sparse.switch")
"""Once the first step of these is intended, a release goes forward; before that it can be taken back without a trace.

Edge nodes move before that, in waves: a wave that fails takes the whole release back.
"""

TIDY_STAGES = ("sparse.idle", "dense.forget", "edge.forget", "sparse.forget", "retire")
"""A step of these that fails is owed, and the next release does it."""


def stage_of(leg: str, what: str) -> Stage:
    """Return the stage in which a leg loads, verifies, activates or unloads, or does something rarer by its name."""
    return f"{leg}.{_STAGE_NAMES.get(what, what)}"  # type: ignore[return-value] # mypy does not join literals


_SLOW = 60.0
_HOUR = 3600.0


@dataclass(frozen=True)
class Limits:
    """The limits of how much worse than the live version a canary may do."""

    error_rate: float = 0.01
    """Errors per request, on top of the live version's."""
    latency_factor: float = 2.0
    latency_slack_ms: float = 5.0
    """The 99th percentile may be `latency_factor` times the live version's plus `latency_slack_ms`."""
    miss_rate: float = 0.02
    """Missing rows per row asked for, on top of the live version's."""
    score_drift: float = 1.0
    """The distance that the mean score may move, in standard deviations of the live version's scores."""
    min_requests: int = 20
    """With fewer requests on either side no limit applies."""
    latency_requests: int = 500
    """With fewer requests on either side no latency limit applies: of 500, five are beyond the 99th percentile."""


@dataclass(frozen=True)
class Options:
    """An operator's choices for a release."""

    canary: float = 0.0
    """The share of requests that try the new version first; 0: all move at once."""
    bake_s: float = 0.0
    """The time for which the canary is watched, in seconds."""
    on_breach: Literal["rollback", "pause"] = "rollback"
    retain: int = 1
    """The number of versions before the live one that stay loaded, to go back to without moving bytes."""
    allow_signature_change: bool = False
    allow_older: bool = False
    """Take a version although a newer one was taken before, or although its signature has expired."""
    jobs: int = 16
    """The number of places that are worked on at the same time."""
    attempts: int = 4
    """The number of tries of a step, where trying again can help."""
    patience_s: float = 120.0
    """The time to wait for places that do not answer, once requests have moved or on the way back: a supervisor starts
    a process again within half a minute, and loading takes its time."""
    drain_s: float = 30.0
    """The time that rows stay for the requests of a serving replica that did not answer."""
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        if not 0 <= self.canary < 1:
            raise InputError(f"a canary share of {self.canary:g} is not between 0 and 1")
        if self.bake_s < 0 or (self.bake_s and not self.canary):
            raise InputError("a bake needs a canary to watch", hint="Give both, such as `--canary 5% --bake 10m`.")
        if self.retain < 1 or self.jobs < 1 or self.attempts < 1 or self.patience_s < 0:
            raise InputError("retain, jobs and attempts are at least 1, and patience at least 0")


@dataclass(frozen=True)
class Life:
    """A version that is or was live on a target."""

    pin: str
    ref: str
    """The one exact bundle: name@digest."""
    title: str
    """Its name for operators: ctr:3."""
    shards: Mapping[str, int] = field(default_factory=dict)
    """By table: the number of its shards; empty: the version has no tables."""

    @property
    def digest(self) -> str:
        """The whole digest of the bundle."""
        return self.ref.rpartition("@")[2]


def is_other(one: str, other: str) -> bool:
    """Tell whether two whole digests are known and differ; places and old journals know only pins."""
    return one != other and all(digest.startswith("sha256:") for digest in (one, other))


@dataclass(frozen=True)
class Before:
    """The state of a place before a release touched it, which an undo goes back to."""

    active: Shares
    pins: tuple[str, ...]


@dataclass(frozen=True)
class Step:
    """One idempotent action, at one place or for the whole target."""

    stage: Stage
    place: str
    """Empty: the target itself."""
    reason: str
    pin: str = ""
    shares: Shares | None = None
    size_bytes: int = 0
    seconds: float = 0.0
    undo: str = ""
    """What taking it back does; empty: nothing."""

    @property
    def id(self) -> str:
        """Its name in the journal."""
        name = f"{self.stage}:{self.place}" if self.place else self.stage
        return f"{name}@{self.pin}" if self.action == "unload" else name

    @property
    def action(self) -> Action:
        """The act of the step."""
        return STAGES[self.stage]


@dataclass(frozen=True)
class Refusal:
    """A reason why a plan cannot work, and what would help."""

    rule: str
    what: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.what}\n    {self.hint}" if self.hint else self.what


@dataclass(frozen=True)
class Plan:
    """The ordered steps of an operation with their reasons, or the reasons why it cannot work."""

    kind: Kind
    target: str
    pin: str
    ref: str
    """The one exact bundle: name@digest."""
    title: str
    """The bundle's name for operators: ctr:3."""
    lives: tuple[Life, ...] = ()
    """The versions that were live before, the newest first."""
    steps: tuple[Step, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    warnings: tuple[str, ...] = ()
    before: Mapping[str, Before] = field(default_factory=dict)
    shards: Mapping[str, int] = field(default_factory=dict)
    """By table: the number of its shards."""
    options: Options = Options()
    away: Mapping[str, str] = field(default_factory=dict)
    """Places that do not answer and that the plan leaves out, with the reason; a later resume brings them along."""

    @property
    def live(self) -> str:
        """The pin that was live before; empty if none was."""
        return self.lives[0].pin if self.lives else ""

    @property
    def is_empty(self) -> bool:
        """True if every place is already as it should be."""
        return not self.steps and not self.refusals

    @property
    def size_bytes(self) -> int:
        """The bytes that travel."""
        return sum(step.size_bytes for step in self.steps)

    @property
    def seconds(self) -> float:
        """The estimated time; places of one stage work in parallel."""
        return sum(max(step.seconds for step in steps) for _, steps in self.stages())

    def stages(self) -> Iterator[tuple[Stage, list[Step]]]:
        """Yield the steps stage by stage."""
        for stage, steps in groupby(self.steps, key=lambda step: step.stage):
            yield stage, list(steps)

    def summary(self) -> str:
        """Return the plan as text that an operator reads before agreeing."""
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
        """Read what `to_json` wrote, in this or a newer cloudedge."""
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
        if count < 1000:  # noqa: PLR2004 - the meaning of kilo
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def _time(seconds: float) -> str:
    if seconds < _SLOW:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < _HOUR else f"{seconds / _HOUR:.1f} h"
