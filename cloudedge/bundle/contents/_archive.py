"""Safe extraction of tar archives from other tools: only plain files, and none outside the target folder."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path
from typing import BinaryIO

from cloudedge.errors import InputError
from cloudedge.hub import CHUNK
from cloudedge.io import path_below

__all__ = ["extract_tar"]


def extract_tar(archive: BinaryIO, target: Path, what: str) -> None:
    """Write the files of a tar archive, compressed or not, below an existing folder.

    Args:
        archive: The open archive, read from its current position.
        target: The folder.
        what: The archive's name in error messages.

    Raises:
        InputError: the file is not a tar archive, holds other than plain files, or a path leaves the folder.
    """
    try:
        with tarfile.open(fileobj=archive) as members:
            for member in members:
                if member.isdir():
                    continue
                source = members.extractfile(member) if member.isreg() else None
                if source is None:
                    raise InputError(f"{what} holds {member.name!r}, which is not a plain file")
                file = path_below(target, member.name.removeprefix("./"), f"a member of {what}")
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("wb") as out:
                    shutil.copyfileobj(source, out, CHUNK)
    except tarfile.TarError as error:
        raise InputError(f"{what} is not a tar archive: {error}") from error
