"""What a release asks of everything it touches: one cube shard replica, one serving replica, one edge node.

`Place` is the whole of it, and the simulator implements the same protocol as the real adapters. Four rules:

- Every method may be called again after it seemed to fail, and running it twice is running it once.
- What was promised survives a restart: a version that `prepare` returned for, and the shares `switch` set, are there
  after the place's process was killed, or `observe` says that they are not.
- Every change carries an `order`, a number that only grows on a target. A place that can remembers the highest and
  raises `Conflict` for a lower one, so that a call that was late in the network changes nothing any more.
- Every method has a deadline of its own. Errors come from `cloudedge.errors`; what `retry_helps` says is believed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from cloudedge.bundle import Signature
    from cloudedge.release.core._version import Version

__all__ = [
    "Estimate",
    "Group",
    "Health",
    "Leg",
    "Loaded",
    "Member",
    "Observed",
    "Part",
    "Place",
    "Shares",
    "Shipped",
    "Traffic",
]

Leg = Literal["sparse", "dense", "edge"]
Shares = Mapping[str, float]
"""Pins with the share of unpinned requests each answers; they sum to 1, or there are none and nothing is active."""


@dataclass(frozen=True)
class Loaded:
    """A version at a place."""

    state: Literal["loading", "ready", "failed"] = "ready"
    rows: int | None = None
    """Sparse: rows of this shard; None where that means nothing."""
    checksum: str = ""
    """Of those rows, as the place itself computed it."""
    memory_bytes: int = 0
    shards: int | None = None
    """Sparse: how many shards its table was cut into when this version was loaded, where the place can tell."""
    error: str = ""
    """Why it failed."""


@dataclass(frozen=True)
class Observed:
    """What a place said of itself when asked."""

    name: str
    leg: Leg
    versions: Mapping[str, Loaded] = field(default_factory=dict)
    """By pin."""
    active: Shares = field(default_factory=dict)
    table: str = ""
    """Sparse: the table it holds a shard of."""
    shard: int = 0
    shards: int = 1
    """Sparse: into how many shards its layout cuts the table."""
    memory_free_bytes: int | None = None
    """None: unknown, and then no plan is refused for it."""
    disk_free_bytes: int | None = None
    host: str = ""
    """Places of the same host share what is free there; empty: this one's is its own."""
    signature: Signature | None = None
    """Dense and edge: what clients of the active version feed and fetch."""
    incarnation: str = ""
    """Changes when the process restarts; empty where nobody can tell."""
    error: str = ""
    """Why it could not be observed; everything else is then unknown."""

    @property
    def is_reachable(self) -> bool:
        """Whether the place answered."""
        return not self.error

    def has(self, pin: str) -> bool:
        """Tell whether a version is loaded and could answer."""
        return pin in self.versions and self.versions[pin].state == "ready"


@dataclass(frozen=True)
class Estimate:
    """What preparing a version would cost a place."""

    ship_bytes: int = 0
    """What would travel: a delta where the place has something to apply it to."""
    memory_bytes: int = 0
    """What it needs on top of what is loaded now."""
    disk_bytes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Shipped:
    """What preparing a version cost."""

    bytes: int = 0
    """What travelled; 0 if it was there already."""
    how: Literal["nothing", "delta", "base"] = "base"


@dataclass(frozen=True)
class Traffic:
    """What one version did since somebody last asked."""

    requests: int = 0
    errors: int = 0
    latency_p50_ms: float = 0.0
    latency_p99_ms: float = 0.0
    lookups: int = 0
    """Rows asked for."""
    misses: int = 0
    """Rows that were not there, answered with a declared default or an error."""
    scores: int = 0
    score_sum: float = 0.0
    score_squares: float = 0.0
    """Sum of squares, so that mean and deviation of several places add up."""
    latencies: Mapping[float, int] = field(default_factory=dict)
    """Requests by the upper bound of their latency in ms, where a place counts so. These add up over places and
    moments, which percentiles do not; where they are there, the percentiles are theirs."""

    def __post_init__(self) -> None:
        if any(self.latencies.values()):
            object.__setattr__(self, "latency_p50_ms", _percentile(self.latencies, 0.5))
            object.__setattr__(self, "latency_p99_ms", _percentile(self.latencies, 0.99))

    def slower_than(self, bound_ms: float) -> int:
        """Count the requests that took longer for certain: those of buckets that begin there or later."""
        uppers = sorted(self.latencies)
        return sum(
            self.latencies[upper] for lower, upper in zip([0.0, *uppers], uppers, strict=False) if lower >= bound_ms
        )


def _percentile(latencies: Mapping[float, int], share: float) -> float:
    """Return the upper bound below which `share` of the requests are."""
    wanted, seen = share * sum(latencies.values()), 0
    for upper, count in sorted(latencies.items()):
        seen += count
        if seen >= wanted:
            return upper
    raise AssertionError  # all of them are below the last bound


@dataclass(frozen=True)
class Health:
    """What a place did since somebody last asked, by pin."""

    traffic: Mapping[str, Traffic] = field(default_factory=dict)


class Place(Protocol):
    """One cube shard replica, one serving replica, or one edge node."""

    @property
    def name(self) -> str:
        """How people and the journal call it: `sparse/embedding/0of2/1`, `dense/0`, `edge/node-7`."""
        ...

    @property
    def leg(self) -> Leg:
        """Which leg of the target it belongs to."""
        ...

    def observe(self) -> Observed:
        """Say what is loaded, what is active and what is free, now.

        Raises:
            Unavailable: it does not answer.
        """
        ...

    def estimate(self, version: Version) -> Estimate:
        """Say what `prepare` would cost; changes nothing."""
        ...

    def prepare(self, version: Version, *, order: int) -> Shipped:
        """Bring the bytes (a delta on what is there, else the base), load beside what is loaded, warm up.

        Nothing that answers requests changes. What arrived is compared with its digests before anybody can read it: a
        replica that is repaired has readers from the moment its rows are there. Returns once the version is ready.

        Raises:
            StorageError: no room.
            IntegrityError: what arrived is not what was sent.
            Conflict: a later order came first.
        """
        ...

    def check(self, version: Version) -> None:
        """Compare rows and checksum with the bundle's and ask its probes of exactly this version.

        Raises:
            IntegrityError: something differs; says what.
        """
        ...

    def switch(self, shares: Shares, *, order: int) -> None:
        """Let unpinned requests be answered by these versions in these shares; requests under way keep theirs.

        No shares at all: no version is active any more, as before the first release.

        Raises:
            NotFound: one of them is not ready here.
            Conflict: a later order came first.
        """
        ...

    def forget(self, pin: str, *, order: int) -> None:
        """Unload a version and remove its files, once no request uses it; forgetting nothing is fine.

        Raises:
            Conflict: it is active, or a later order came first.
        """
        ...

    def watch(self) -> Health:
        """Say what each version did since this was last asked."""
        ...


@dataclass(frozen=True)
class Member:
    """One of several that share a place's pointer, such as a node of a fleet."""

    name: str
    pin: str
    """Of what it runs, as it says itself; empty: nothing, or it does not say."""
    since: str = ""
    is_there: bool = True
    memory_share: float | None = None
    """Of its memory, what is in use, if it reports that."""
    error: str = ""
    """What is wrong with it."""


@runtime_checkable
class Part(Protocol):
    """A shard replica that knows which part of which table it is there for, also while its server does not answer."""

    @property
    def table(self) -> str:
        """The table it holds a shard of."""
        ...

    @property
    def shard(self) -> int:
        """Which one."""
        ...

    @property
    def shards(self) -> int:
        """Into how many shards its layout cuts the table."""
        ...


@runtime_checkable
class Group(Protocol):
    """A place of several members. A release moves the place; who looks at it wants to see each of them."""

    def members(self) -> Sequence[Member]:
        """Say what each of them runs, now.

        Raises:
            Unavailable: nobody can tell.
        """
        ...
