"""The hub protocols: `Hub` for everything above, `ObjectStore` for the backends below.

A `Hub` keeps manifests and blobs by digest, and tags by name. An `ObjectStore` is the smaller interface that a
directory, S3 or BOS offers so that `LayoutHub` can keep an OCI image layout in it. A registry is a `Hub` directly.

Rules of both:
- a blob is visible under its digest only when all of its bytes are there and match it;
- writing a blob that is already there returns at once and moves no bytes;
- an interrupted upload is continued, not repeated;
- only `cloudedge.errors` are raised, never a library's exceptions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cloudedge.hub.core._oci import Descriptor, Digest, Manifest, Reader
    from cloudedge.hub.core._tags import Expectation, TagEntry

__all__ = ["ANY", "CHUNK", "Hub", "Lock", "ObjectInfo", "ObjectStore", "Progress", "Stored", "SureLock"]

CHUNK: Final = 1024 * 1024
"""Bytes read, hashed and sent at a time: large enough for full speed, small enough for many transfers at once."""

Progress = Callable[[int], None]
"""Called with the number of bytes as they settle: sent, received, or already there."""


class AnyVersion:
    """The expectation of a write that replaces any version."""


ANY: Final = AnyVersion()


@dataclass(frozen=True)
class ObjectInfo:
    """An object as its store lists it."""

    key: str
    size: int
    version: str
    """Changes with the content; an ETag where the store has one."""
    age_s: float
    """Seconds since it was written, by the store's clock."""


@dataclass(frozen=True)
class Stored:
    """A blob or manifest as garbage collection sees it."""

    digest: Digest
    size: int


class Lock(Protocol):
    """A held lock."""

    def check(self) -> None:
        """Check that the lock is still held; called right before a write that depends on it.

        Raises:
            Unavailable: another process may hold it by now; stop.
        """
        ...


class SureLock:
    """A lock that its living holder cannot lose, or that the hub does not need."""

    def check(self) -> None:
        """Do nothing: the lock is held."""


class ObjectStore(Protocol):
    """Named objects. Keys are relative paths with forward slashes; every method may raise `CloudEdgeError`."""

    url: str

    @property
    def compare_and_set(self) -> bool:
        """True if `put` compares and writes in one step; else the layout holds the lock ``index`` around it."""
        ...

    def head(self, key: str) -> ObjectInfo | None:
        """Describe an object, or return None."""
        ...

    def get(self, key: str, start: int = 0) -> Iterator[bytes]:
        """Stream an object from a byte offset; `NotFound` if it does not exist."""
        ...

    def put(self, key: str, data: bytes, *, expected: str | AnyVersion | None = ANY) -> None:
        """Write a small object at once. `expected` is the version it must have now; None: it must not exist yet.

        Raises:
            Conflict: its version is not `expected`.
        """
        ...

    def upload(self, key: str, blob: Descriptor, read: Reader, progress: Progress) -> None:
        """Write a large object, continuing an earlier attempt; visible only when it hashes to `blob.digest`."""
        ...

    def settle(self, keys: Sequence[str]) -> None:
        """Make uploaded objects survive a power cut; those of `put` already do."""
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """List the objects under a prefix that is empty or ends with a slash."""
        ...

    def delete(self, key: str) -> None:
        """Delete an object; a missing one is no error."""
        ...

    def sweep(self, older_than_s: float) -> int:
        """Drop unfinished uploads that were not continued for this long; returns how many."""
        ...

    def lock(self, name: str, *, shared: bool = False, wait_s: float = 60) -> AbstractContextManager[Lock]:
        """Hold a named lock, exclusive or shared; a killed holder loses it.

        Raises:
            Conflict: others still hold it after `wait_s`; names them.
        """
        ...


class Hub(Protocol):
    """A place where bundles are kept. `name` is a bundle's name (a repository); versions and tags belong to a name."""

    url: str

    def names(self) -> list[str]:
        """List the names of the bundles."""
        ...

    def tags(self, name: str) -> list[TagEntry]:
        """List every tag of a name with its whole history; empty for an unknown name."""
        ...

    def move_tag(
        self, name: str, tag: str, target: Descriptor | None, *, by: str, at: str, expected: Expectation = ANY
    ) -> TagEntry | None:
        """Point a tag at a stored manifest (None: untag). The one step that publishes.

        Raises:
            Conflict: the tag is not at `expected`, or is a version that already points elsewhere.
        """
        ...

    def forget(self, name: str, entries: list[TagEntry]) -> None:
        """Drop ended entries from the history; only while `collecting`."""
        ...

    def read_manifest(self, name: str, digest: Digest) -> Manifest:
        """Read a manifest and check it against its digest."""
        ...

    def write_manifest(self, name: str, manifest: Manifest) -> None:
        """Store a manifest under its digest only; its blobs must be stored already."""
        ...

    def has_blob(self, name: str, blob: Descriptor) -> bool:
        """Return True if the whole blob is stored."""
        ...

    def read_blob(self, name: str, blob: Descriptor, start: int = 0) -> Iterator[bytes]:
        """Stream a blob from an offset. Not verified: wrap it in `verified` when reading from the start."""
        ...

    def write_blob(self, name: str, blob: Descriptor, read: Reader, progress: Progress) -> None:
        """Store a blob, continuing an earlier attempt."""
        ...

    def writing(self) -> AbstractContextManager[Lock]:
        """Lock out garbage collection while blobs are written and not yet tagged."""
        ...

    def collecting(self) -> AbstractContextManager[Lock]:
        """Lock out writers while garbage is deleted.

        Raises:
            Conflict: another process is writing.
        """
        ...

    def stored(self) -> Iterator[Stored]:
        """List everything that may be garbage."""
        ...

    def discard(self, digest: Digest) -> None:
        """Delete a blob or manifest; only while `collecting`."""
        ...

    def sweep(self, older_than_s: float) -> int:
        """Drop unfinished uploads that were not continued for this long; returns how many. Only while `collecting`."""
        ...
