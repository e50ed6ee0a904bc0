"""Tag events: the record of tag moves in a registry, and the history that follows from it. No network here.

A registry's tags have neither history nor compare-and-set. So each move is first recorded as an event, a small image
index under a tag of its own, ``cloudedge-event.<tag>.<seq>.<nonce>``; only then does the tag itself move. Concurrent
movers thus never overwrite each other's record, and all readers of the same events get the same history, in whatever
order the events were written. Rules:

- events are ordered by `seq`, then by `nonce`; the tag points at the newest one's target;
- the first event of a version binds it for ever: later ones to another manifest are ignored;
- the registry's own tag (the *pointer*) is compared with the events as `fold` describes.

A mover that must be alone first announces its event as a claim, ``cloudedge-claim.<tag>.<seq>.<nonce>``. A claim is
no event and moves nothing. It is open until the event of the same name exists, or until a tag with ``.void`` appended
to its name marks it as given up.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from cloudedge.errors import InputError, IntegrityError
from cloudedge.hub.core import IMAGE_INDEX, Digest, Manifest, TagEntry, canonical_json, is_version, parse_digest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cloudedge.hub.core import Descriptor

__all__ = [
    "UNKNOWN_TIME",
    "UNSEEN",
    "EventName",
    "Listing",
    "TagEvent",
    "Unseen",
    "effective",
    "fold",
    "is_reserved",
    "untag_marker",
]

EVENT_TYPE = "application/vnd.cloudedge.tag-event.v1+json"
UNKNOWN_TIME = "unknown"
"""The `until` of an entry that another tool ended: a registry does not record the time."""

_EVENT_PREFIX = "cloudedge-event."
_CLAIM_PREFIX = "cloudedge-claim."
_VOID_SUFFIX = ".void"
_TAG_LIMIT = 128
_HASH_DIGITS = 32
_KEY_LIMIT = _TAG_LIMIT - len(_CLAIM_PREFIX) - len(".00000000.00000000") - len(_VOID_SUFFIX)
_NAME = re.compile(r"(cloudedge-(?:event|claim)\.)(.+)\.([0-9]{8})\.([0-9a-f]{8})(\.void)?")
_ANNOTATION = "io.cloudedge.tag-event."


class Unseen:
    """The pointer of a tag that was not read from the registry."""


UNSEEN: Final = Unseen()


def _tag_key(tag: str) -> str:
    """Return the tag's form in event names: itself, or its beginning and a hash if it is too long."""
    if len(tag) <= _KEY_LIMIT:
        return tag
    digits = hashlib.sha256(tag.encode()).hexdigest()[:_HASH_DIGITS]
    return f"{tag[: _KEY_LIMIT - _HASH_DIGITS - 1]}-{digits}"


def is_reserved(tag: str) -> bool:
    """Return True if a tag is reserved for events and claims."""
    return tag.startswith((_EVENT_PREFIX, _CLAIM_PREFIX))


@dataclass(frozen=True, order=True)
class EventName:
    """The parsed name of an event's tag."""

    key: str
    seq: int
    nonce: str

    @classmethod
    def of(cls, tag: str, seq: int, nonce: str) -> EventName:
        """Return the name of a tag's event."""
        return cls(_tag_key(tag), seq, nonce)

    def concerns(self, tag: str) -> bool:
        """Return True if this may be an event of a tag; names may be shortened, only the event itself is exact."""
        return self.key == _tag_key(tag)

    def _after(self, prefix: str) -> str:
        return f"{prefix}{self.key}.{self.seq:08d}.{self.nonce}"

    def __str__(self) -> str:
        return self._after(_EVENT_PREFIX)

    @property
    def claim(self) -> str:
        """The tag that announces this event."""
        return self._after(_CLAIM_PREFIX)

    @property
    def void(self) -> str:
        """The tag that marks this claim as given up."""
        return self.claim + _VOID_SUFFIX


@dataclass(frozen=True)
class Listing:
    """A registry's tags, sorted into tags, events and claims."""

    plain: list[str]
    events: list[EventName]
    open_claims: list[EventName]

    @classmethod
    def of(cls, listed: Iterable[str]) -> Listing:
        """Sort a list of tags."""
        plain: list[str] = []
        events, claims, voided = set[EventName](), set[EventName](), set[EventName]()
        for text in listed:
            match = _NAME.fullmatch(text)
            if match is None:
                if not is_reserved(text):
                    plain.append(text)
                continue
            kind, key, seq, nonce, void = match.groups()
            group = voided if void else events if kind == _EVENT_PREFIX else claims
            group.add(EventName(key, int(seq), nonce))
        return cls(plain, sorted(events), sorted(claims - voided - events))


@dataclass(frozen=True)
class TagEvent:
    """One recorded move of a tag; `target` is None for an untag."""

    tag: str
    seq: int
    nonce: str
    at: str
    by: str
    previous: Digest | None
    """The tag's manifest before the move, as the mover saw it."""
    target: Descriptor | None

    @property
    def name(self) -> EventName:
        """The name of its tag."""
        return EventName.of(self.tag, self.seq, self.nonce)

    @property
    def digest(self) -> Digest | None:
        """The digest the tag moved to."""
        return self.target.digest if self.target else None

    def to_manifest(self) -> Manifest:
        """Return the image index that records this event."""
        facts = {"tag": self.tag, "seq": str(self.seq), "at": self.at, "by": self.by}
        facts["previous"] = self.previous or ""
        value = {
            "schemaVersion": 2,
            "mediaType": IMAGE_INDEX,
            "artifactType": EVENT_TYPE,
            "manifests": [self.target.to_json()] if self.target else [],
            "annotations": {_ANNOTATION + key: text for key, text in facts.items()},
        }
        return Manifest.parse(canonical_json(value))

    @classmethod
    def from_manifest(cls, name: EventName, manifest: Manifest) -> TagEvent:
        """Read an event.

        Raises:
            IntegrityError: the tag holds something other than an event.
        """
        try:
            facts = {key: manifest.annotations[_ANNOTATION + key] for key in ("tag", "seq", "at", "by", "previous")}
            event = cls(
                tag=facts["tag"],
                seq=int(facts["seq"]),
                nonce=name.nonce,
                at=facts["at"],
                by=facts["by"],
                previous=parse_digest(facts["previous"]) if facts["previous"] else None,
                target=manifest.manifests[0] if manifest.manifests else None,
            )
        except (KeyError, ValueError, InputError) as error:
            raise _not_an_event(name) from error
        if event.name != name or len(manifest.manifests) > 1:
            raise _not_an_event(name)
        return event


def _not_an_event(name: EventName) -> IntegrityError:
    return IntegrityError(
        f"the tag {name} has the name of a tag event but holds something else",
        hint="Find out who pushed it, then delete that tag.",
        event=str(name),
    )


def untag_marker(tag: str) -> Manifest:
    """Return the disposable manifest that replaces a tag's, so that deleting it deletes the tag.

    It depends on the tag alone: readers recognise it, and two concurrent untags do not disturb each other.
    """
    value = {
        "schemaVersion": 2,
        "mediaType": IMAGE_INDEX,
        "artifactType": "application/vnd.cloudedge.untagged.v1+json",
        "manifests": [],
        "annotations": {_ANNOTATION + "tag": tag},
    }
    return Manifest.parse(canonical_json(value))


def effective(tag: str, events: Iterable[TagEvent]) -> list[TagEvent]:
    """Return the effective events of a tag, oldest first."""
    ordered = sorted((e for e in events if e.tag == tag), key=lambda e: (e.seq, e.nonce))
    if not is_version(tag):
        return ordered
    bound = next((e.digest for e in ordered if e.target), None)
    return [e for e in ordered if e.digest in (bound, None)]


def fold(tag: str, events: Iterable[TagEvent], pointer: Descriptor | Unseen | None) -> list[TagEntry]:
    """Return the history of a tag, oldest first, from its events and the registry's pointer.

    - Pointer and newest event agree, or the pointer is `UNSEEN`: the events are the history.
    - The pointer is at an earlier event's manifest, at an untag's disposable manifest, or missing though the tag was
      new: a mover was killed, or is at work, between its record and the pointer. The record stands: the newest event
      is reported as current (or the tag as gone), and the tag's next mover moves the pointer, too. A tag that another
      tool set back to an earlier manifest looks the same and is treated so.
    - The pointer is at a manifest without an event: another tool pushed it. The current entry ended at
      `UNKNOWN_TIME`, and the pointer's manifest is current with empty `since` and `by`.
    - The pointer is missing though the tag existed before: another tool deleted it, and the current entry ended at
      `UNKNOWN_TIME`.
    """
    ordered = effective(tag, events)
    entries: list[TagEntry] = []
    for event in ordered:
        _end(entries, event.at or UNKNOWN_TIME, event.by)
        if event.target is not None:
            entries.append(TagEntry(tag, event.target, event.seq, since=event.at, by=event.by))
    newest = ordered[-1] if ordered else None
    if isinstance(pointer, Unseen):
        return entries
    if pointer is None or pointer.digest == untag_marker(tag).digest:
        if newest is not None and newest.previous is not None:
            _end(entries, UNKNOWN_TIME, "")
    elif pointer.digest not in {e.digest for e in ordered}:
        _end(entries, UNKNOWN_TIME, "")
        entries.append(TagEntry(tag, pointer, newest.seq + 1 if newest else 1, since="", by=""))
    return entries


def _end(entries: list[TagEntry], at: str, by: str) -> None:
    if entries and entries[-1].is_current:
        entries[-1] = replace(entries[-1], until=at, ended_by=by)
