"""The two seams of the hub.

`Hub` is what everything above uses: manifests and blobs by digest, tags by name. `ObjectStore` is the smaller
thing a directory, S3 or BOS has to offer so that `LayoutHub` can keep an OCI image layout in it. A registry is
a `Hub` directly.

The rules both keep:
- nothing is visible under a digest until all of its bytes are there and hash to it;
- writing what is there already is done at once and moves no bytes;
- an interrupted upload is continued, not repeated;
- foreign exceptions do not leave: they become one class of `cloudedge.errors`.
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
"""Bytes read, hashed and sent at a time: large enough for full speed, small enough for many at once."""

Progress = Callable[[int], None]
"""Told of bytes as they are settled: sent, received, or found to be there already."""


class AnyVersion:
    """Says: put the object whatever is there now."""


ANY: Final = AnyVersion()


@dataclass(frozen=True)
class ObjectInfo:
    """An object as its store lists it."""

    key: str
    size: int
    version: str
    """Changes whenever the content does; an ETag where there is one."""
    age_s: float
    """Seconds since it was written, by the store's own clock."""


@dataclass(frozen=True)
class Stored:
    """A blob or manifest as garbage collection sees it."""

    digest: Digest
    size: int


class Lock(Protocol):
    """A lock that is held."""

    def check(self) -> None:
        """Make sure that it still is; called right before a write that depends on it.

        Raises:
            Unavailable: others may hold it by now: stop.
        """
        ...


class SureLock:
    """A lock that cannot be lost while its holder lives, or that nobody needs."""

    def check(self) -> None:
        """Do nothing: it is held."""


class ObjectStore(Protocol):
    """Named objects. Keys are relative, with forward slashes; every method may raise `CloudEdgeError`."""

    url: str

    @property
    def compare_and_set(self) -> bool:
        """Whether `put` compares and writes in one step; where not, the layout holds the lock ``index`` meanwhile."""
        ...

    def head(self, key: str) -> ObjectInfo | None:
        """Describe an object, or return None."""
        ...

    def get(self, key: str, start: int = 0) -> Iterator[bytes]:
        """Stream an object from a byte offset; `NotFound` if it is not there."""
        ...

    def put(self, key: str, data: bytes, *, expected: str | AnyVersion | None = ANY) -> None:
        """Write a small object at once. `expected`: the version it must have now, None for "not there yet".

        Raises:
            Conflict: it has another version than `expected`.
        """
        ...

    def upload(self, key: str, blob: Descriptor, read: Reader, progress: Progress) -> None:
        """Write a large object, continuing an earlier attempt; visible only once it hashes to `blob.digest`."""
        ...

    def settle(self, keys: Sequence[str]) -> None:
        """Make uploaded objects survive a power cut; what `put` wrote does so already."""
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """List the objects under a prefix that is empty or ends with a slash."""
        ...

    def delete(self, key: str) -> None:
        """Delete an object; deleting nothing is fine."""
        ...

    def sweep(self, older_than_s: float) -> int:
        """Drop unfinished uploads that nobody continued for so long; returns how many."""
        ...

    def lock(self, name: str, *, shared: bool = False, wait_s: float = 60) -> AbstractContextManager[Lock]:
        """Hold a named lock, alone or with other sharers; a killed holder loses it.

        Raises:
            Conflict: others hold it and did not let go within `wait_s`; says who.
        """
        ...


class Hub(Protocol):
    """A place bundles are kept. `name` is a bundle's name (a repository); versions and tags belong to a name."""

    url: str

    def names(self) -> list[str]:
        """List the names bundles are kept under."""
        ...

    def tags(self, name: str) -> list[TagEntry]:
        """List every tag of a name with its whole history; empty if there is no such name."""
        ...

    def move_tag(
        self, name: str, tag: str, target: Descriptor | None, *, by: str, at: str, expected: Expectation = ANY
    ) -> TagEntry | None:
        """Point a tag at a manifest that is there (None: untag). The one step that publishes.

        Raises:
            Conflict: the tag is not where `expected` says, or is a version and points elsewhere already.
        """
        ...

    def forget(self, name: str, entries: list[TagEntry]) -> None:
        """Drop ended entries from the history; only while `collecting`."""
        ...

    def read_manifest(self, name: str, digest: Digest) -> Manifest:
        """Read a manifest and check it against its digest."""
        ...

    def write_manifest(self, name: str, manifest: Manifest) -> None:
        """Store a manifest under its digest only; its blobs are there already."""
        ...

    def has_blob(self, name: str, blob: Descriptor) -> bool:
        """Tell whether a whole blob is there."""
        ...

    def read_blob(self, name: str, blob: Descriptor, start: int = 0) -> Iterator[bytes]:
        """Stream a blob from an offset. Not checked: wrap it in `verified` when reading from the start."""
        ...

    def write_blob(self, name: str, blob: Descriptor, read: Reader, progress: Progress) -> None:
        """Store a blob, continuing an earlier attempt."""
        ...

    def writing(self) -> AbstractContextManager[Lock]:
        """Keep garbage collection away while blobs are written and not yet tagged."""
        ...

    def collecting(self) -> AbstractContextManager[Lock]:
        """Keep writers away while garbage is deleted.

        Raises:
            Conflict: someone is writing.
        """
        ...

    def stored(self) -> Iterator[Stored]:
        """List everything that could be garbage."""
        ...

    def discard(self, digest: Digest) -> None:
        """Delete a blob or manifest; only while `collecting`."""
        ...

    def sweep(self, older_than_s: float) -> int:
        """Drop unfinished uploads that nobody continued for so long; returns how many. Only while `collecting`."""
        ...
