"""Garbage collection: what nothing refers to any more goes, and everything kept has a reason.

Roots are tags (versions among them), where tags pointed within the retention, and the tags by which a release
says what is live or may be rolled back to. `plan_gc` decides, from data alone; `collect` does it, history first
and manifests before their blobs, so that a kill in between leaves only more garbage, never a dangling pointer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from cloudedge.errors import NotFound
from cloudedge.hub._copy import signature_tag
from cloudedge.hub.core import Digest, Manifest, Stored, TagEntry, is_version

if TYPE_CHECKING:
    from cloudedge.hub.core import Hub

__all__ = ["GcPlan", "Kept", "collect", "observe", "plan_gc", "release_tag"]

_RELEASE = "release."
_UNFINISHED_S = 24 * 3600
"""An upload that nobody continued for a day is not going to be."""


def release_tag(target: str, role: str) -> str:
    """Return the tag by which a release keeps what is live (or its rollback) on a target from collection."""
    return f"{_RELEASE}{target}.{role}"


@dataclass(frozen=True)
class Kept:
    """A manifest that stays, and why."""

    name: str
    digest: Digest
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class GcPlan:
    """What a collection does."""

    kept: tuple[Kept, ...]
    delete: tuple[Stored, ...]
    forget: tuple[tuple[str, TagEntry], ...]
    """History entries beyond the retention, by name."""
    manifests: frozenset[Digest]
    """Which of `delete` are manifests."""

    @property
    def bytes_freed(self) -> int:
        """Bytes the deletions free."""
        return sum(item.size for item in self.delete)


def plan_gc(
    tags: Mapping[str, Sequence[TagEntry]],
    manifests: Mapping[Digest, Manifest],
    stored: Iterable[Stored],
    *,
    now: datetime,
    retention: timedelta,
) -> GcPlan:
    """Decide what goes and what stays. Pure.

    Args:
        tags: All names with their tags' histories.
        manifests: Every manifest that an entry of `tags` points at.
        stored: Everything that is there.
        now: The time that `retention` counts back from.
        retention: How long a manifest stays after the last tag left it.
    """
    reasons: dict[tuple[str, Digest], list[str]] = {}
    forget: list[tuple[str, TagEntry]] = []
    for name, entries in tags.items():
        subjects: dict[str, Digest] = {}
        for entry in entries:
            if entry.tag.endswith(".sig"):
                continue
            reason = _reason(entry, now, retention)
            if reason:
                reasons.setdefault((name, entry.target.digest), []).append(reason)
                subjects[signature_tag(entry.target.digest)] = entry.target.digest
            else:
                forget.append((name, entry))
        for entry in entries:
            # A signature lives as long as what it signs.
            if entry.tag.endswith(".sig") and entry.is_current and entry.tag in subjects:
                reasons.setdefault((name, entry.target.digest), []).append(f"signature of {subjects[entry.tag]}")
    reachable: set[Digest] = set()
    waiting = [digest for _, digest in reasons]
    while waiting:
        digest = waiting.pop()
        if digest in reachable:
            continue
        reachable.add(digest)
        manifest = manifests.get(digest)
        if manifest is not None:
            reachable.update(blob.digest for blob in manifest.blobs)
            waiting.extend(child.digest for child in manifest.manifests)
    return GcPlan(
        kept=tuple(Kept(name, digest, tuple(why)) for (name, digest), why in reasons.items()),
        delete=tuple(item for item in stored if item.digest not in reachable),
        forget=tuple(forget),
        manifests=frozenset(manifests) - reachable,
    )


def _reason(entry: TagEntry, now: datetime, retention: timedelta) -> str:
    if entry.is_current:
        if entry.tag.startswith(_RELEASE):
            target, _, role = entry.tag.removeprefix(_RELEASE).rpartition(".")
            return f"{role} on {target}"
        return f"version {entry.tag}" if is_version(entry.tag) else f"tag {entry.tag}"
    try:
        is_recent = now - datetime.fromisoformat(entry.until.replace("Z", "+00:00")) < retention
    except (ValueError, TypeError):
        is_recent = True  # another tool ended it and nobody knows when
    return f"was {entry.tag} until {entry.until}" if is_recent else ""


def observe(hub: Hub) -> tuple[dict[str, list[TagEntry]], dict[Digest, Manifest]]:
    """Read what `plan_gc` needs to know of a hub's references."""
    tags = {name: hub.tags(name) for name in hub.names()}
    manifests: dict[Digest, Manifest] = {}
    for name, entries in tags.items():
        waiting = [entry.target.digest for entry in entries]
        while waiting:
            digest = waiting.pop()
            if digest in manifests:
                continue
            try:
                manifest = hub.read_manifest(name, digest)
            except NotFound:
                continue  # history may name what an earlier collection took
            manifests[digest] = manifest
            waiting.extend(child.digest for child in manifest.manifests)
    return tags, manifests


def collect(hub: Hub, *, now: datetime, retention: timedelta, dry_run: bool) -> GcPlan:
    """Plan a collection and, unless `dry_run`, carry it out.

    Raises:
        Conflict: someone is pushing to the hub; nothing was deleted.
    """
    if dry_run:
        return plan_gc(*observe(hub), hub.stored(), now=now, retention=retention)
    with hub.collecting() as lock:
        plan = plan_gc(*observe(hub), hub.stored(), now=now, retention=retention)
        for name in {name for name, _ in plan.forget}:
            lock.check()
            hub.forget(name, [entry for owner, entry in plan.forget if owner == name])
        for item in sorted(plan.delete, key=lambda item: item.digest not in plan.manifests):
            lock.check()
            hub.discard(item.digest)
        lock.check()
        hub.sweep(_UNFINISHED_S)
    return plan
