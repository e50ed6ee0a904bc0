"""One server of one shard of one table, as a delivery sees it.

Every method may be called again after it succeeded, failed or was cut short, and then does what is left to do. None
waits without a deadline. What they raise names the replica:

    Unavailable       it did not answer, or not in time; trying again helps, and whoever calls does
    IntegrityError    bytes or rows are not what the artifact says
    StorageError      it has not enough disk or memory
    InputError        it will not take this: a delta for a base it does not have
    Conflict          the version may not go: it is active, or the one to go back to
    NotFound          the version is not there
    Rejected          it cannot do that at all
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from cloudedge.cube.formats import Artifact, Form, Source

__all__ = ["Loading", "Replica", "ReplicaStatus", "VersionState"]

Loading = Literal["staging", "staged", "loading", "loaded", "failed"]
"""``staged``: the bytes are there and checked; ``loaded``: pinned reads are answered from it."""


@dataclass(frozen=True)
class VersionState:
    """One version on one replica."""

    state: Loading
    rows: int | None = None
    """None where the server cannot tell."""
    checksum: str | None = None
    """Of its rows; None where the server cannot tell."""
    deltas: int = 0
    """How many deltas it is made of, on top of a base."""
    delta_bytes: int = 0
    """What those deltas take on its disk."""
    memory_bytes: int = 0
    error: str = ""
    """Why it failed."""


@dataclass(frozen=True)
class ReplicaStatus:
    """What a replica has and can do."""

    versions: Mapping[str, VersionState] = field(default_factory=dict)
    """By name, the oldest first."""
    active: str | None = None
    """The version that answers reads without a pin."""
    previous: str | None = None
    """The version that was active before, which it can go back to at once."""
    can_pin: bool = True
    """Whether a read can name the version that has to answer."""
    can_delta: bool = True
    """Whether it takes row deltas."""
    form: Form = "files"
    """What it wants a base to come as."""
    free_disk_bytes: int | None = None
    free_memory_bytes: int | None = None
    keys: int = 0
    """Asked for since its start."""
    misses: int = 0
    """Of those, not found."""

    def loaded(self) -> dict[str, VersionState]:
        """Return the versions that answer pinned reads."""
        return {name: version for name, version in self.versions.items() if version.state == "loaded"}


class Replica(Protocol):
    """One server of one shard of one table."""

    @property
    def name(self) -> str:
        """``table/shard/replica``, for messages and the journal; the same in every run."""

    @property
    def shard(self) -> int:
        """The shard it serves."""

    def status(self) -> ReplicaStatus:
        """Ask what it has."""

    def stage(self, name: str, artifact: Artifact) -> int:
        """Bring a version's bytes there, checked, going on where an earlier attempt stopped.

        Returns:
            Bytes that travelled; 0 when they were there.
        """

    def load(self, name: str, base: str | None = None) -> None:
        """Load a staged version beside the others, a delta on top of the loaded version `base`; waits for it."""

    def probe(self, name: str, keys: Sequence[int]) -> list[bytes | None]:
        """Read keys from exactly that version; None for a key it does not have."""

    def activate(self, name: str) -> None:
        """Make a loaded version answer reads without a pin, and make sure that it does."""

    def deactivate(self) -> None:
        """Make no version answer reads without a pin, as before the first one.

        Raises:
            Rejected: it cannot, once a version has answered.
        """

    def unload(self, name: str) -> None:
        """Let a version go, its files too; nothing happens if it is not there."""

    def peer(self, name: str) -> Source | None:
        """Return where other replicas may fetch a staged version's files; None if they may not."""
