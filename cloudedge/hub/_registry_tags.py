"""Moving tags in a registry: record the move, move the registry's own tag, look again.

The rules of the record are in `_registry_events`; here they meet the network.

Registries offer no compare-and-set, and with plain reads and writes nobody can build one that also survives a
mover's death. What holds:

- every move is recorded before it takes effect, and no record is overwritten by another mover;
- racing movers leave the registry's tag at the newest record's target, whoever is last to look;
- a move with `expected`, or of a version, takes effect only if its mover, having recorded it, finds no
  rival's record beside it. Of several at once at most one is told that it succeeded; the others withdraw
  their records and try again, until they see the winner and raise `Conflict`;
- a mover that dies after recording has moved the tag as far as cloudedge's readers are concerned; the
  registry's own tag follows with the next move, the same one repeated included. Died one with `expected` in
  that moment, its record stands unexamined: that is the gap a real compare-and-set would close.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from cloudedge.errors import Conflict, InputError, NotFound, Rejected
from cloudedge.hub._protocol import AnyVersion
from cloudedge.hub._registry_events import (
    UNSEEN,
    EventName,
    TagEvent,
    Unseen,
    effective,
    fold,
    is_reserved,
    untag_marker,
)
from cloudedge.hub._tags import check_tag, current, is_version, moved

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cloudedge.clock import Clock
    from cloudedge.hub._oci import Descriptor, Digest
    from cloudedge.hub._registry_repo import Repository
    from cloudedge.hub._tags import Expectation, TagEntry

__all__ = ["RepositoryTags"]

_READERS = 8
_ATTEMPTS = 6
"""How often a move that has to be alone is tried before its mover gives up."""
_FIRST_WAIT_S = 0.05

_A = TypeVar("_A")
_B = TypeVar("_B")


class RepositoryTags:
    """The tags of one repository."""

    def __init__(self, repository: Repository, clock: Clock) -> None:
        self._repo, self._clock = repository, clock
        self._known: dict[EventName, TagEvent] = {}  # a record never changes, so it is read once

    def entries(self) -> list[TagEntry]:
        """Return the whole history of every tag; tags in the order of their names."""
        # Pointers first, then events: an event is written before its pointer moves, so a pointer that
        # cloudedge moved is never news to the events.
        plain, _ = EventName.split(self._repo.list_tags())
        pointers: dict[str, Descriptor | None] = dict(zip(plain, _each(self._repo.head_manifest, plain), strict=True))
        listed, names = EventName.split(self._repo.list_tags())
        events = self._read(names)
        missing = {e.tag for e in events} - set(listed)
        entries: list[TagEntry] = []
        for tag in sorted({*pointers, *(e.tag for e in events)}):
            pointer = None if tag in missing else pointers.get(tag) or UNSEEN
            entries += fold(tag, events, pointer)
        return entries

    def recorded(self) -> list[TagEvent]:
        """Return every event that was not withdrawn."""
        return self._read(EventName.split(self._repo.list_tags())[1])

    def forget(self, entries: list[TagEntry]) -> None:
        """Delete the events of some entries.

        Raises:
            Rejected: the registry does not allow deletion.
        """
        gone = {(entry.tag, entry.seq) for entry in entries}
        for event in self.recorded():
            if event.target is not None and (event.tag, event.seq) in gone:
                self._repo.delete_manifest(event.to_manifest().digest)
                self._known.pop(event.name, None)

    def move(self, tag: str, target: Descriptor | None, *, by: str, at: str, expected: Expectation) -> TagEntry | None:
        """Point a tag at a manifest, or nowhere. See `Hub.move_tag`."""
        check_tag(tag)
        if is_reserved(tag):
            raise InputError(f"not a tag: {tag!r} (names beginning so are kept for the record of tag moves)")
        if target is not None and self._repo.head_manifest(target.digest) is None:
            raise NotFound(
                f"cannot tag {target.digest} as {tag}: it is not in {self._repo.path}",
                hint="Push the bundle first.",
                digest=target.digest,
            )
        alone = not isinstance(expected, AnyVersion) or is_version(tag)
        for tries in range(_ATTEMPTS):
            pointer = self._repo.head_manifest(tag)
            known = self._events(tag)
            history = fold(tag, known, pointer)
            now = current(history, tag)
            try:
                changes = moved(history, tag, target, by=by, at=at, expected=expected) is not history
            except NotFound:
                self._finish_for_others(tag, known, pointer, now)
                raise
            if not changes:
                self._finish_for_others(tag, known, pointer, now)
                return now
            if target is None:
                self._check_deletion(tag)
            if now is not None and not now.since and now.target.digest not in {e.digest for e in known}:
                # Another tool put the tag there; without a record of its own that stretch would be forgotten.
                known = [*known, self._record(tag, now.target, known, at="", by="", previous=None)]
            before = now.target.digest if now else None
            event = self._record(tag, target, known, at=at, by=by, previous=before)
            after = self._events(tag)
            # All that was recorded counts here, not only what is effective: ours may have hidden a rival's.
            rivals = {e.name for e in after if e.digest != event.digest} - {e.name for e in known}
            if not (alone and rivals):
                after = self._settle(tag, after, UNSEEN)
                return next((e for e in fold(tag, after, UNSEEN) if _is_entry_of(e, event)), None)
            self._repo.put_manifest(event.name.void, event.to_manifest())
            self._settle(tag, self._events(tag), UNSEEN)
            self._clock.sleep(_FIRST_WAIT_S * 2**tries * (0.5 + self._clock.random()))
        raise Conflict(
            f"tag {tag} of {self._repo.path} was not moved: others kept moving it at the same moment",
            hint="Look at its history, then repeat the command if it is still what you want.",
            tag=tag,
        )

    def _record(
        self,
        tag: str,
        target: Descriptor | None,
        events: list[TagEvent],
        *,
        at: str,
        by: str,
        previous: Digest | None,
    ) -> TagEvent:
        nonce = f"{int(self._clock.random() * 2**32):08x}"
        seq = 1 + max((e.seq for e in events), default=0)
        event = TagEvent(tag, seq, nonce, at=at, by=by, previous=previous, target=target)
        self._repo.put_manifest(str(event.name), event.to_manifest())
        return event

    def _settle(self, tag: str, events: list[TagEvent], pointer: Descriptor | Unseen | None) -> list[TagEvent]:
        """Move the registry's own tag to where the newest event says, until no newer one turned up."""
        settled = pointer
        while (counted := effective(tag, events)) and not _agrees(settled, counted[-1]):
            newest = counted[-1]
            if newest.target is None:
                self._remove(tag)
            else:
                self._repo.put_manifest(tag, self._repo.get_manifest(newest.target.digest))
            settled = newest.target
            events = self._events(tag)
        return events

    def _finish_for_others(
        self, tag: str, events: list[TagEvent], pointer: Descriptor | None, now: TagEntry | None
    ) -> None:
        """Do what a killed mover left undone: the registry's own tag is not where the history says."""
        if (now.target.digest if now else None) != (pointer.digest if pointer else None):
            self._settle(tag, events, pointer)

    def _check_deletion(self, tag: str) -> None:
        """Find out whether the registry lets tags go before anything is recorded.

        Raises:
            Rejected: it does not; says what to configure.
        """
        # Deleting what is not there tells, and does no harm.
        self._repo.delete_manifest(untag_marker(tag).digest)

    def _remove(self, tag: str) -> None:
        try:
            if self._repo.delete_manifest(tag) or self._repo.head_manifest(tag) is None:
                return
        except Rejected:
            pass  # docker-registry 2 deletes by digest only, and then every tag of that digest
        marker = untag_marker(tag)
        self._repo.put_manifest(tag, marker)
        self._repo.delete_manifest(marker.digest)

    def _events(self, tag: str) -> list[TagEvent]:
        """Return every event of a tag that was not withdrawn."""
        _, names = EventName.split(self._repo.list_tags())
        return [e for e in self._read(name for name in names if name.concerns(tag)) if e.tag == tag]

    def _read(self, names: Iterable[EventName]) -> list[TagEvent]:
        names = list(names)
        new = [name for name in names if name not in self._known]
        for name, event in zip(new, _each(self._read_one, new), strict=True):
            if event is not None:
                self._known[name] = event
        return [self._known[name] for name in names if name in self._known]

    def _read_one(self, name: EventName) -> TagEvent | None:
        try:
            return TagEvent.from_manifest(name, self._repo.get_manifest(str(name)))
        except NotFound:
            return None  # deleted since it was listed


def _each(function: Callable[[_A], _B], items: list[_A]) -> list[_B]:
    """Call a function for many items, a few at a time."""
    if len(items) < 2:  # noqa: PLR2004 - nothing to gain
        return [function(item) for item in items]
    with ThreadPoolExecutor(_READERS) as pool:
        return list(pool.map(function, items))


def _agrees(pointer: Descriptor | Unseen | None, event: TagEvent) -> bool:
    if isinstance(pointer, Unseen):
        return False
    return (pointer.digest if pointer else None) == event.digest


def _is_entry_of(entry: TagEntry, event: TagEvent) -> bool:
    return (entry.seq, entry.target.digest, entry.by) == (event.seq, event.digest, event.by)
