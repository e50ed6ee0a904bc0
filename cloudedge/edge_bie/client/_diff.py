"""Differences between two JSON values, field by field, fit to be shown to anybody."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cloudedge.edge_bie.client._masking import MASK, masked

__all__ = ["Difference", "compare"]


@dataclass(frozen=True)
class Difference:
    """One thing that differs; secrets are masked."""

    path: str
    old: Any
    new: Any


def compare(old: Any, new: Any, *, hide: str = "", path: str = "") -> Iterator[Difference]:
    """Compare two values field by field.

    Args:
        old: One.
        new: The other.
        hide: Of what is below this path, only that it differs is shown.
        path: Where in the whole these are.
    """
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}):
            yield from compare(old.get(key), new.get(key), hide=hide, path=f"{path}.{key}" if path else str(key))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from compare(one, other, hide=hide, path=f"{path}[{i}]")
    elif old != new and (old or new):
        is_hidden = bool(hide) and (path == hide or path.startswith(f"{hide}."))
        yield Difference(path, _shown(path, old, hide=is_hidden), _shown(path, new, hide=is_hidden))


def _shown(path: str, value: Any, *, hide: bool) -> Any:
    if value is None or hide:
        return None if value is None else MASK
    leaf = path.rpartition(".")[2]
    return masked({leaf: value})[leaf]
