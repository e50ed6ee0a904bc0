"""The shelf of a real target: bundles come from its hub into the local one, and tags in both say what must be kept."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from cloudedge.bundle import Bundle, check_signature
from cloudedge.clock import Clock, SystemClock, rfc3339
from cloudedge.errors import CloudEdgeError, NotFound, SignatureInvalid, Unavailable
from cloudedge.hub import Hub, LocalHub, Ref, current, release_tag, resolve, who
from cloudedge.release._version import Version

__all__ = ["HubShelf"]

_QUIET_S = 30.0
"""How long a hub that did not answer is left alone."""


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
        self._quiet_until, self._why_quiet = -math.inf, ""

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

    def mark(self, roles: Mapping[str, str | None]) -> str | None:
        """Move this target's release tags, in both hubs, to the bundles that play these roles.

        The local hub is where places read from, so what cannot be marked there is an error. The other one may be down,
        or be a registry that does not let tags go: nothing that serves depends on it.

        Returns:
            Why the other hub could not be told; None: it was, or there is none.

        Raises:
            NotFound: one of them is in neither.
        """
        at = rfc3339(self._clock.now())
        names = self._local.names()  # whatever this target ran came from there; many a registry lists no names
        untold: str | None = None
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
                untold = error.message
            if missing is not None and self._source is None:
                raise missing
        return untold

    def _mark_source(self, names: Sequence[str], tag: str, ref: Ref | None, at: str) -> None:
        if self._source is None:
            return
        if self._clock.monotonic() < self._quiet_until:
            raise Unavailable(self._why_quiet)
        try:
            self._mark(self._source, names, tag, ref, at)
        except Unavailable as error:  # a release marks several things, and none of them is worth waiting for that again
            self._quiet_until, self._why_quiet = self._clock.monotonic() + _QUIET_S, error.message
            raise

    def _mark(self, hub: Hub, names: Sequence[str], tag: str, ref: Ref | None, at: str) -> None:
        for name in names:
            # A target may run a bundle of another name next; the old name's tag must not keep it for ever.
            if (ref is None or name != ref.name) and current(hub.tags(name), tag) is not None:
                hub.move_tag(name, tag, None, by=who(), at=at)
        if ref is not None:
            hub.move_tag(ref.name, tag, resolve(hub, ref), by=who(), at=at)

    def _bundle(self, ref: str) -> Bundle:
        wanted = Ref.parse(ref)
        if self._source is None:
            return Bundle.open(ref, hub=self._local)
        if wanted.digest:  # what is named exactly and here as a whole needs nobody else: going back is possible alone
            found = self._here(ref)
            if found is not None and found.digest == wanted.digest:
                return found
        exact = f"{wanted.name}@{resolve(self._source, wanted).digest}"
        return self._here(exact) or Bundle.pull(exact, self._source, hub=self._local)

    def _here(self, ref: str) -> Bundle | None:
        try:
            found = Bundle.open(ref, hub=self._local)
        except NotFound:
            return None
        return found if all(self._local.has_blob(found.name, blob) for blob in found.manifest.blobs) else None
