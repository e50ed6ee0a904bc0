"""Tags and their history, as plain data: which moves are allowed and what a move leaves behind.

A tag entry says: from `since` on, set by `by`, this tag pointed at this manifest; and, once that ended, until
when and by whom. The newest entry of a tag that has not ended is where the tag points. Order is the counter
`seq`, never the wall clock. Versions (`3`, `1.4.0`) are tags that, once set, point at one manifest for ever.
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
"""Where a tag has to point before it moves: a digest, None for nowhere, `ANY` for wherever."""

_NAME = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}")
_VERSION = re.compile(r"(0|[1-9][0-9]*)(?:\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(?:-([0-9A-Za-z.-]+))?)?")
_NAME_LIMIT = 200


def check_name(name: str) -> str:
    """Return a bundle's name if registries take it too.

    Raises:
        InputError: it has other characters, or is too long.
    """
    if len(name) > _NAME_LIMIT or not _NAME.fullmatch(name):
        raise InputError(f"not a bundle name: {name!r} (wanted: lower-case letters, digits, and . _ - / between)")
    return name


def check_tag(tag: str) -> str:
    """Return a tag or version if registries take it too.

    Raises:
        InputError: it has other characters, or is too long.
    """
    if not _TAG.fullmatch(tag):
        raise InputError(f"not a tag: {tag!r} (wanted: up to 128 letters, digits, and . _ - after the first)")
    return tag


def is_version(tag: str) -> bool:
    """Tell whether a tag is a version: an integer or major.minor.patch."""
    return bool(_VERSION.fullmatch(tag))


@dataclass(frozen=True)
class TagEntry:
    """One stretch of a tag's life."""

    tag: str
    target: Descriptor
    seq: int
    since: str
    by: str
    until: str = ""
    ended_by: str = ""

    @property
    def is_current(self) -> bool:
        """Whether the tag points here now."""
        return not self.until


def current(entries: list[TagEntry], tag: str) -> TagEntry | None:
    """Return the entry that says where a tag points, if it points anywhere."""
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
    """Return the entries after a tag moved; the same list object if that changes nothing.

    Raises:
        Conflict: the tag is not where `expected` says, or it is a version that points elsewhere already.
        NotFound: a tag that points nowhere was to be removed.
    """
    now = current(entries, tag)
    if now is not None and target is not None and now.target.digest == target.digest:
        return entries
    if expected is None or isinstance(expected, str):
        at_digest = now.target.digest if now else None
        if at_digest != expected:
            raise Conflict(
                f"tag {tag} is at {at_digest or 'nothing'}, not at {expected or 'nothing'}: someone moved it",
                hint="Look at its history, then repeat the command if it is still what you want.",
                tag=tag,
                found=at_digest,
                expected=expected,
            )
    if target is None and now is None:
        raise NotFound(f"there is no tag {tag}", tag=tag)
    if is_version(tag) and target is not None:
        first = next((e for e in entries if e.tag == tag), None)
        if first is not None and first.target.digest != target.digest:
            raise Conflict(
                f"version {tag} is {first.target.digest} and versions never change",
                hint="Pack under a new version: --version auto takes the next one.",
                tag=tag,
                found=first.target.digest,
            )
    seq = 1 + max((e.seq for e in entries if e.tag == tag), default=0)
    after = [replace(e, until=at, ended_by=by) if e is now else e for e in entries]
    if target is not None:
        after.append(TagEntry(tag, target, seq, since=at, by=by))
    return after
