"""The shelf of a real target: bundles come from its hub into the local one, and tags in both say what must be kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cloudedge.bundle import Bundle, check_signature
from cloudedge.clock import Clock, SystemClock, rfc3339
from cloudedge.errors import NotFound, SignatureInvalid
from cloudedge.hub import Hub, LocalHub, Ref, current, release_tag, resolve, who
from cloudedge.release._version import Version

__all__ = ["HubShelf"]


class HubShelf:
    """Versions from hubs.

    Args:
        target: The target's name, for the tags.
        local: Where bundles are read from.
        source: Where they come from; None: they are packed here.
        shards: Into how many shards the target cuts each table.
        key: The public key every bundle has to be signed with; None: any bundle will do.
        clock: For the tags' history.
    """

    def __init__(
        self,
        target: str,
        local: LocalHub,
        *,
        source: Hub | None = None,
        shards: Mapping[str, int] | None = None,
        key: Path | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._target = target
        self._local = local
        self._source = source
        self._shards = shards or {}
        self._key = key
        self._clock = clock or SystemClock()

    def version(self, ref: str) -> Version:
        """Return a version, brought into the local hub if it was not there."""
        bundle = self._bundle(ref)
        untrusted = ""
        if self._key is not None:
            try:
                check_signature(bundle, self._key)
            except SignatureInvalid as error:
                untrusted = error.message
        return Version.of(bundle, shards=self._shards, untrusted=untrusted)

    def verify(self, version: Version) -> None:
        """Check every byte of the local copy."""
        self._bundle(version.ref).verify()

    def mark(self, roles: Mapping[str, str | None]) -> None:
        """Move this target's release tags, in both hubs, to the bundles that play these roles."""
        at = rfc3339(self._clock.now())
        hubs = [self._local, *([self._source] if self._source else [])]
        for role, ref in roles.items():
            wanted = Ref.parse(ref) if ref else None
            missing: list[NotFound] = []
            for hub in hubs:
                try:
                    self._mark(hub, release_tag(self._target, role), wanted, at)
                except NotFound as error:
                    missing.append(error)
            if len(missing) == len(hubs):
                raise missing[0]

    def _mark(self, hub: Hub, tag: str, ref: Ref | None, at: str) -> None:
        for name in hub.names():
            # A target may run a bundle of another name next; the old name's tag must not keep it for ever.
            if (ref is None or name != ref.name) and current(hub.tags(name), tag) is not None:
                hub.move_tag(name, tag, None, by=who(), at=at)
        if ref is not None:
            hub.move_tag(ref.name, tag, resolve(hub, ref), by=who(), at=at)

    def _bundle(self, ref: str) -> Bundle:
        if self._source is None:
            return Bundle.open(ref, hub=self._local)
        exact = resolve(self._source, Ref.parse(ref))
        name = Ref.parse(ref).name
        try:
            found = Bundle.open(f"{name}@{exact.digest}", hub=self._local)
            if all(self._local.has_blob(name, blob) for blob in found.manifest.blobs):
                return found
        except NotFound:
            pass
        return Bundle.pull(f"{name}@{exact.digest}", self._source, hub=self._local)
