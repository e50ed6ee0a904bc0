"""Path checks for a runtime that pastes paths into ``rm -rf`` without quoting them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from cloudedge.findings import Finding, error

__all__ = ["check_paths", "has_unsafe_characters"]

_UNSAFE = re.compile(r"""[\s;&|$`()<>*?\[\]{}'"\\~#!]""")


def has_unsafe_characters(path: str) -> bool:
    """Return whether a path has characters that a shell would interpret."""
    return _UNSAFE.search(path) is not None


def check_paths(paths: Iterable[str], where: str, *, absolute: bool = False) -> Iterator[Finding]:
    """Check paths below a data set's root.

    Args:
        paths: The paths.
        where: The field that holds them.
        absolute: Whether they name a folder of the host rather than one of the data set.
    """
    for number, path in enumerate(paths):
        place = f"{where}[{number}]"
        steps = path.split("/")
        if not path.strip("/. "):
            yield error("path", place, f"{path!r} is the whole data set, or empty.", "Name a path below the root.")
        elif has_unsafe_characters(path) or not path.isprintable():
            yield error(
                "path",
                place,
                f"{path!r} has characters that the runtime's shell would interpret.",
                "Rename it first: letters, digits, '-', '_', '.', ',', '=', '+', '@', ':' and '/' are safe.",
            )
        elif path.startswith("-"):
            yield error("path", place, f"{path!r} would be read as an option.")
        elif ".." in steps or "." in steps:
            yield error("path", place, f"{path!r} leaves its starting folder.", "Write it without '.' and '..'.")
        elif path.startswith("/") != absolute:
            wanted = "a folder of the host, from /" if absolute else "relative to the data set's root"
            yield error("path", place, f"{path!r} must be {wanted}.")
