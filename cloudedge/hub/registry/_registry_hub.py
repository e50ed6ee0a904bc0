"""A hub in an OCI registry, behind ``oci://host[:port]/prefix``.

A bundle's name is a repository below the prefix: ``ctr`` is ``<prefix>/ctr``. Blobs and manifests are the
registry's own; so are tags, to which cloudedge adds the history that registries lack (`_registry_tags`). Any
registry with the distribution API will do, and other tools read what is here: a bundle is an ordinary
artifact under an ordinary tag, and ``sha256-<hex>.sig`` is an ordinary tag too.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from cloudedge.clock import SystemClock
from cloudedge.errors import ConfigError, Conflict, InputError, NotFound, Rejected
from cloudedge.hub.core import ANY, Lock, Stored, SureLock, check_name, parse_digest
from cloudedge.hub.registry._auth import RegistrySettings
from cloudedge.hub.registry._repository import Repository
from cloudedge.hub.registry._session import RegistrySession
from cloudedge.hub.registry._tags import RepositoryTags
from cloudedge.hub.registry._upload import Upload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from cloudedge.clock import Clock
    from cloudedge.hub.core import Descriptor, Digest, Expectation, Manifest, Reader, TagEntry

__all__ = ["RegistryHub", "RegistrySettings"]

_DEFAULTS = RegistrySettings()


class RegistryHub:
    """Bundles in a registry. Making one talks to nobody; threads may share it.

    Args:
        url: ``oci://host[:port]/prefix``; ``?insecure`` at the end for http to a host other than this
        machine.
        settings: Credentials, certificates, patience.
        clock: Time and chance.

    Raises:
        ConfigError: the URL is not of that form.
    """

    def __init__(self, url: str, settings: RegistrySettings = _DEFAULTS, *, clock: Clock | None = None) -> None:
        netloc, self._prefix, insecure = _parse_url(url)
        self.url = f"oci://{netloc}/{self._prefix}".rstrip("/")
        self._clock = clock or SystemClock()
        self._state_dir = settings.state_dir
        self._session = RegistrySession(netloc, settings, self._clock, insecure=insecure or settings.insecure)
        self._tags: dict[str, RepositoryTags] = {}
        self._garbage: dict[Digest, set[str]] = {}

    def names(self) -> list[str]:
        """List the repositories below the prefix.

        Raises:
            Rejected: the registry does not list its repositories, or not for us.
        """
        what = "listing the repositories"
        try:
            every = list(self._session.pages("_catalog", "repositories", what=what, scope="registry:catalog:*"))
        except (NotFound, Rejected) as error:
            raise Rejected(
                f"{self.url} does not list its repositories: {error.message}",
                hint="Name the bundle: all but listing the names works without the registry's catalog.",
                hub=self.url,
            ) from error
        below = f"{self._prefix}/" if self._prefix else ""
        return sorted(path.removeprefix(below) for path in every if path.startswith(below))

    def tags(self, name: str) -> list[TagEntry]:
        """List every tag with its history; `_registry_events.fold` says what is reported when.

        Tags that other tools pushed have one entry with empty `since` and `by`. A move that was recorded
        before its mover was killed is reported as done.
        """
        return self._tags_of(name).entries()

    def move_tag(
        self, name: str, tag: str, target: Descriptor | None, *, by: str, at: str, expected: Expectation = ANY
    ) -> TagEntry | None:
        """Point a tag at a manifest that is there (None: untag).

        What holds when several move it at once is said in `_registry_tags`.

        Raises:
            Conflict: the tag is not where `expected` says, is a version and points elsewhere already, or
                others kept moving it at the same moment.
            NotFound: the manifest is not there, or the tag to remove is not.
            Rejected: untagging where the registry does not allow deletion.
        """
        return self._tags_of(name).move(tag, target, by=by, at=at, expected=expected)

    def read_manifest(self, name: str, digest: Digest) -> Manifest:
        """Read a manifest and check it against its digest."""
        return self._repository(name).get_manifest(parse_digest(digest))

    def write_manifest(self, name: str, manifest: Manifest) -> None:
        """Store a manifest under its digest only; its blobs are there already."""
        self._repository(name).put_manifest(manifest.digest, manifest)

    def has_blob(self, name: str, blob: Descriptor) -> bool:
        """Tell whether a whole blob is there."""
        return self._repository(name).has_blob(blob)

    def read_blob(self, name: str, blob: Descriptor, start: int = 0) -> Iterator[bytes]:
        """Stream a blob from an offset. Not checked: wrap it in `verified` when reading from the start."""
        return self._repository(name).read_blob(blob, start)

    def write_blob(self, name: str, blob: Descriptor, read: Reader, progress: Callable[[int], None]) -> None:
        """Store a blob, continuing an earlier attempt where the registry still has it."""
        Upload(self._repository(name), blob, self._state_dir).run(read, progress)

    def forget(self, name: str, entries: list[TagEntry]) -> None:
        """Drop ended entries from the history: their events are deleted."""
        self._tags_of(name).forget([entry for entry in entries if not entry.is_current])

    def writing(self) -> AbstractContextManager[Lock]:
        """Do nothing: a registry frees blobs itself, and only while it is stopped or read-only."""
        return nullcontext(SureLock())

    def collecting(self) -> AbstractContextManager[Lock]:
        """Do nothing: what is discarded had a tag and lost it, and `discard` looks again before each one."""
        return nullcontext(SureLock())

    def sweep(self, older_than_s: float) -> int:  # noqa: ARG002 - a registry has its own idea of old
        """Do nothing: registries drop unfinished uploads by themselves."""
        return 0

    def stored(self) -> Iterator[Stored]:
        """List the manifests that could be garbage: a tag once pointed there, and no tag does now.

        Blobs are the registry's own business (its garbage collector frees those no manifest names), and
        manifests that never had a tag cannot be listed.
        """
        for name in self.names():
            once = {event.target.digest for event in self._tags_of(name).recorded() if event.target}
            for digest in sorted(once - self._in_use(name)):
                there = self._repository(name).head_manifest(digest)
                if there is not None:
                    self._garbage.setdefault(digest, set()).add(name)
                    yield Stored(digest, there.size)

    def discard(self, digest: Digest) -> None:
        """Delete a manifest that `stored` listed, after looking again that no tag points to it.

        It is deleted from every name under which it was listed.

        Raises:
            NotFound: `stored` did not list it.
            Conflict: a tag points to it again.
            Rejected: the registry does not allow deletion.
        """
        if digest not in self._garbage:
            raise NotFound(f"{digest} is not among what could be garbage in {self.url}", digest=digest)
        for name in sorted(self._garbage[digest]):
            if digest in self._in_use(name):
                raise Conflict(
                    f"{digest} was not deleted from {self.url}: a tag of {name} points to it again",
                    digest=digest,
                    name=name,
                )
            self._repository(name).delete_manifest(digest)
        del self._garbage[digest]

    def _in_use(self, name: str) -> set[Digest]:
        """Return the manifests tags point to, and those that an index among them names."""
        repository = self._repository(name)
        present = [e.target for e in self._tags_of(name).entries() if e.is_current]
        used = {target.digest for target in present}
        for target in present:
            if "index" in target.media_type or "list" in target.media_type:
                used.update(child.digest for child in repository.get_manifest(target.digest).manifests)
        return used

    def _repository(self, name: str) -> Repository:
        path = f"{self._prefix}/{check_name(name)}" if self._prefix else check_name(name)
        return Repository(self._session, path)

    def _tags_of(self, name: str) -> RepositoryTags:
        return self._tags.setdefault(name, RepositoryTags(self._repository(name), self._clock))


def _parse_url(url: str) -> tuple[str, str, bool]:
    """Return host and port, prefix, and whether ``?insecure`` was asked for."""
    wanted = "wanted: oci://host[:port]/prefix, and ?insecure after it for http"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"not a registry's address ({error}; {wanted})") from error
    if "@" in parts.netloc:
        # The URL is not quoted: there may be a password in it.
        raise ConfigError(f"a registry's address holds no user name or password ({wanted})")
    prefix = parts.path.strip("/")
    good = parts.scheme == "oci" and parts.hostname and port != 0 and parts.query in ("", "insecure")
    if not good or parts.fragment:
        raise ConfigError(f"not a registry's address: {url!r} ({wanted})")
    try:
        return parts.netloc, prefix and check_name(prefix), bool(parts.query)
    except InputError as error:
        raise ConfigError(f"not a registry's address: {url!r}: {error.message} ({wanted})") from error
