"""References to bundles, parsed and resolved, and the order of versions.

``ctr:3`` is a version, ``ctr:prod`` a tag, ``ctr`` the newest version, ``ctr@sha256:...`` one exact bundle.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloudedge.errors import InputError, NotFound
from cloudedge.hub.core._oci import Descriptor, Digest, parse_digest
from cloudedge.hub.core._tags import TagEntry, check_name, check_tag, current, is_version

if TYPE_CHECKING:
    from cloudedge.hub.core._protocol import Hub

__all__ = ["Ref", "newest", "next_version", "resolve", "version_key"]

_SHORT_DIGEST = re.compile(r"[0-9a-f]{6,63}")


@dataclass(frozen=True)
class Ref:
    """A bundle's name with a tag, a digest, or neither."""

    name: str
    tag: str = ""
    digest: str = ""

    @classmethod
    def parse(cls, text: str) -> Ref:
        """Parse a reference.

        Raises:
            InputError: it has none of the accepted forms.
        """
        name, at, digest = text.partition("@")
        if at:
            return cls(check_name(name), digest=digest if _is_short(digest) else parse_digest(digest))
        name, colon, tag = text.partition(":")
        if colon and not tag:
            raise InputError(f"not a reference: {text!r} (expected NAME, NAME:VERSION, NAME:TAG or NAME@sha256:DIGEST)")
        return cls(check_name(name), tag=check_tag(tag) if tag else "")

    def __str__(self) -> str:
        if self.digest:
            return f"{self.name}@{self.digest}"
        return f"{self.name}:{self.tag}" if self.tag else self.name


def _is_short(digest: str) -> bool:
    return bool(_SHORT_DIGEST.fullmatch(digest.removeprefix("sha256:"))) and digest.startswith("sha256:")


def version_key(version: str) -> tuple[int, int, int, bool, tuple[tuple[int, int, str], ...]]:
    """Return the sort key of a version, by semantic versioning's rules; ``3`` is ``3.0.0``."""
    if not is_version(version):
        raise InputError(f"not a version: {version!r} (expected an integer such as 3, or major.minor.patch)")
    core, _, pre = version.partition("-")
    major, minor, patch = [int(part) for part in core.split(".")] + ([0, 0] if "." not in core else [])
    # A pre-release comes before its release; numeric identifiers come before words.
    labels = tuple((0, int(p), "") if p.isdigit() else (1, 0, p) for p in pre.split(".") if p)
    return major, minor, patch, not pre, labels


def newest(entries: list[TagEntry]) -> TagEntry | None:
    """Return the entry of the newest version."""
    versions = [e for e in entries if e.is_current and is_version(e.tag)]
    return max(versions, key=lambda e: version_key(e.tag), default=None)


def next_version(entries: list[TagEntry]) -> str:
    """Return the version after the newest that ever existed: 3 → 4, 1.4.2 → 1.4.3, none → 1."""
    ever = [e.tag for e in entries if is_version(e.tag)]
    if not ever:
        return "1"
    last = max(ever, key=version_key)
    if last.isdigit():
        return str(int(last) + 1)
    major, minor, patch, is_release, _ = version_key(last)
    return f"{major}.{minor}.{patch + is_release}"


def resolve(hub: Hub, ref: Ref) -> Descriptor:
    """Find the manifest of a reference.

    Raises:
        NotFound: the hub has no such name, version, tag or digest; the hint lists what it has.
    """
    if ref.digest and not _is_short(ref.digest):
        manifest = hub.read_manifest(ref.name, Digest(ref.digest))
        return manifest.descriptor
    entries = hub.tags(ref.name)
    if ref.digest:
        found = {e.target.digest: e.target for e in entries if e.target.digest.startswith(ref.digest)}
        if len(found) == 1:
            return next(iter(found.values()))
        raise NotFound(f"{hub.url}: {len(found) or 'no'} bundles of {ref.name} begin with {ref.digest}", ref=str(ref))
    entry = current(entries, ref.tag) if ref.tag else newest(entries)
    if entry is None:
        known = sorted(e.tag for e in entries if e.is_current and not e.tag.startswith("sha256-"))
        raise NotFound(
            f"{hub.url} has no bundle {ref}",
            hint=f"The hub has {', '.join(known[-20:])}." if known else f"The hub has no bundle named {ref.name}.",
            ref=str(ref),
        )
    return entry.target
