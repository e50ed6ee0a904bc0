"""The `Replica` protocol: one server of one shard of one table, as a delivery sees it.

Every method may be called again after it succeeded, failed or was interrupted, and then does the rest. None waits
without a deadline. The errors name the replica:

    Unavailable       it did not answer, or not in time; a retry helps, and the caller owns the retries
    IntegrityError    bytes or rows do not match the artifact
    StorageError      it has not enough disk or memory
    InputError        it does not accept this: a delta for a base it does not have
    Conflict          the version cannot be unloaded: it is active, or the one to roll back to
    NotFound          the version is not there
    Rejected          it does not support that at all
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from cloudedge.cube.formats import Artifact, Form, Source

__all__ = ["Loading", "Replica", "ReplicaStatus", "VersionState"]

Loading = Literal["staging", "staged", "loading", "loaded", "failed"]
"""``staged``: the files are there and verified; ``loaded``: it answers pinned reads."""


@dataclass(frozen=True)
class VersionState:
    """One version on one replica."""

    state: Loading
    rows: int | None = None
    """None where the server cannot report it."""
    checksum: str | None = None
    """The checksum of its rows; None where the server cannot report it."""
    deltas: int = 0
    """The number of deltas it is made of, on top of a base."""
    delta_bytes: int = 0
    """The bytes of those deltas on its disk."""
    memory_bytes: int = 0
    error: str = ""
    """The reason of its failure."""


@dataclass(frozen=True)
class ReplicaStatus:
    """The versions, the room and the abilities of a replica."""

    versions: Mapping[str, VersionState] = field(default_factory=dict)
    """By name, the oldest first."""
    active: str | None = None
    """The version that answers reads without a pin."""
    previous: str | None = None
    """The version that was active before, to which it can roll back at once."""
    can_pin: bool = True
    """True if a read can pin the version that has to answer."""
    can_delta: bool = True
    """True if it accepts row deltas."""
    form: Form = "files"
    """The form in which it accepts a base."""
    free_disk_bytes: int | None = None
    free_memory_bytes: int | None = None
    keys: int = 0
    """Keys asked for since its start."""
    misses: int = 0
    """Keys among them that were not found."""
    order: int = 0
    """The highest order that it has obeyed, where it tells."""

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
        """Return the versions it has, and its free room."""

    def stage(self, name: str, artifact: Artifact) -> int:
        """Bring a version's files there and verify them, continuing an earlier attempt.

        Returns:
            Bytes that travelled; 0 when they were there.
        """

    def load(self, name: str, base: str | None = None) -> None:
        """Load a staged version beside the others, a delta on top of the loaded version `base`; waits for it."""

    def probe(self, name: str, keys: Sequence[int]) -> list[bytes | None]:
        """Read keys from exactly that version; None for a key it does not have."""

    def activate(self, name: str) -> None:
        """Make a loaded version answer reads without a pin, and verify that it does."""

    def deactivate(self) -> None:
        """Make no version answer reads without a pin, as before the first one.

        Raises:
            Rejected: it cannot, once a version has answered.
        """

    def unload(self, name: str) -> None:
        """Unload a version and remove its files; does nothing if it is not there."""

    def peer(self, name: str) -> Source | None:
        """Return the source from which other replicas may fetch a staged version's files; None if there is none."""
