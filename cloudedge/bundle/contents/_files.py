"""The dense files of a bundle: which ones a folder holds, which paths are safe to write back, and writing them."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from cloudedge.errors import Conflict, InputError
from cloudedge.io import publish, storage_errors

__all__ = ["OWN_FOLDER", "check_member_path", "list_files", "published"]

OWN_FOLDER = ".bundle"
"""Where an unpacked bundle keeps what is not a dense file; skipped when a folder is packed."""

_PATH_LIMIT = 1024


def list_files(folder: Path) -> list[str]:
    """Return the regular files below a folder as relative POSIX paths, sorted.

    Raises:
        InputError: the folder is not there, or holds something that is no regular file.
    """
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}", path=str(folder))
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
                    hint="Replace it by the file itself (cp -L), or pack a folder without it.",
                    path=str(path),
                )
            found.append(check_member_path(relative))
    return sorted(found)


def check_member_path(path: str) -> str:
    """Return a path inside a bundle if it stays inside on every system.

    Raises:
        InputError: it is absolute, climbs out, or cannot be written as UTF-8.
    """
    parts = PurePosixPath(path).parts
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        raise InputError(f"the file name {path!r} is not UTF-8", hint="Rename the file.") from None
    if (
        not parts
        or path.startswith("/")
        or ".." in parts
        or "." in path.split("/")
        or "" in path.split("/")
        or "\\" in path
        or any(ord(c) < 32 for c in path)  # noqa: PLR2004 - control characters
        or len(encoded) > _PATH_LIMIT
    ):
        raise InputError(f"not a path a bundle may hold: {path!r}", path=path)
    return path


@contextmanager
def published(target: Path, doing: str) -> Iterator[Path]:
    """Lend a name beside `target`; what is there when the block ends becomes `target`, or goes if it failed.

    Raises:
        Conflict: `target` exists.
    """
    if target.exists():
        raise Conflict(f"{target} exists", hint="Name one that is not there yet, or remove it.", path=str(target))
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
