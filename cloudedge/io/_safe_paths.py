"""Paths made of names that come from elsewhere: a manifest, a listing, an archive, a control plane.

Such a name never reaches the file system before one of these functions has accepted it.
"""

from __future__ import annotations

from pathlib import Path

from cloudedge.errors import InputError

__all__ = ["path_below", "safe_path"]

_PATH_LIMIT, _STEP_LIMIT = 1024, 255
"""Bytes of a whole path and of one of its steps; a step's is the limit of Linux's file systems."""
_DELETE = 0x7F


def safe_path(name: str, what: str = "a path") -> str:
    """Return a relative path with forward slashes if it stays below its folder on every operating system.

    Args:
        name: The path as it came.
        what: A word for it in error messages.

    Raises:
        InputError: it is empty, absolute, climbs out, is too long, is not UTF-8, or has an empty step, a step of dots,
            a backslash, a drive letter or a control character.
    """
    try:
        steps = [step.encode() for step in name.split("/")]
    except UnicodeEncodeError:
        raise InputError(f"{what} is not UTF-8: {name!r}", hint="Rename the file.") from None
    reason = ""
    if any(step in (b"", b".", b"..") for step in steps):
        reason = "empty, absolute, or with steps that lead elsewhere"
    elif "\\" in name or name[1:2] == ":":
        reason = "a path of another operating system"
    elif any(ord(letter) < 32 or ord(letter) == _DELETE for letter in name):  # noqa: PLR2004 - control characters
        reason = "with control characters"
    elif max(map(len, steps)) > _STEP_LIMIT or sum(map(len, steps)) + len(steps) > _PATH_LIMIT:
        reason = "too long"
    if reason:
        shown = name if len(name) <= _STEP_LIMIT else f"{name[:_STEP_LIMIT]}..."
        raise InputError(f"{what} must stay inside its folder, and {shown!r} is {reason}", path=shown)
    return name


def path_below(folder: Path, name: str, what: str = "a path") -> Path:
    """Return the path of a name below a folder; no symbolic link on the way may lead out of the folder.

    Raises:
        InputError: `safe_path` refuses the name, or a link leads out.
    """
    path = folder / safe_path(name, what)
    if not path.resolve().is_relative_to(folder.resolve()):
        raise InputError(f"{what} must stay inside its folder, and a link leads {name!r} out of {folder}", path=name)
    return path
