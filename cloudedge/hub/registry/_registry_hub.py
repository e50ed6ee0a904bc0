"""A hub in an OCI registry, behind ``oci://host[:port]/prefix``.

A bundle's name is a repository below the prefix: ``ctr`` is ``<prefix>/ctr``. Blobs, manifests and tags are the
registry's own; cloudedge adds the tag history that registries lack (`_tags`). Any registry with the distribution API
will do, and other tools can read the bundles: a bundle is an ordinary artifact under an ordinary tag, and
``sha256-<hex>.sig`` is an ordinary tag, too.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
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
    from cloudedge.config import HubConfig
    from cloudedge.hub.core import Descriptor, Digest, Expectation, Manifest, Reader, TagEntry

__all__ = ["RegistryHub", "RegistrySettings", "open_registry"]

_DEFAULTS = RegistrySettings()


class RegistryHub:
    """Bundles in a registry. Constructing it opens no connection; threads may share it.

    Args:
        url: ``oci://host[:port]/prefix``; ``?insecure`` at the end for http to another machine.
        settings: Credentials, certificates, time limits.
        clock: Time and randomness.

    Raises:
        ConfigError: the URL has another form.
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
            Rejected: the registry does not list its repositories, or not to this user.
        """
        what = "listing the repositories"
        try:
            every = list(self._session.pages("_catalog", "repositories", what=what, scope="registry:catalog:*"))
        except (NotFound, Rejected) as error:
            raise Rejected(
                f"{self.url} does not list its repositories: {error.message}",
                hint="Name the bundle; everything but listing names works without the registry's catalog.",
                hub=self.url,
            ) from error
        below = f"{self._prefix}/" if self._prefix else ""
        return sorted(path.removeprefix(below) for path in every if path.startswith(below))

    def tags(self, name: str) -> list[TagEntry]:
        """List every tag with its history; `_tag_events.fold` has the rules.

        A tag that another tool pushed has one entry with empty `since` and `by`. A move whose mover was killed after
        recording it is reported as done.
        """
        return self._tags_of(name).entries()

    def move_tag(
        self, name: str, tag: str, target: Descriptor | None, *, by: str, at: str, expected: Expectation = ANY
    ) -> TagEntry | None:
        """Point a tag at a stored manifest (None: untag).

        `_tags` documents the guarantees for concurrent moves.

        Raises:
            Conflict: the tag is not at `expected`, is a version that already points elsewhere, or others kept moving it
                at the same moment.
            NotFound: the manifest, or the tag to remove, does not exist.
            Rejected: untagging where the registry does not allow deletion.
        """
        return self._tags_of(name).move(tag, target, by=by, at=at, expected=expected)

    def read_manifest(self, name: str, digest: Digest) -> Manifest:
        """Read a manifest and check it against its digest."""
        return self._repository(name).get_manifest(parse_digest(digest))

    def write_manifest(self, name: str, manifest: Manifest) -> None:
        """Store a manifest under its digest only; its blobs must be stored already."""
        self._repository(name).put_manifest(manifest.digest, manifest)

    def has_blob(self, name: str, blob: Descriptor) -> bool:
        """Return True if the whole blob is stored."""
        return self._repository(name).has_blob(blob)

    def read_blob(self, name: str, blob: Descriptor, start: int = 0) -> Iterator[bytes]:
        """Stream a blob from an offset. Not verified: wrap it in `verified` when reading from the start."""
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
        """Do nothing: only untagged manifests are discarded, and `discard` checks the tags again before each one."""
        return nullcontext(SureLock())

    def sweep(self, older_than_s: float) -> int:  # noqa: ARG002 - registries expire uploads themselves
        """Do nothing: registries drop unfinished uploads themselves."""
        return 0

    def stored(self) -> Iterator[Stored]:
        """List the manifests that may be garbage: a tag once pointed there, and none does now.

        The registry's own garbage collector frees blobs that no manifest names, and manifests that never had a tag
        cannot be listed.
        """
        for name in self.names():
            once = {event.target.digest for event in self._tags_of(name).recorded() if event.target}
            for digest in sorted(once - self._in_use(name)):
                there = self._repository(name).head_manifest(digest)
                if there is not None:
                    self._garbage.setdefault(digest, set()).add(name)
                    yield Stored(digest, there.size)

    def discard(self, digest: Digest) -> None:
        """Delete a manifest that `stored` listed, after checking again that no tag points at it.

        It is deleted from every name under which it was listed.

        Raises:
            NotFound: `stored` did not list it.
            Conflict: a tag points to it again.
            Rejected: the registry does not allow deletion.
        """
        if digest not in self._garbage:
            raise NotFound(f"{digest} is not garbage in {self.url}", digest=digest)
        for name in sorted(self._garbage[digest]):
            if digest in self._in_use(name):
                raise Conflict(
                    f"{digest} was not deleted from {self.url}: a tag of {name} points at it again",
                    digest=digest,
                    name=name,
                )
            self._repository(name).delete_manifest(digest)
        del self._garbage[digest]

    def _in_use(self, name: str) -> set[Digest]:
        """Return the manifests that tags point at, and those that an index among them names."""
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


def open_registry(config: HubConfig) -> RegistryHub:
    """Open the registry of a hub's configuration."""
    from cloudedge.config import home, reveal  # noqa: PLC0415 - slow to import

    settings = RegistrySettings(
        username=config.username or None,
        password=reveal(config.password) if config.password else None,
        insecure=config.insecure,
        ca_file=Path(config.ca_file) if config.ca_file else None,
        state_dir=home() / "uploads",
    )
    return RegistryHub(config.url, settings)


def _parse_url(url: str) -> tuple[str, str, bool]:
    """Return host and port, prefix, and True if ``?insecure`` was given."""
    wanted = "expected oci://host[:port]/prefix, with ?insecure after it for http"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"the hub's URL is not a registry's address ({error}; {wanted})") from error
    if "@" in parts.netloc:
        # The message omits the URL, which may hold a password.
        raise ConfigError(f"a registry's address must not hold a user name or password ({wanted})")
    prefix = parts.path.strip("/")
    good = parts.scheme == "oci" and parts.hostname and port != 0 and parts.query in ("", "insecure")
    if not good or parts.fragment:
        raise ConfigError(f"{url!r} is not a registry's address ({wanted})")
    try:
        return parts.netloc, prefix and check_name(prefix), bool(parts.query)
    except InputError as error:
        raise ConfigError(f"{url!r} is not a registry's address: {error.message} ({wanted})") from error
