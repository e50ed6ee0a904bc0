"""Unpacking what somebody else packed: plain files alone, and none outside the folder they belong into."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path
from typing import BinaryIO

from cloudedge.bundle.contents._files import check_member_path
from cloudedge.errors import InputError
from cloudedge.hub import CHUNK

__all__ = ["extract_tar"]


def extract_tar(archive: BinaryIO, target: Path, what: str) -> None:
    """Write the files of a tar archive, compressed or not, below a folder that is there.

    Args:
        archive: It is read from where it is.
        target: The folder.
        what: Names the archive in errors.

    Raises:
        InputError: it is no such archive, holds what is no plain file, or leads out of the folder.
    """
    try:
        with tarfile.open(fileobj=archive) as members:
            for member in members:
                if member.isdir():
                    continue
                source = members.extractfile(member) if member.isreg() else None
                if source is None:
                    raise InputError(f"{what} holds {member.name!r}, which is no plain file")
                file = target / check_member_path(member.name.removeprefix("./"))
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("wb") as out:
                    shutil.copyfileobj(source, out, CHUNK)
    except tarfile.TarError as error:
        raise InputError(f"{what} is no tar archive: {error}") from error
