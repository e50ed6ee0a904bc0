"""A hub kept as an OCI image layout in an object store: ``oci-layout``, ``index.json``, ``blobs/sha256/*``.

Tags and their history are descriptors in ``index.json``, so that one write moves a tag *and* records the move, and
any tool that collects garbage in a layout keeps what the history needs. Descriptors of other tools stay unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from cloudedge.clock import Clock, SystemClock
from cloudedge.errors import Conflict, InputError, IntegrityError, NotFound
from cloudedge.hub.core import (
    ANY,
    IMAGE_INDEX,
    MANIFEST_LIMIT,
    AnyVersion,
    Descriptor,
    Digest,
    Expectation,
    Lock,
    Manifest,
    ObjectStore,
    Progress,
    Stored,
    TagEntry,
    canonical_json,
    check_name,
    check_tag,
    current,
    digest_of,
    moved,
    parse_digest,
    parse_json,
)
from cloudedge.io import Backoff, Patience

if TYPE_CHECKING:
    from cloudedge.hub.core import Reader

__all__ = ["LayoutHub", "blob_key"]

_LAYOUT = "oci-layout"
_INDEX = "index.json"
_BLOBS = "blobs/sha256/"
_INDEX_LIMIT = 64 * 1024 * 1024
_REF_ANNOTATION = "org.opencontainers.image.ref.name"
_TAG_ANNOTATION = "io.cloudedge.tag"
_INDEX_TRIES = 100
"""Lost races before giving up; each means that another process's write succeeded."""
_BACKOFF = Backoff(0.01, 0.5, 0.0, 1.0)


class LayoutHub:
    """A `Hub` in any `ObjectStore`."""

    def __init__(self, store: ObjectStore, clock: Clock | None = None) -> None:
        self.store = store
        self.url = store.url
        self._clock = clock or SystemClock()

    def names(self) -> list[str]:
        """List the names of the bundles."""
        found = (_name_and_tag(entry) for entry in self._read_index()[0]["manifests"])
        return sorted({name for name, _ in filter(None, found)})

    def tags(self, name: str) -> list[TagEntry]:
        """List every tag of a name with its whole history."""
        return _entries(self._read_index()[0], name)

    def move_tag(
        self, name: str, tag: str, target: Descriptor | None, *, by: str, at: str, expected: Expectation = ANY
    ) -> TagEntry | None:
        """Point a tag at a stored manifest (None: untag)."""
        check_name(name)
        check_tag(tag)
        if target is not None and self.store.head(blob_key(target.digest)) is None:
            raise NotFound(f"{self.url} has no manifest {target.digest} to tag", digest=target.digest)

        def change(index: dict[str, Any]) -> bool:
            before = _entries(index, name)
            after = moved(before, tag, target, by=by, at=at, expected=expected)
            if after is before:
                return False
            _set_entries(index, name, after)
            return True

        return current(_entries(self._update_index(change), name), tag)

    def forget(self, name: str, entries: list[TagEntry]) -> None:
        """Drop ended entries from the history."""
        gone = {(entry.tag, entry.seq) for entry in entries if not entry.is_current}

        def change(index: dict[str, Any]) -> bool:
            before = _entries(index, name)
            after = [e for e in before if e.is_current or (e.tag, e.seq) not in gone]
            _set_entries(index, name, after)
            return len(after) != len(before)

        self._update_index(change)

    def read_manifest(self, name: str, digest: Digest) -> Manifest:  # noqa: ARG002 - one blob space for all names
        """Read a manifest and check it against its digest."""
        raw = self._read_small(blob_key(digest), MANIFEST_LIMIT)
        if raw is None:
            raise NotFound(f"{self.url} has no manifest {digest}", digest=digest)
        if digest_of(raw) != digest:
            raise IntegrityError(
                f"{self.url}: manifest {digest} is damaged",
                hint="Push the bundle again from a hub where it verifies.",
                digest=digest,
            )
        return Manifest.parse(raw)

    def write_manifest(self, name: str, manifest: Manifest) -> None:
        """Store a manifest under its digest only."""
        check_name(name)
        # A killed process may have written the blobs: sync them before anything refers to them.
        self.store.settle([blob_key(blob.digest) for blob in manifest.blobs])
        if not self.has_blob(name, manifest.descriptor):
            self.store.put(blob_key(manifest.digest), manifest.raw)

    def has_blob(self, name: str, blob: Descriptor) -> bool:  # noqa: ARG002 - one blob space for all names
        """Return True if the whole blob is stored."""
        info = self.store.head(blob_key(blob.digest))
        return info is not None and info.size == blob.size

    def read_blob(self, name: str, blob: Descriptor, start: int = 0) -> Iterator[bytes]:  # noqa: ARG002
        """Stream a blob from an offset."""
        return self.store.get(blob_key(blob.digest), start)

    def write_blob(self, name: str, blob: Descriptor, read: Reader, progress: Progress) -> None:
        """Store a blob, continuing an earlier attempt."""
        if self.has_blob(name, blob):
            progress(blob.size)
        else:
            self.store.upload(blob_key(blob.digest), blob, read, progress)

    def writing(self) -> AbstractContextManager[Lock]:
        """Lock out garbage collection while blobs are written and not yet tagged."""
        return self.store.lock("blobs", shared=True, wait_s=600)

    def collecting(self) -> AbstractContextManager[Lock]:
        """Lock out writers while garbage is deleted."""
        return self.store.lock("blobs", wait_s=0)

    def stored(self) -> Iterator[Stored]:
        """List every blob and manifest."""
        for info in self.store.list(_BLOBS):
            try:
                digest = parse_digest("sha256:" + info.key.removeprefix(_BLOBS))
            except InputError:
                continue  # a foreign file
            yield Stored(digest, info.size)

    def discard(self, digest: Digest) -> None:
        """Delete a blob or manifest; only while `collecting`."""
        self.store.delete(blob_key(digest))

    def sweep(self, older_than_s: float) -> int:
        """Drop unfinished uploads that were not continued for this long."""
        return self.store.sweep(older_than_s)

    def _read_small(self, key: str, limit: int) -> bytes | None:
        data = b""
        try:
            for chunk in self.store.get(key):
                data += chunk
                if len(data) > limit:
                    raise InputError(f"{self.url}: {key} is over the limit of {limit} bytes")
        except NotFound:
            return None
        return data

    def _read_index(self) -> tuple[dict[str, Any], str | None]:
        """Read ``index.json`` and its version; a missing one is empty."""
        info = self.store.head(_INDEX)
        raw = self._read_small(_INDEX, _INDEX_LIMIT) if info else None
        if info is None or raw is None:
            return {"schemaVersion": 2, "mediaType": IMAGE_INDEX, "manifests": []}, None
        index = parse_json(raw, f"{self.url}/{_INDEX}")
        manifests = index.setdefault("manifests", [])
        if not isinstance(manifests, list) or not all(isinstance(entry, dict) for entry in manifests):
            raise InputError(f"{self.url}/{_INDEX}: 'manifests' is not a list of descriptors")
        return index, info.version

    def _update_index(self, change: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Change ``index.json`` without losing concurrent changes; `change` returns True if it changed the index."""
        if not self.store.compare_and_set:
            with self.store.lock("index") as lock:
                index, version = self._read_index()
                if change(index):
                    lock.check()
                    self._write_index(index, version, expected=ANY)
                return index
        patience = Patience(_INDEX_TRIES, _BACKOFF, self._clock)
        while True:
            index, version = self._read_index()
            if not change(index):
                return index
            try:
                self._write_index(index, version, expected=version)
            except Conflict as lost:
                if not patience.wait():
                    raise Conflict(
                        f"{self.url}: lost {_INDEX_TRIES} races to change {_INDEX}",
                        hint="Run the command again; many processes move tags in this hub at once.",
                    ) from lost
            else:
                return index

    def _write_index(self, index: dict[str, Any], version: str | None, *, expected: str | AnyVersion | None) -> None:
        if version is None:
            self.store.put(_LAYOUT, json.dumps({"imageLayoutVersion": "1.0.0"}).encode())
        self.store.put(_INDEX, canonical_json(index), expected=expected)


def blob_key(digest: Digest) -> str:
    """Return the key of a blob in a layout."""
    return _BLOBS + parse_digest(digest).removeprefix("sha256:")


def _name_and_tag(entry: dict[str, Any]) -> tuple[str, str] | None:
    """Return the name and tag of a descriptor in the index, if cloudedge wrote it."""
    annotations = entry.get("annotations")
    if not isinstance(annotations, dict):
        return None
    ref = annotations.get(_REF_ANNOTATION) or annotations.get(f"{_TAG_ANNOTATION}.was") or ""
    name, colon, tag = str(ref).rpartition(":")
    return (name, tag) if colon and name and tag else None


def _parse_entries(index: dict[str, Any], name: str) -> dict[TagEntry, dict[str, Any]]:
    """Parse a name's tag entries, each with its descriptor."""
    found = {}
    for value in index["manifests"]:
        named = _name_and_tag(value)
        if named is None or named[0] != name:
            continue
        descriptor = Descriptor.from_json(value, "index entry")
        notes = descriptor.annotations
        entry = TagEntry(
            tag=named[1],
            target=Descriptor(descriptor.media_type, descriptor.digest, descriptor.size),
            seq=int(notes.get(f"{_TAG_ANNOTATION}.seq", 0)),
            since=notes.get(f"{_TAG_ANNOTATION}.since", ""),
            by=notes.get(f"{_TAG_ANNOTATION}.by", ""),
            until=notes.get(f"{_TAG_ANNOTATION}.until", ""),
            ended_by=notes.get(f"{_TAG_ANNOTATION}.ended-by", ""),
        )
        found[entry] = value
    return found


def _entries(index: dict[str, Any], name: str) -> list[TagEntry]:
    return list(_parse_entries(index, name))


def _set_entries(index: dict[str, Any], name: str, entries: list[TagEntry]) -> None:
    written = _parse_entries(index, name)
    others = [v for v in index["manifests"] if (_name_and_tag(v) or ("", ""))[0] != name]
    ours = sorted(entries, key=lambda e: (e.tag, e.seq))
    index["manifests"] = others + [written.get(entry) or _to_json(name, entry) for entry in ours]


def _to_json(name: str, entry: TagEntry) -> dict[str, Any]:
    notes = {
        _REF_ANNOTATION if entry.is_current else f"{_TAG_ANNOTATION}.was": f"{name}:{entry.tag}",
        f"{_TAG_ANNOTATION}.seq": str(entry.seq),
        f"{_TAG_ANNOTATION}.since": entry.since,
        f"{_TAG_ANNOTATION}.by": entry.by,
    }
    if not entry.is_current:
        notes |= {f"{_TAG_ANNOTATION}.until": entry.until, f"{_TAG_ANNOTATION}.ended-by": entry.ended_by}
    return {**entry.target.to_json(), "annotations": notes}
