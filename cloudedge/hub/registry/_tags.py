"""Tag moves in a registry: record the move, move the registry's own tag, check again.

`_tag_events` has the rules of the record; this module applies them over the network. Registries offer no
compare-and-set, and reads and writes alone cannot build one that is both safe and never stuck. Guarantees:

- every move is recorded before it takes effect, and no mover overwrites another's record;
- racing movers leave the registry's tag at the newest record's target, whichever looks last;
- a move with `expected`, or of a version, is announced by a claim first and recorded only if its mover then sees no
  other open claim and no event that it did not know of. Of several such movers, each of which writes before it looks,
  at most one succeeds; the others give their claims up and try again, until they see what happened and raise
  `Conflict`;
- a mover that dies after its record has moved the tag for cloudedge's readers; the registry's own tag follows with
  the next move, including a repeat of the same one;
- a mover that dies between claim and record has moved nothing. Its claim keeps others who must be alone waiting until
  one of them has watched it for `CLAIM_LIFE_S` and gives it up in its place. A living mover records within half that
  time or not at all, so this is safe while a single request takes less than the other half.

A move without `expected` does not wait: when it overlaps a move that must be alone, either may be the newest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudedge.errors import Conflict, InputError, NotFound, Rejected
from cloudedge.hub.core import AnyVersion, check_tag, current, is_version, moved
from cloudedge.hub.registry._tag_events import (
    UNSEEN,
    EventName,
    Listing,
    TagEvent,
    Unseen,
    effective,
    fold,
    is_reserved,
    untag_marker,
)
from cloudedge.io import Backoff, map_in_threads

if TYPE_CHECKING:
    from cloudedge.clock import Clock
    from cloudedge.hub.core import Descriptor, Digest, Expectation, TagEntry
    from cloudedge.hub.registry._repository import Repository

__all__ = ["RepositoryTags"]

_READERS = 8
CLAIM_LIFE_S = 20.0
"""Time for which a mover respects another's open claim while watching it."""
_MOVE_TIMEOUT_S = 60.0
"""Time limit of a move that must be alone."""
_BACKOFF = Backoff(0.05, 2.0, 0.5, 1.5)


class RepositoryTags:
    """The tags of one repository."""

    def __init__(self, repository: Repository, clock: Clock) -> None:
        self._repo, self._clock = repository, clock
        self._known: dict[EventName, TagEvent] = {}  # a record never changes, so each is read once

    def entries(self) -> list[TagEntry]:
        """Return the whole history of every tag, sorted by tag."""
        # Pointers first, then events: an event is written before its pointer moves, so the events always include a
        # pointer that cloudedge moved.
        plain = self._list_tags().plain
        pointers: dict[str, Descriptor | None] = dict(
            zip(plain, map_in_threads(self._repo.head_manifest, plain, _READERS), strict=True)
        )
        listing = self._list_tags()
        events = self._read_events(listing.events)
        missing = {e.tag for e in events} - set(listing.plain)
        entries: list[TagEntry] = []
        for tag in sorted({*pointers, *(e.tag for e in events)}):
            pointer = None if tag in missing else pointers.get(tag) or UNSEEN
            entries += fold(tag, events, pointer)
        return entries

    def recorded(self) -> list[TagEvent]:
        """Return every event of every tag."""
        return self._read_events(self._list_tags().events)

    def forget(self, entries: list[TagEntry]) -> None:
        """Delete the events of history entries.

        Raises:
            Rejected: the registry does not allow deletion.
        """
        gone = {(entry.tag, entry.seq) for entry in entries}
        for event in self.recorded():
            if event.target is not None and (event.tag, event.seq) in gone:
                # A claim has the same manifest as its event, so its tag is deleted as well.
                self._repo.delete_manifest(event.to_manifest().digest)
                self._known.pop(event.name, None)

    def move(self, tag: str, target: Descriptor | None, *, by: str, at: str, expected: Expectation) -> TagEntry | None:
        """Point a tag at a manifest, or nowhere. See `Hub.move_tag`."""
        check_tag(tag)
        if is_reserved(tag):
            raise InputError(f"not a tag: {tag!r} (names with this prefix are reserved for the record of tag moves)")
        if target is not None and self._repo.head_manifest(target.digest) is None:
            raise NotFound(
                f"cannot tag {target.digest} as {tag}: it is not in {self._repo.path}",
                hint="Push the bundle with `cloudedge hub push`.",
                digest=target.digest,
            )
        alone = not isinstance(expected, AnyVersion) or is_version(tag)
        watched: dict[EventName, float] = {}
        started, tries = self._clock.monotonic(), 0
        while self._clock.monotonic() - started < _MOVE_TIMEOUT_S:
            pointer = self._repo.head_manifest(tag)
            known = self._events(tag)
            history = fold(tag, known, pointer)
            now = current(history, tag)
            try:
                changes = moved(history, tag, target, by=by, at=at, expected=expected) is not history
            except NotFound:
                self._finish_interrupted_move(tag, known, pointer, now)
                raise
            if not changes:
                self._finish_interrupted_move(tag, known, pointer, now)
                return now
            if target is None:
                self._check_deletion(tag)
            if now is not None and not now.since and now.target.digest not in {e.digest for e in known}:
                # Another tool set the tag; record that, or this period would be lost from the history.
                known = [*known, self._next_event(tag, now.target, known)]
                self._record(known[-1])
            event = self._next_event(tag, target, known, now.target.digest if now else None, at=at, by=by)
            if not alone or self._claim(event, known, watched):
                self._record(event)
                after = self._align_pointer(tag, self._events(tag), UNSEEN)
                return next((e for e in fold(tag, after, UNSEEN) if _is_entry_of(e, event)), None)
            tries += 1
            self._clock.sleep(_BACKOFF.pause_s(tries, self._clock))
        raise Conflict(
            f"tag {tag} of {self._repo.path} was not moved: others kept moving it at the same moment",
            hint="Look at `cloudedge hub history`, then run the command again if you still want it.",
            tag=tag,
        )

    def _next_event(
        self,
        tag: str,
        target: Descriptor | None,
        known: list[TagEvent],
        previous: Digest | None = None,
        *,
        at: str = "",
        by: str = "",
    ) -> TagEvent:
        """Return the event that follows the known ones."""
        nonce = f"{int(self._clock.random() * 2**32):08x}"
        seq = 1 + max((e.seq for e in known), default=0)
        return TagEvent(tag, seq, nonce, at=at, by=by, previous=previous, target=target)

    def _record(self, event: TagEvent) -> None:
        self._repo.put_manifest(str(event.name), event.to_manifest())

    def _claim(self, event: TagEvent, known: list[TagEvent], watched: dict[EventName, float]) -> bool:
        """Announce an event; returns True if it may be recorded because no other process is about to move the tag.

        Args:
            event: The event to record.
            known: The events on which the decision was based.
            watched: By unfinished event or claim of others: the time this mover first saw it; kept between calls.
        """
        started = self._clock.monotonic()
        if self._has_rivals(event, known, watched):
            return False
        self._repo.put_manifest(event.name.claim, event.to_manifest())
        alone = not self._has_rivals(event, known, watched)
        if alone and self._clock.monotonic() - started < CLAIM_LIFE_S / 2:
            return True
        self._repo.put_manifest(event.name.void, event.to_manifest())
        return False

    def _has_rivals(self, event: TagEvent, known: list[TagEvent], watched: dict[EventName, float]) -> bool:
        """Return True if others moved the tag since, or are about to; gives up claims of killed movers."""
        listing = self._list_tags()
        names = [name for name in listing.events if name.concerns(event.tag)]
        news = {e.name for e in self._read_events(names) if e.tag == event.tag} - {e.name for e in known}
        claims = {name for name in listing.open_claims if name.concerns(event.tag)} - {event.name}
        # A registry may list a tag a moment before it is readable, or for ever if it died in that moment.
        half_done = claims | {name for name in names if name not in self._known}
        now = self._clock.monotonic()
        dead = {name for name in half_done if now - watched.setdefault(name, now) > CLAIM_LIFE_S}
        for claim in claims & dead:
            self._repo.put_manifest(claim.void, event.to_manifest())
        return bool(news or half_done - dead)

    def _align_pointer(self, tag: str, events: list[TagEvent], pointer: Descriptor | Unseen | None) -> list[TagEvent]:
        """Move the registry's own tag to the newest event's target, until no newer event turns up."""
        settled = pointer
        while (counted := effective(tag, events)) and not _points_at(settled, counted[-1]):
            newest = counted[-1]
            if newest.target is None:
                self._delete_tag(tag)
            else:
                self._repo.put_manifest(tag, self._repo.get_manifest(newest.target.digest))
            settled = newest.target
            events = self._events(tag)
        return events

    def _finish_interrupted_move(
        self, tag: str, events: list[TagEvent], pointer: Descriptor | None, now: TagEntry | None
    ) -> None:
        """Finish the move of a killed mover: the registry's own tag differs from the history."""
        if (now.target.digest if now else None) != (pointer.digest if pointer else None):
            self._align_pointer(tag, events, pointer)

    def _check_deletion(self, tag: str) -> None:
        """Check that the registry allows deletion before anything is recorded.

        Raises:
            Rejected: it does not; the hint names the setting.
        """
        # Deleting a missing manifest shows it without harm.
        self._repo.delete_manifest(untag_marker(tag).digest)

    def _delete_tag(self, tag: str) -> None:
        try:
            if self._repo.delete_manifest(tag) or self._repo.head_manifest(tag) is None:
                return
        except Rejected:
            pass  # docker-registry 2 deletes by digest only, with every tag of that digest
        marker = untag_marker(tag)
        self._repo.put_manifest(tag, marker)
        self._repo.delete_manifest(marker.digest)

    def _events(self, tag: str) -> list[TagEvent]:
        """Return every event of a tag."""
        names = [name for name in self._list_tags().events if name.concerns(tag)]
        return [e for e in self._read_events(names) if e.tag == tag]

    def _list_tags(self) -> Listing:
        return Listing.of(self._repo.list_tags())

    def _read_events(self, names: list[EventName]) -> list[TagEvent]:
        new = [name for name in names if name not in self._known]
        for name, event in zip(new, map_in_threads(self._read_event, new, _READERS), strict=True):
            if event is not None:
                self._known[name] = event
        return [self._known[name] for name in names if name in self._known]

    def _read_event(self, name: EventName) -> TagEvent | None:
        try:
            return TagEvent.from_manifest(name, self._repo.get_manifest(str(name)))
        except NotFound:
            return None  # deleted after it was listed


def _points_at(pointer: Descriptor | Unseen | None, event: TagEvent) -> bool:
    if isinstance(pointer, Unseen):
        return False
    return (pointer.digest if pointer else None) == event.digest


def _is_entry_of(entry: TagEntry, event: TagEvent) -> bool:
    return (entry.seq, entry.target.digest, entry.by) == (event.seq, event.digest, event.by)
