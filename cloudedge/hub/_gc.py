"""Garbage collection: delete what nothing refers to, and give a reason for everything kept.

Roots are tags (versions among them), the manifests that tags pointed at within the retention, and the tags by which
a release marks what is live or may be rolled back to. `plan_gc` decides, from data alone; `collect` carries it out,
history first and manifests before their blobs, so that a kill leaves more garbage but never a dangling reference.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from cloudedge.errors import InputError, NotFound
from cloudedge.hub._copy import referrers_tag, signature_tag
from cloudedge.hub.core import Digest, Manifest, Stored, TagEntry, is_version

if TYPE_CHECKING:
    from cloudedge.hub.core import Hub

__all__ = ["GcPlan", "Kept", "collect", "observe", "plan_gc", "release_tag"]

_RELEASE_TAG_PREFIX = "release."
_SIGNATURES = re.compile(r"sha256-[0-9a-f]{64}(\.sig)?")
"""The tags of signatures and of indexes of referrers."""
_UNFINISHED_S = 24 * 3600
"""Age after which an unfinished upload is considered abandoned."""


def release_tag(target: str, role: str) -> str:
    """Return the tag by which a release protects a target's live bundle (or its rollback) from collection."""
    return f"{_RELEASE_TAG_PREFIX}{target}.{role}"


@dataclass(frozen=True)
class Kept:
    """A manifest that stays, with the reasons."""

    name: str
    digest: Digest
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class GcPlan:
    """The decisions of a collection."""

    kept: tuple[Kept, ...]
    delete: tuple[Stored, ...]
    forget: tuple[tuple[str, TagEntry], ...]
    """History entries beyond the retention, by name."""
    manifests: frozenset[Digest]
    """Those of `delete` that are manifests."""

    @property
    def bytes_freed(self) -> int:
        """Bytes that the deletions free."""
        return sum(item.size for item in self.delete)


def plan_gc(
    tags: Mapping[str, Sequence[TagEntry]],
    manifests: Mapping[Digest, Manifest],
    stored: Iterable[Stored],
    *,
    now: datetime,
    retention: timedelta,
) -> GcPlan:
    """Decide what is deleted and what stays. Pure.

    Args:
        tags: All names with their tags' histories.
        manifests: Every manifest that an entry of `tags` points at.
        stored: Every stored blob and manifest.
        now: The time that `retention` counts back from.
        retention: How long a manifest stays after the last tag left it.
    """
    reasons: dict[tuple[str, Digest], list[str]] = {}
    forget: list[tuple[str, TagEntry]] = []
    for name, entries in tags.items():
        subjects: dict[str, Digest] = {}
        for entry in entries:
            if _SIGNATURES.fullmatch(entry.tag):
                continue
            reason = _reason_to_keep(entry, now, retention)
            if reason:
                reasons.setdefault((name, entry.target.digest), []).append(reason)
                subjects[signature_tag(entry.target.digest)] = entry.target.digest
                subjects[referrers_tag(entry.target.digest)] = entry.target.digest
            else:
                forget.append((name, entry))
        for entry in entries:
            # A signature lives as long as the manifest it signs.
            if entry.is_current and entry.tag in subjects:
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


def _reason_to_keep(entry: TagEntry, now: datetime, retention: timedelta) -> str:
    if entry.is_current:
        if entry.tag.startswith(_RELEASE_TAG_PREFIX):
            target, _, role = entry.tag.removeprefix(_RELEASE_TAG_PREFIX).rpartition(".")
            return f"{role} on {target}"
        return f"version {entry.tag}" if is_version(entry.tag) else f"tag {entry.tag}"
    try:
        is_recent = now - datetime.fromisoformat(entry.until.replace("Z", "+00:00")) < retention
    except (ValueError, TypeError):
        is_recent = True  # another tool ended it at an unknown time
    return f"was {entry.tag} until {entry.until}" if is_recent else ""


def observe(hub: Hub) -> tuple[dict[str, list[TagEntry]], dict[Digest, Manifest]]:
    """Read a hub's tags and manifests for `plan_gc`."""
    tags = {name: hub.tags(name) for name in hub.names()}
    manifests: dict[Digest, Manifest] = {}
    for name, entries in tags.items():
        present = {entry.target.digest for entry in entries if entry.is_current}
        waiting = [entry.target.digest for entry in entries]
        while waiting:
            digest = waiting.pop()
            if digest in manifests:
                continue
            try:
                manifest = hub.read_manifest(name, digest)
            except NotFound:
                continue  # history may name a manifest that an earlier collection deleted
            except InputError as error:
                if digest not in present:
                    continue  # what was untagged because it is no manifest must not stop collections
                raise InputError(
                    f"{hub.url}: {name}@{digest} is no manifest that can be read: {error.message}",
                    hint="Find out who pushed it, and take its tag away with `cloudedge hub untag`.",
                    digest=digest,
                ) from error
            manifests[digest] = manifest
            waiting.extend(child.digest for child in manifest.manifests)
    return tags, manifests


def collect(hub: Hub, *, now: datetime, retention: timedelta, dry_run: bool) -> GcPlan:
    """Plan a collection and, unless `dry_run`, carry it out.

    Raises:
        Conflict: another process is pushing to the hub; nothing was deleted.
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
