"""Places: the protocol of everything a release changes. A cube shard replica, a serving replica, a fleet.

`Place` is the whole protocol; the simulator implements the same one as the real adapters. Four rules hold for all:

- Every method may be called again after it seemed to fail, and running it twice equals running it once.
- A promise survives a restart: after its process was killed, a place still has every version that `load` returned for
  and the shares that `activate` set, or `observe` reports that it does not.
- Every change carries an `order`, a number that only grows on a target. A place remembers the highest, where it can,
  and raises `Conflict` for a lower one, so that a call that the network delayed no longer changes anything.
- Every method has its own deadline. Errors come from `cloudedge.errors`; the caller believes their `retry_helps`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from cloudedge._renamed_arguments import renamed_arguments

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
    "Supervised",
    "Traffic",
]

Leg = Literal["sparse", "dense", "edge"]
Shares = Mapping[str, float]
"""By pin: its share of unpinned requests. Shares sum to 1; without any, no version is active."""


@dataclass(frozen=True)
class Loaded:
    """A version at a place."""

    state: Literal["loading", "ready", "failed"] = "ready"
    rows: int | None = None
    """Sparse: rows of this shard; None for other legs."""
    checksum: str = ""
    """The checksum of those rows, computed by the place itself."""
    memory_bytes: int = 0
    shards: int | None = None
    """Sparse: how many shards its table was cut into when this version was loaded, where the place can tell."""
    error: str = ""
    """Why it failed."""
    digest: str = ""
    """The whole digest of its bundle, where the place can tell; a pin is only the beginning of it."""


@renamed_arguments(memory_free_bytes="free_memory_bytes", disk_free_bytes="free_disk_bytes")
@dataclass(frozen=True)
class Observed:
    """The state that a place reported."""

    name: str
    leg: Leg
    versions: Mapping[str, Loaded] = field(default_factory=dict)
    """By pin."""
    active: Shares = field(default_factory=dict)
    table: str = ""
    """Sparse: the table it holds a shard of."""
    shard: int = 0
    shards: int = 1
    """Sparse: the number of shards that its layout cuts the table into."""
    free_memory_bytes: int | None = None
    """None: unknown, and then no plan is refused for lack of it."""
    free_disk_bytes: int | None = None
    host: str = ""
    """Places of the same host share its free memory and disk; empty: this place shares with no other."""
    signature: Signature | None = None
    """Dense and edge: the feeds and fetches of the active version."""
    order: int = 0
    """The highest order that it has obeyed, where it remembers that; 0: none, or it does not tell."""
    error: str = ""
    """Why the place could not be observed; everything else is then unknown."""

    @property
    def is_reachable(self) -> bool:
        """True if the place answered."""
        return not self.error

    def has(self, pin: str) -> bool:
        """Tell whether a version is loaded and can answer."""
        return pin in self.versions and self.versions[pin].state == "ready"


@dataclass(frozen=True)
class Estimate:
    """The cost of loading a version at a place, in advance."""

    ship_bytes: int = 0
    """Bytes that would travel: of a delta, where the place has a base for one."""
    memory_bytes: int = 0
    """Memory that it needs beside what is loaded now."""
    disk_bytes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Shipped:
    """The cost of loading a version, afterwards."""

    bytes: int = 0
    """Bytes that travelled; 0 if the version was there already."""
    how: Literal["nothing", "delta", "base"] = "base"


@dataclass(frozen=True)
class Traffic:
    """The requests that one version answered since the last look."""

    requests: int = 0
    errors: int = 0
    latency_p50_ms: float = 0.0
    latency_p99_ms: float = 0.0
    lookups: int = 0
    """Rows asked for."""
    misses: int = 0
    """Rows that were missing and answered with a declared default or an error."""
    scores: int = 0
    score_sum: float = 0.0
    score_squares: float = 0.0
    """The sum of squares, so that mean and deviation of several places add up."""
    latencies: Mapping[float, int] = field(default_factory=dict)
    """Requests by the upper bound of their latency in ms, where a place counts them. Counts add up over places and
    looks, percentiles do not; where there are counts, the percentiles follow from them."""

    def __post_init__(self) -> None:
        if any(self.latencies.values()):
            object.__setattr__(self, "latency_p50_ms", _percentile(self.latencies, 0.5))
            object.__setattr__(self, "latency_p99_ms", _percentile(self.latencies, 0.99))

    def slower_than(self, bound_ms: float) -> int:
        """Count the requests that certainly took longer: those in buckets that begin at the bound or later."""
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
    """The traffic of a place since the last look, by pin."""

    traffic: Mapping[str, Traffic] = field(default_factory=dict)


class Place(Protocol):
    """One thing that a release changes: a cube shard replica, a serving replica, or a fleet of edge nodes."""

    @property
    def name(self) -> str:
        """Its name for operators and the journal: `sparse/embedding/0of2/1`, `dense/0`, `edge/ctr`."""
        ...

    @property
    def leg(self) -> Leg:
        """The leg of the target that it belongs to."""
        ...

    def observe(self) -> Observed:
        """Report what is loaded, what is active and what is free.

        Raises:
            Unavailable: it does not answer.
        """
        ...

    def estimate(self, version: Version) -> Estimate:
        """Estimate what `load` would cost; changes nothing."""
        ...

    def load(self, version: Version, *, order: int) -> Shipped:
        """Stage a version (as a delta where the place has a base for one), load it beside the others, warm it up.

        Nothing that answers requests changes. The place compares what arrived with its digests before a reader can see
        it: a replica under repair has readers from the moment its rows are there. Returns once the version is ready.

        Raises:
            StorageError: there is no room.
            IntegrityError: the bytes that arrived are not those that were sent.
            Conflict: a later order came first.
        """
        ...

    def verify(self, version: Version) -> None:
        """Compare rows and checksum with the bundle's, and ask the bundle's probes of exactly this version.

        Raises:
            IntegrityError: something differs; the message names it.
        """
        ...

    def activate(self, shares: Shares, *, order: int) -> None:
        """Answer unpinned requests with these versions in these shares; requests under way keep their version.

        Without shares no version is active any more, as before the first release.

        Raises:
            NotFound: one of them is not ready here.
            Conflict: a later order came first.
        """
        ...

    def unload(self, pin: str, *, order: int) -> None:
        """Unload a version and remove its files, once no request uses it; does nothing if it is not loaded.

        Raises:
            Conflict: it is active, or a later order came first.
        """
        ...

    def watch(self) -> Health:
        """Report the traffic of each version since the last call."""
        ...


@dataclass(frozen=True)
class Member:
    """One member of a group that shares a pointer, such as a node of a fleet."""

    name: str
    pin: str
    """The version that it reports to run; empty: none, or it does not report."""
    since: str = ""
    is_there: bool = True
    memory_share: float | None = None
    """The share of its memory that is in use, if it reports that."""
    error: str = ""
    """Its fault, if it has one."""


@runtime_checkable
class Part(Protocol):
    """A shard replica that knows its table and shard also while its server does not answer."""

    @property
    def table(self) -> str:
        """The table it holds a shard of."""
        ...

    @property
    def shard(self) -> int:
        """The number of the shard."""
        ...

    @property
    def shards(self) -> int:
        """The number of shards that its layout cuts the table into."""
        ...


@runtime_checkable
class Supervised(Protocol):
    """A place whose process is restarted when it ends or hangs."""

    def restarts(self) -> str:
        """Describe the restarts of its process, for people; empty if there were none."""
        ...


@runtime_checkable
class Group(Protocol):
    """A place of several members. A release moves the place as a whole; a status shows every member."""

    def members(self) -> Sequence[Member]:
        """Report what each member runs.

        Raises:
            Unavailable: the members cannot be asked.
        """
        ...
