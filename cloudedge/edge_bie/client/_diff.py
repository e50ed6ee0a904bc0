"""Differences between two JSON values, field by field, with secrets masked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cloudedge.edge_bie.client._masking import MASK, masked

__all__ = ["Difference", "compare"]


@dataclass(frozen=True)
class Difference:
    """One difference; secrets are masked."""

    path: str
    old: Any
    new: Any


def compare(old: Any, new: Any, *, hide: str = "", path: str = "") -> Iterator[Difference]:
    """Compare two values field by field.

    Args:
        old: The value before.
        new: The value after.
        hide: The path below which values are hidden; only the fact of a difference is shown.
        path: The path of both values in the whole.
    """
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}):
            yield from compare(old.get(key), new.get(key), hide=hide, path=f"{path}.{key}" if path else str(key))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from compare(one, other, hide=hide, path=f"{path}[{i}]")
    elif old != new and (old or new):
        is_hidden = bool(hide) and (path == hide or path.startswith(f"{hide}."))
        yield Difference(path, _masked_value(path, old, hide=is_hidden), _masked_value(path, new, hide=is_hidden))


def _masked_value(path: str, value: Any, *, hide: bool) -> Any:
    if value is None or hide:
        return None if value is None else MASK
    leaf = path.rpartition(".")[2]
    return masked({leaf: value})[leaf]
