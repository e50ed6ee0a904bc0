"""Detection of fields a server dropped: strict validation for servers that have none.

Servers before 1.25 accept unknown fields of custom resources and drop them: the answer then lacks a field that was
sent. A changed value is no loss: servers fill in defaults and normalise quantities.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["dropped"]

_WRITE_ONLY = ("stringData",)
"""Accepted in Secrets, and returned encoded under another name."""


def dropped(sent: Mapping[str, Any], got: Mapping[str, Any], *, is_custom: bool) -> list[str]:
    """List the paths that were sent and did not come back.

    Args:
        sent: The object.
        got: The server's answer.
        is_custom: Whether it is a custom resource. The server omits zero, false and empty values of its own kinds.
    """
    body = {key: value for key, value in sent.items() if key not in ("status", "metadata", *_WRITE_ONLY)}
    # Every object's metadata is a type of the server's own.
    metadata = {"metadata": sent["metadata"]} if "metadata" in sent else {}
    return sorted([*_missing(metadata, got, "", is_custom=False), *_missing(body, got, "", is_custom=is_custom)])


def _missing(sent: Any, got: Any, path: str, *, is_custom: bool) -> Iterator[str]:
    if isinstance(sent, Mapping) and isinstance(got, Mapping):
        for key, value in sent.items():
            below = f"{path}.{key}" if path else str(key)
            if key in got:
                yield from _missing(value, got[key], below, is_custom=is_custom)
            elif not _may_be_omitted(value, is_custom=is_custom):
                yield below
    elif isinstance(sent, list) and isinstance(got, list):
        for index, item in enumerate(sent):
            yield from _nearest(item, got, index, f"{path}[{index}]", is_custom=is_custom)


def _nearest(item: Any, got: list[Any], index: int, path: str, *, is_custom: bool) -> list[str]:
    """Compare an item with its counterpart; other managers may have added items before or after it."""
    if not isinstance(item, (Mapping, list)):
        return []  # a plain value has no fields to lose
    same = [each for each in got if isinstance(item, Mapping) and isinstance(each, Mapping) and _same_name(item, each)]
    candidates = same or [*got[index : index + 1], *got]
    best = [path]
    for each in candidates:
        if type(each) is type(item):
            missing = list(_missing(item, each, path, is_custom=is_custom))
            if not missing:
                return []
            if best == [path] or len(missing) < len(best):
                best = missing
    return best


def _same_name(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return "name" in one and one["name"] == other.get("name")


def _may_be_omitted(value: Any, *, is_custom: bool) -> bool:
    if value is None:
        return True
    if isinstance(value, Mapping):
        # A mapping of nulls removes fields, and leaves nothing where there were none.
        return bool(value or not is_custom) and all(
            _may_be_omitted(each, is_custom=is_custom) for each in value.values()
        )
    return not is_custom and value in (0, "", [], False)
