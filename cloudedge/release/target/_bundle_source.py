"""Bundles of a real target: they come from its hub into the local one, and tags in both keep what is in use."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from cloudedge.bundle import Bundle, Outline, SeenVersions, check_signature
from cloudedge.clock import Clock, SystemClock, rfc3339
from cloudedge.errors import CloudEdgeError, IntegrityError, NotFound, SignatureInvalid, Unavailable
from cloudedge.hub import Descriptor, Hub, LocalHub, Ref, current, release_tag, resolve
from cloudedge.io import who
from cloudedge.release.core import Version

__all__ = ["HubBundleSource"]

_QUIET_S = 30.0
"""The time for which a hub that did not answer is not asked again."""


class HubBundleSource:
    """Versions from hubs.

    Args:
        target: The target's name, for the tags.
        local: The hub that places read bundles from.
        source: The hub that bundles come from; None: they are packed here.
        shards: By table: the number of its shards on the target.
        key: The public key that every bundle has to be signed with; None: no signature is required.
        seen: The highest versions that were taken with that key; None: they are not remembered.
        clock: For the tags' history and the expiry of signatures.
    """

    def __init__(
        self,
        target: str,
        local: LocalHub,
        *,
        source: Hub | None = None,
        shards: Mapping[str, int] | None = None,
        key: Path | None = None,
        seen: SeenVersions | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._target = target
        self._local = local
        self._source = source
        self._shards = shards or {}
        self._key = key
        self._seen = seen
        self._clock = clock or SystemClock()
        self._quiet_until, self._why_quiet = -math.inf, ""

    def version(self, ref: str) -> Version:
        """See `BundleSource`."""
        parsed = Ref.parse(ref)
        found = self._find(parsed)
        untrusted, stale = self._doubts(found, parsed)
        missing = sum(blob.size for blob in self._missing(found))
        return Version.of(found, shards=self._shards, untrusted=untrusted, stale=stale, missing_bytes=missing)

    def _doubts(self, found: Outline, ref: Ref) -> tuple[str, str]:
        """Return why a bundle is not what was asked for, and why it is older than it should be."""
        if self._key is None:
            return "", ""
        try:
            check_signature(found, self._key, tag=ref.tag, clock=self._clock)
        except SignatureInvalid as error:
            return ("", error.message) if error.facts.get("expired") else (error.message, "")
        # The hub decides what a tag points at and which version is the newest; a digest names one bundle on purpose.
        newer = self._seen.newer_than(found.name, found.version) if self._seen is not None and not ref.digest else ""
        if newer:
            return "", f"{found.name}:{newer} was taken before, and {ref} now is the older version {found.version}"
        return "", ""

    def find(self, pin: str) -> Version | None:
        """See `BundleFinder`: in the local hub first."""
        for hub in (self._local, self._source):
            with suppress(CloudEdgeError):  # the other hub may be down, and some registries list no names
                for name in hub.names() if hub is not None else ():
                    for digest in {entry.target.digest for entry in hub.tags(name)} if hub is not None else ():
                        if digest.removeprefix("sha256:").startswith(pin):
                            return self.version(f"{name}@{digest}")
        return None

    def marked(self) -> dict[str, str]:
        """See `BundleFinder`: the local hub's tags, which places depend on, before those of the other hub."""
        prefix, found = release_tag(self._target, ""), dict[str, str]()
        for hub in (self._source, self._local):
            with suppress(CloudEdgeError):
                for name in self._local.names() if hub is not None else ():
                    for entry in hub.tags(name) if hub is not None else ():
                        if entry.is_current and entry.tag.startswith(prefix):
                            found[entry.tag.removeprefix(prefix)] = f"{name}@{entry.target.digest}"
        return found

    def fetch(self, version: Version) -> int:
        """See `BundleSource`: from the target's hub into the local one; what arrived before a failure stays."""
        if self._seen is not None and not version.untrusted:
            self._seen.remember(version.name, version.label)
        if self._source is not None and version.missing_bytes:
            Bundle.pull(version.ref, self._source, hub=self._local)
        return version.missing_bytes

    def verify(self, version: Version) -> None:
        """Check every byte of the local copy; fetch what is damaged again, where bundles come from another hub.

        Raises:
            IntegrityError: it is damaged, and there is no other hub.
        """
        bundle = Bundle.open(version.ref, hub=self._local)
        try:
            bundle.verify()
        except IntegrityError as error:
            if self._source is None:
                raise
            damaged = set(error.facts.get("damaged", ()))
            for blob in bundle.manifest.blobs:
                if blob.digest in damaged:
                    self._local.drop_damaged(blob)
            Bundle.pull(version.ref, self._source, hub=self._local).verify()

    def mark(self, roles: Mapping[str, str | None]) -> str | None:
        """Move this target's release tags, in both hubs, to the bundles that play these roles.

        Places read from the local hub, so a tag that cannot be set there is an error. The other hub may be down, or be
        a registry that does not delete tags: nothing that serves depends on it.

        Returns:
            Why the other hub missed a tag; None if it has them all, or there is no other hub.

        Raises:
            NotFound: neither hub has one of the bundles.
        """
        at = rfc3339(self._clock.now())
        names = self._local.names()  # every bundle of this target passed through it; some registries list no names
        missed: str | None = None
        for role, ref in roles.items():
            wanted, tag = Ref.parse(ref) if ref else None, release_tag(self._target, role)
            missing: NotFound | None = None
            try:
                self._mark(self._local, names, tag, wanted, at)
            except NotFound as error:
                missing = error
            try:
                self._mark_source(names, tag, wanted, at)
            except CloudEdgeError as error:
                if missing is not None:
                    raise missing from error
                missed = error.message
            if missing is not None and self._source is None:
                raise missing
        return missed

    def _mark_source(self, names: Sequence[str], tag: str, ref: Ref | None, at: str) -> None:
        if self._source is None:
            return
        if self._clock.monotonic() < self._quiet_until:
            raise Unavailable(self._why_quiet)
        try:
            self._mark(self._source, names, tag, ref, at)
        except Unavailable as error:  # a release sets several tags, and none is worth another wait
            self._quiet_until, self._why_quiet = self._clock.monotonic() + _QUIET_S, error.message
            raise

    def _mark(self, hub: Hub, names: Sequence[str], tag: str, ref: Ref | None, at: str) -> None:
        for name in names:
            # A target may run a bundle of another name next; the old name's tag must not keep its bundle for ever.
            if (ref is None or name != ref.name) and current(hub.tags(name), tag) is not None:
                hub.move_tag(name, tag, None, by=who(), at=at)
        if ref is not None:
            hub.move_tag(ref.name, tag, resolve(hub, ref), by=who(), at=at)

    def _find(self, ref: Ref) -> Outline:
        """Find a bundle in the local hub, or in the other one if bytes of it are missing here."""
        if self._source is None:
            return Bundle.open(str(ref), hub=self._local)
        here = self._here(ref)  # named exactly and complete: a rollback needs no other hub
        if here is None:
            there = resolve(self._source, ref).digest
            here = self._here(Ref(ref.name, digest=there))
            if here is None:
                return Outline(self._source, ref.name, self._source.read_manifest(ref.name, there))
        return here

    def _here(self, ref: Ref) -> Bundle | None:
        if not ref.digest:
            return None  # the target's hub decides what a tag means
        try:
            found = Bundle.open(str(ref), hub=self._local)
        except NotFound:
            return None
        return found if found.digest == ref.digest and not self._missing(found) else None

    def _missing(self, found: Outline) -> list[Descriptor]:
        if self._source is None:
            return []
        return [blob for blob in found.manifest.blobs if not self._local.has_blob(found.name, blob)]
