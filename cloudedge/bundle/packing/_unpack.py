"""Write a bundle's files outside the hub: as a folder, or as one zip whose bytes depend on the bundle alone."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

from cloudedge.bundle.contents import published
from cloudedge.bundle.packing._bundle import Bundle
from cloudedge.errors import InputError
from cloudedge.hub import Progress
from cloudedge.io import path_below, safe_path, sync_file

__all__ = ["export_zip", "unpack"]

_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time a zip can record
_REGULAR_FILE = 0o100644 << 16


def unpack(bundle: Bundle, folder: str | os.PathLike[str], *, progress: Progress = lambda _: None) -> Path:
    """Write a bundle's files to a new folder, verifying them on the way.

    Raises:
        Conflict: the folder exists.
        IntegrityError: a blob is damaged; the folder does not appear.
    """
    target = Path(folder).absolute()
    with published(target, f"unpacking {bundle.name}:{bundle.version}") as temporary:
        temporary.mkdir()
        for member in bundle.members():
            path = path_below(temporary, member.path)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                file = path.open("xb")
            except (FileExistsError, NotADirectoryError):
                raise InputError(f"{bundle!r} has two members at {member.path!r}") from None
            with file:
                for chunk in member.chunks:
                    file.write(chunk)
                    progress(len(chunk))
                file.flush()
                os.fsync(file.fileno())
    return target


def export_zip(bundle: Bundle, path: str | os.PathLike[str], *, progress: Progress = lambda _: None) -> Path:
    """Write a bundle as a zip whose members are sorted, stored and of one fixed time: one bundle, one MD5.

    Members are stored, not compressed: trained weights hardly shrink, and a compressor's output depends on its version.

    Raises:
        Conflict: the file exists.
        IntegrityError: a blob is damaged; the file does not appear.
    """
    target = Path(path).absolute()
    with published(target, f"exporting {bundle.name}:{bundle.version}") as temporary:
        with zipfile.ZipFile(temporary, "x", zipfile.ZIP_STORED) as archive:
            for member in sorted(bundle.members(), key=lambda member: member.path):
                info = zipfile.ZipInfo(safe_path(member.path), _EPOCH)
                info.external_attr = _REGULAR_FILE
                info.file_size = member.size
                with archive.open(info, "w", force_zip64=member.size >= zipfile.ZIP64_LIMIT) as file:
                    for chunk in member.chunks:
                        file.write(chunk)
                        progress(len(chunk))
        sync_file(temporary)
    return target
