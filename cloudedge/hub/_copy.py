"""Copy a bundle from one hub to another; push, pull and copy all use it.

`plan_copy` decides which blobs must travel. `copy` moves them, several at a time, then the manifest, then the
signatures, and last the tags. A kill leaves the target unchanged but for blobs that nothing refers to yet; the next
run skips those and continues the interrupted one.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloudedge.errors import CloudEdgeError, Interrupted
from cloudedge.hub.core import Descriptor, Digest, Manifest, canonical_json, current, parse_json, verified
from cloudedge.io import map_in_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cloudedge.hub.core import Hub, Progress

__all__ = ["CopyPlan", "copy", "plan_copy", "referrers_tag", "signature_tag"]


def signature_tag(digest: Digest) -> str:
    """Return the tag that holds a manifest's signatures, as cosign names it."""
    return digest.replace(":", "-") + ".sig"


def referrers_tag(digest: Digest) -> str:
    """Return the tag of the index of a manifest's referrers, as OCI 1.1 names it for registries without their API."""
    return digest.replace(":", "-")


@dataclass(frozen=True)
class CopyPlan:
    """The blobs to move and those the target already has."""

    manifest: Manifest
    missing: tuple[Descriptor, ...]
    present: tuple[Descriptor, ...]

    @property
    def bytes_missing(self) -> int:
        """Bytes to move."""
        return sum(blob.size for blob in self.missing)

    @property
    def bytes_total(self) -> int:
        """The bundle's total bytes."""
        return self.bytes_missing + sum(blob.size for blob in self.present)


def plan_copy(
    source: Hub,
    target: Hub,
    name: str,
    digest: Digest,
    *,
    jobs: int = 4,
    wanted: Callable[[Descriptor], bool] = lambda _: True,
) -> CopyPlan:
    """Compare a bundle's blobs with the target's. Reads only."""
    manifest = source.read_manifest(name, digest)
    needed = [blob for blob in manifest.blobs if wanted(blob)]
    there = map_in_threads(lambda blob: target.has_blob(name, blob), needed, jobs)
    blobs = list(zip(needed, there, strict=True))
    return CopyPlan(
        manifest,
        missing=tuple(blob for blob, has in blobs if not has),
        present=tuple(blob for blob, has in blobs if has),
    )


def copy(
    source: Hub,
    target: Hub,
    name: str,
    digest: Digest,
    *,
    tags: Sequence[str],
    by: str,
    at: str,
    jobs: int = 4,
    progress: Progress = lambda _: None,
    planned: Callable[[CopyPlan], None] = lambda _: None,
    wanted: Callable[[Descriptor], bool] = lambda _: True,
) -> CopyPlan:
    """Copy a bundle with its signatures and set `tags` on it.

    Args:
        source: The hub that has the bundle.
        target: The hub to copy it to.
        name: The bundle's name in both.
        digest: The bundle's digest.
        tags: Tags to set in the target, versions first; set in this order, after everything else.
        by: The user, for the tags' history.
        at: The time, for the tags' history.
        jobs: The number of parallel blob transfers.
        progress: Called with the number of settled bytes.
        planned: Called with the plan before anything moves.
        wanted: Selects the blobs to move; only a caller that knows they are missing can use such a bundle.

    Returns:
        The blobs that were moved and those that were not.

    Raises:
        Interrupted: a transfer failed and can be repeated; what arrived is kept.
    """
    # Inside writing(): otherwise a collection could delete a blob between "it is there" and the manifest that needs it.
    with target.writing() as lock:
        plan = plan_copy(source, target, name, digest, jobs=jobs, wanted=wanted)
        planned(plan)
        _move_blobs(source, target, name, plan.missing, jobs=jobs, progress=progress)
        lock.check()
        target.write_manifest(name, plan.manifest)
        _copy_signatures(source, target, name, digest, by=by, at=at)
        for tag in tags:
            lock.check()
            target.move_tag(name, tag, plan.manifest.descriptor, by=by, at=at)
    return plan


def _move_blobs(
    source: Hub, target: Hub, name: str, blobs: Sequence[Descriptor], *, jobs: int, progress: Progress
) -> None:
    stop = threading.Event()

    def reader(blob: Descriptor) -> Callable[[int], Iterator[bytes]]:
        def read(start: int) -> Iterator[bytes]:
            chunks = source.read_blob(name, blob, start)
            # A target that continues at `start` hashes what it already has, and so the whole blob.
            for chunk in chunks if start else verified(chunks, blob, source.url):
                if stop.is_set():
                    raise Interrupted(f"stopped while copying {blob.digest}")
                yield chunk

        return read

    with ThreadPoolExecutor(jobs) as pool:
        # Large blobs first, so that a small one finishes last.
        queue = sorted(blobs, key=lambda blob: -blob.size)
        running = [pool.submit(target.write_blob, name, blob, reader(blob), progress) for blob in queue]
        try:
            for done in as_completed(running):
                done.result()
        except BaseException as error:
            stop.set()
            for waiting in running:
                waiting.cancel()
            if isinstance(error, CloudEdgeError) and error.retry_helps:
                raise Interrupted(
                    f"copying {name} from {source.url} to {target.url} stopped: {error.message}",
                    hint="Run the same command again to continue; what arrived is kept.",
                ) from error
            raise


def _copy_signatures(source: Hub, target: Hub, name: str, digest: Digest, *, by: str, at: str) -> None:
    entries = source.tags(name)
    for tag in (signature_tag(digest), referrers_tag(digest)):
        entry = current(entries, tag)
        if entry is None:
            continue
        manifest = source.read_manifest(name, entry.target.digest)
        for child in manifest.manifests:
            _copy_small(source, target, name, source.read_manifest(name, child.digest))
        there = current(target.tags(name), tag) if manifest.manifests else None
        if there is not None:
            manifest = _joined(target.read_manifest(name, there.target.digest), manifest)
        _copy_small(source, target, name, manifest)
        target.move_tag(name, tag, manifest.descriptor, by=by, at=at)


def _copy_small(source: Hub, target: Hub, name: str, manifest: Manifest) -> None:
    for blob in manifest.blobs:
        if not target.has_blob(name, blob):
            target.write_blob(name, blob, lambda start, b=blob: source.read_blob(name, b, start), lambda _: None)  # type: ignore[misc]
    target.write_manifest(name, manifest)


def _joined(there: Manifest, here: Manifest) -> Manifest:
    """Return the index of the target with the entries of the source that it lacks; the target's others stay."""
    value = parse_json(there.raw, "index of referrers")
    known = {entry.digest for entry in there.manifests}
    wanted = parse_json(here.raw, "index of referrers")["manifests"]
    added = [entry for entry in wanted if entry["digest"] not in known]
    if not added:
        return there
    return Manifest.parse(canonical_json({**value, "manifests": [*(value.get("manifests") or ()), *added]}))
