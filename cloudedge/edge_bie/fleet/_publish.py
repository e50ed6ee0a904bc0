"""Publishing of a bundle to a BIE account: first blobs, then configs, then the app; moves no node.

Objects are only ever added. Existing ones stay as they are, so publishing twice writes nothing, and publishing after a
crash goes on. Numbers only grow: the next one is higher than any that the journal or the account knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from cloudedge.bundle import Bundle
from cloudedge.config import EdgeLeg, reveal
from cloudedge.edge_bie.client import App, Bie, Config, File, normal
from cloudedge.edge_bie.fleet._revision import (
    Revision,
    app_body,
    blob_body,
    bundle_statement,
    read_revisions,
    script_body,
    statement_body,
    with_content,
)
from cloudedge.edge_bie.model import APP_LABEL, OWNER_LABEL, Blob, Statement, blob_config, statement_config
from cloudedge.errors import ConfigError, Conflict, InputError, NotFound
from cloudedge.hub import Descriptor, LocalHub, parse_digest
from cloudedge.journal import Journal, Writer

if TYPE_CHECKING:
    from cloudedge.edge_bie.client import Objects

__all__ = ["Proposal", "Published", "Publisher"]

_SEQUENCE = "sequence"
_WRITES = 3
_T = TypeVar("_T")


@dataclass(frozen=True)
class Proposal:
    """The revisions that a bundle would become, in the order in which nodes get them."""

    revisions: tuple[Revision, ...]
    apps: tuple[App, ...]
    script: Config


@dataclass(frozen=True)
class Published:
    """The result of publishing."""

    revisions: tuple[Revision, ...]
    sent_bytes: int
    """Uploaded bytes."""


class Publisher:
    """Makes revisions of one app.

    Args:
        bie: The account.
        objects: The storage that nodes fetch blobs from.
        leg: The settings.
        journal: Remembers the highest number.
        hub: The hub with the bundles, for publishing one again.
    """

    def __init__(self, bie: Bie, objects: Objects | None, leg: EdgeLeg, journal: Journal, hub: LocalHub) -> None:
        self._bie = bie
        self._objects = objects
        self._leg = leg
        self._journal = journal
        self._hub = hub

    def revisions(self) -> dict[str, Revision]:
        """Read the published revisions, by name, the highest number first."""
        return read_revisions(self._leg.app, self._bie.configs(selector=f"{APP_LABEL}={self._leg.app}"))

    def propose(self, bundle: Bundle, *, live: Revision | None, title: str = "") -> Proposal:
        """Return the revisions that a bundle would become; writes nothing.

        A new image and a new model are two revisions, the image first with the model as it is.
        """
        script = script_body(self._leg, _entry())
        title = title or f"{bundle.name}:{bundle.version}"
        wanted = [Revision(bundle_statement(bundle, self._leg, script), title)]
        if live is not None and _differs(live.statement, wanted[0].statement):
            first = replace(live.statement, image=self._leg.image)
            wanted.insert(0, replace(live, statement=with_content(first, self._leg, script)))
        known = self.revisions()
        number = self._highest(known)
        kept = self._kept(wanted, list(known.values()), script.name)
        for at, revision in enumerate(wanted[len(kept) :], len(kept)):
            number += 1
            wanted[at] = revision.again(number)
        revisions = (*kept, *wanted[len(kept) :])
        apps = tuple(app_body(self._leg, revision, script.name) for revision in revisions)
        return Proposal(revisions, apps, script)

    def publish(self, writer: Writer, bundle: Bundle, proposal: Proposal) -> Published:
        """Write a proposal to the account.

        Raises:
            Conflict: Another object has the name.
            StorageError: A blob cannot be uploaded.
        """
        with self._bie.turn():
            return Published(proposal.revisions, self._put_all(writer, bundle.hub, proposal))

    def _put_all(self, writer: Writer, hub: LocalHub, proposal: Proposal) -> int:
        there = {config.name: config for config in self._bie.configs(selector=f"{OWNER_LABEL}=owned")}
        sent = sum(self._put_blobs(revision, hub, there) for revision in proposal.revisions)
        self._put(proposal.script, there)
        for revision, app in zip(proposal.revisions, proposal.apps, strict=True):
            self._write(writer, revision, app)
        return sent

    def republish(self, writer: Writer, name: str) -> str:
        """Publish a revision of the same content with the next number, and return its name.

        A revision whose app is gone is made anew, with the current settings, and with blobs from the hub if those are
        gone too.

        Raises:
            NotFound: There is no such revision any more, or its bundle is not in the hub.
        """
        with self._bie.turn():
            return self._republish(writer, name)

    def _republish(self, writer: Writer, name: str) -> str:
        known = self.revisions()
        old = known.get(name)
        if old is None:
            raise NotFound(
                f"revision {name} of {self._leg.app} is not in the account any more",
                hint="End the rollout in place with `cloudedge fleet abort --leave`, then roll out the wanted bundle.",
            )
        app = self._bie.app(old.app)
        if app is None:
            return self._publish_anew(writer, old, self._highest(known) + 1)
        newest = next(iter(known.values()))
        # The newest may have the same content already, with the highest number.
        is_same = newest.again(old.statement.sequence) == old
        new = newest if is_same else old.again(self._highest(known) + 1)
        volumes = tuple(
            replace(volume, config=statement_config(self._leg.app, new.name)) if volume.name == "statement" else volume
            for volume in app.volumes
        )
        body = replace(
            app_body(self._leg, new, ""),
            services=app.services,
            volumes=tuple(replace(volume, version="") for volume in volumes),
            registries=app.registries,
            extra={key: value for key, value in app.extra.items() if key == "initServices"},
        )
        self._write(writer, new, body)
        return new.name

    def _publish_anew(self, writer: Writer, old: Revision, number: int) -> str:
        script = script_body(self._leg, _entry())
        statement = with_content(replace(old.statement, sequence=number), self._leg, script)
        new = replace(old, statement=statement)
        app = app_body(self._leg, new, script.name)
        self._put_all(writer, self._hub, Proposal((new,), (app,), script))
        return new.name

    def forget(self, names: Sequence[str]) -> None:
        """Delete revisions, and the configs that only they used. Uploaded blobs stay."""
        with self._bie.turn():
            self._forget(names)

    def _forget(self, names: Sequence[str]) -> None:
        known = self.revisions()
        gone = [known[name] for name in names if name in known]
        used = {blob.digest for name, each in known.items() if name not in names for blob in each.statement.every_blob}
        for revision in gone:
            app = self._bie.app(revision.app)
            self._bie.delete_app(revision.app)
            own = {*(app.configs if app else ())}
            own |= {
                blob_config(self._leg.model, b.digest) for b in revision.statement.every_blob if b.digest not in used
            }
            # The statement last: after a kill, the next run still finds the revision and deletes the rest.
            statement = statement_config(self._leg.app, revision.name)
            for config in (*sorted(own - {statement}), statement):
                self._delete(config)

    def _delete(self, name: str) -> None:
        found = self._bie.config(name)
        if found is None or found.labels.get(OWNER_LABEL) != "owned":
            return
        try:
            self._bie.delete_config(name)
        except Conflict:
            return  # another app mounts it

    def same_app(self, one: str, other: App) -> bool:
        """Return True if an existing app would run like another one, statements aside."""
        found = self._bie.app(one)
        return found is not None and _content(found) == _content(other)

    def _kept(self, wanted: Sequence[Revision], known: Sequence[Revision], script: str) -> list[Revision]:
        """Return the newest revisions of the account that equal the wanted ones, in order."""
        for count in range(len(wanted), 0, -1):
            newest = list(reversed(known[:count]))
            if len(newest) == count and all(
                self._is(there, each, script) for there, each in zip(newest, wanted[:count], strict=True)
            ):
                return newest
        return []

    def _is(self, there: Revision, wanted: Revision, script: str) -> bool:
        if there.again(0).statement != wanted.again(0).statement:
            return False
        found = self._bie.app(there.app)
        return found is None or _content(found) == _content(app_body(self._leg, there, script))

    def _highest(self, known: Mapping[str, Revision]) -> int:
        return max([self._journal.recall(_SEQUENCE) or 0, *(each.statement.sequence for each in known.values())])

    def _write(self, writer: Writer, revision: Revision, app: App) -> None:
        """Write the missing objects of a revision; a kill in between leaves the statement without its app."""
        writer.remember(_SEQUENCE, max(revision.statement.sequence, self._journal.recall(_SEQUENCE) or 0))
        name = statement_config(self._leg.app, revision.name)
        if self._bie.config(name) is None:  # its name depends on its content alone, and each signature differs
            passphrase = reveal(self._leg.passphrase).encode() if self._leg.passphrase else None
            signature = revision.statement.sign(Path(self._leg.key).expanduser(), passphrase)
            _surely(partial(self._bie.put_config, statement_body(revision, signature)))
        if self._bie.app(app.name) is None:
            _surely(partial(self._bie.put_app, app))

    def _put_blobs(self, revision: Revision, hub: LocalHub, there: dict[str, Config]) -> int:
        sent = 0
        for blob in revision.statement.every_blob:
            name = blob_config(self._leg.model, blob.digest)
            if name not in there:
                if self._objects is None:
                    raise ConfigError(
                        f"the cloud {self._leg.cloud!r} has no storage for files of nodes",
                        hint=f"Give `clouds.{self._leg.cloud}` an `objects` section.",
                    )
                stored = self._objects.put(blob.digest, blob.size, partial(_open_at, hub, blob))
                sent += stored.sent_bytes
                self._put(blob_body(self._leg, blob, url=stored.url, md5=stored.md5), there)
            _require_same(there[name], blob)
        return sent

    def _put(self, config: Config, there: dict[str, Config]) -> None:
        if config.name not in there:
            there[config.name] = _surely(partial(self._bie.put_config, config))


def _open_at(hub: LocalHub, blob: Blob, offset: int) -> BinaryIO:
    descriptor = Descriptor(blob.media_type, parse_digest(blob.digest), blob.size)
    file = hub.blob_path(descriptor).open("rb")
    file.seek(offset)
    return file


def _differs(live: Statement, wanted: Statement) -> bool:
    """Return True if model and image both change."""
    return live.bundle != wanted.bundle and live.image != wanted.image


def _surely(write: Callable[[], _T]) -> _T:
    """Write something again that was answered as done and is not there: BIE loses writes."""
    for _ in range(_WRITES):
        try:
            return write()
        except (Conflict, InputError):  # lost, or done twice and the second time refused
            continue
    return write()


def _require_same(config: Config, blob: Blob) -> None:
    digest = blob.digest.removeprefix("sha256:")
    item = config.items.get(f"sha256-{digest}")
    if not isinstance(item, File) or item.sha256 not in ("", digest):
        raise Conflict(
            f"config {config.name} exists and holds something else than blob {blob.digest}",
            hint="Configs are never edited in place: choose another name for `edge.model`.",
            config=config.name,
        )


def _content(app: App) -> object:
    """Return the parts that decide how an app runs, without its statement and its names."""
    volumes = tuple(volume for volume in app.volumes if volume.name != "statement")
    return normal(replace(app, name="", selector="", labels={}, description="", volumes=volumes))


def _entry() -> str:
    return (Path(__file__).parent.parent / "container_entrypoint.py").read_text(encoding="utf-8")
