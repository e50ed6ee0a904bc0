"""Tags and their history as plain data: the rules of a move, and the entries it leaves.

A tag entry records that from `since` on, set by `by`, the tag pointed at this manifest, and, once that ended, the
time and the user who ended it. A tag points at the target of its newest entry that has not ended. The counter `seq`
defines the order, never the wall clock. Versions (`3`, `1.4.0`) are tags that, once set, never move.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Union

from cloudedge.errors import Conflict, InputError, NotFound

if TYPE_CHECKING:
    from cloudedge.hub.core._oci import Descriptor, Digest
    from cloudedge.hub.core._protocol import AnyVersion

__all__ = ["Expectation", "TagEntry", "check_name", "check_tag", "current", "is_version", "moved"]

Expectation = Union["Digest", "AnyVersion", None]
"""The digest a tag must point at before it moves; None: nothing; `ANY`: anything."""

_NAME = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}")
_VERSION = re.compile(r"(0|[1-9][0-9]*)(?:\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(?:-([0-9A-Za-z.-]+))?)?")
_NAME_LIMIT = 200


def check_name(name: str) -> str:
    """Return a bundle's name if registries accept it, too.

    Raises:
        InputError: the name has other characters, or is too long.
    """
    if len(name) > _NAME_LIMIT or not _NAME.fullmatch(name):
        raise InputError(f"not a bundle name: {name!r} (expected lower-case letters, digits, and . _ - / between)")
    return name


def check_tag(tag: str) -> str:
    """Return a tag or version if registries accept it, too.

    Raises:
        InputError: the tag has other characters, or is too long.
    """
    if not _TAG.fullmatch(tag):
        raise InputError(f"not a tag: {tag!r} (expected up to 128 letters, digits, and . _ - after the first)")
    return tag


def is_version(tag: str) -> bool:
    """Return True if a tag is a version: an integer or major.minor.patch."""
    return bool(_VERSION.fullmatch(tag))


@dataclass(frozen=True)
class TagEntry:
    """One period of a tag at one manifest."""

    tag: str
    target: Descriptor
    seq: int
    since: str
    by: str
    until: str = ""
    ended_by: str = ""

    @property
    def is_current(self) -> bool:
        """True if the tag points here now."""
        return not self.until


def current(entries: list[TagEntry], tag: str) -> TagEntry | None:
    """Return the current entry of a tag, if it points anywhere."""
    return next((e for e in entries if e.tag == tag and e.is_current), None)


def moved(
    entries: list[TagEntry],
    tag: str,
    target: Descriptor | None,
    *,
    by: str,
    at: str,
    expected: Expectation,
) -> list[TagEntry]:
    """Return the entries after a move; the same list object if the move changes nothing.

    Raises:
        Conflict: the tag is not at `expected`, or it is a version that already points elsewhere.
        NotFound: the tag to remove points nowhere.
    """
    now = current(entries, tag)
    if now is not None and target is not None and now.target.digest == target.digest:
        return entries
    if expected is None or isinstance(expected, str):
        at_digest = now.target.digest if now else None
        if at_digest != expected:
            raise Conflict(
                f"tag {tag} is at {at_digest or 'nothing'}, not at {expected or 'nothing'}: another process moved it",
                hint="Look at `cloudedge hub history`, then run the command again if you still want it.",
                tag=tag,
                found=at_digest,
                expected=expected,
            )
    if target is None and now is None:
        raise NotFound(f"the tag {tag} does not exist", tag=tag)
    if is_version(tag) and target is not None:
        first = next((e for e in entries if e.tag == tag), None)
        if first is not None and first.target.digest != target.digest:
            raise Conflict(
                f"version {tag} is {first.target.digest}, and versions never change",
                hint="Pack a new version; `--version auto` takes the next one.",
                tag=tag,
                found=first.target.digest,
            )
    seq = 1 + max((e.seq for e in entries if e.tag == tag), default=0)
    after = [replace(e, until=at, ended_by=by) if e is now else e for e in entries]
    if target is not None:
        after.append(TagEntry(tag, target, seq, since=at, by=by))
    return after
