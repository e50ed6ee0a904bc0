"""The dense files of a bundle: list those in a folder, check member paths, and publish a finished file or folder."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cloudedge.errors import Conflict, InputError
from cloudedge.io import publish, safe_path, storage_errors

__all__ = ["OWN_FOLDER", "check_member_path", "list_files", "published"]

OWN_FOLDER = ".bundle"
"""The folder of an unpacked bundle for everything that is not a dense file; packing skips it."""


def list_files(folder: Path) -> list[str]:
    """Return the regular files below a folder as relative POSIX paths, sorted.

    Raises:
        InputError: the folder does not exist, or holds an entry that is not a regular file.
    """
    if not folder.is_dir():
        raise InputError(f"the folder {folder} does not exist", path=str(folder))
    found: list[str] = []
    for base, folders, files in os.walk(folder):
        for name in [*files, *folders]:
            path = Path(base) / name
            relative = path.relative_to(folder).as_posix()
            if relative == OWN_FOLDER:
                folders.remove(name)
                continue
            mode = path.lstat().st_mode
            if stat.S_ISDIR(mode):
                continue
            if not stat.S_ISREG(mode):
                kind = "a symbolic link" if stat.S_ISLNK(mode) else "not a regular file"
                raise InputError(
                    f"{path} is {kind}; a bundle holds plain files",
                    hint="Replace the link by the file itself with `cp -L`, or pack a folder without it.",
                    path=str(path),
                )
            found.append(check_member_path(relative))
    return sorted(found)


def check_member_path(path: str) -> str:
    """Return a path inside a bundle if it stays inside the bundle on every operating system.

    Raises:
        InputError: the path is absolute, climbs out, is too long, or cannot be written as UTF-8.
    """
    return safe_path(path, "a path in a bundle")


@contextmanager
def published(target: Path, doing: str) -> Iterator[Path]:
    """Lend a temporary name beside `target`: renamed to `target` when the block succeeds, removed when it fails.

    Raises:
        Conflict: `target` exists.
    """
    if target.exists():
        raise Conflict(
            f"{target} exists", hint="Choose a name that does not exist yet, or remove it.", path=str(target)
        )
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}")
    with storage_errors(doing, target):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            publish(temporary, target)
        finally:
            if temporary.is_dir():
                shutil.rmtree(temporary, ignore_errors=True)
            else:
                temporary.unlink(missing_ok=True)
