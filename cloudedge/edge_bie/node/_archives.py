"""Unpacking of archives that configs refer to: only if every member stays inside its folder and all of them fit.

Links, devices and members outside their folder are refused before the first byte is written.
"""

from __future__ import annotations

import errno
import gzip
import lzma
import stat
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO

from cloudedge.errors import InputError, StorageError
from cloudedge.io import safe_path, storage_errors

__all__ = ["unpack_archive"]

_MEMBERS = 1_000_000
_PADDING = 1 << 20
"""Most bytes after the end of a tar; tar itself fills up blocks of 10 KiB."""
_DAMAGED = (
    zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError,
    RuntimeError,
)  # fmt: skip


def unpack_archive(archive: Path, kind: str, folder: Path, *, room: int) -> None:
    """Unpack an archive into a folder, over existing files, as BIE's ``unpack`` does.

    Args:
        archive: The file.
        kind: ``zip``, ``tar`` or ``tgz``.
        folder: The target folder; it exists.
        room: Most bytes to write.

    Raises:
        InputError: It is damaged, of another kind, or has a forbidden member.
        StorageError: It holds more than `room`, or the disk fails.
    """
    with storage_errors(f"unpacking {archive.name}", folder):
        try:
            if kind == "zip":
                _unzip(archive, folder, room)
            elif kind in ("tar", "tgz"):
                _untar(archive, "r:gz" if kind == "tgz" else "r:", folder, room)
            else:
                raise InputError(f"{archive.name}: 'unpack: {kind}' is not zip, tar or tgz")
        except _DAMAGED as error:
            raise InputError(f"{archive.name} is no {kind} that can be read: {error}") from error


def _unzip(archive: Path, folder: Path, room: int) -> None:
    with zipfile.ZipFile(archive) as opened:
        members = opened.infolist()
        for member in members:
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise InputError(f"{archive.name}: {member.filename!r} is no plain file")
        paths = [_inside(archive, member.filename, is_folder=member.is_dir()) for member in members]
        _check_room(archive, len(members), sum(member.file_size for member in members), room)
        for member, path in zip(members, paths, strict=True):
            target = folder / path
            if member.is_dir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with opened.open(member) as source, target.open("wb") as out:
                _copy(source, out, member.file_size, archive)
            target.chmod(((member.external_attr >> 16) & 0o777) | 0o644)


def _untar(archive: Path, mode: str, folder: Path, room: int) -> None:
    with tarfile.open(archive, mode) as opened:  # type: ignore[call-overload]  # the mode is one of two
        members = []
        for member in opened:
            if not (member.isreg() or member.isdir()):
                raise InputError(f"{archive.name}: {member.name!r} is no plain file")
            members.append((member, _inside(archive, member.name, is_folder=member.isdir())))
            _check_room(archive, len(members), sum(item.size for item, _ in members[-1:]), room)
        _check_room(archive, len(members), sum(item.size for item, _ in members), room)
        if opened.fileobj is not None and len(opened.fileobj.read(_PADDING + 1)) > _PADDING:  # gzip checks at its end
            raise InputError(f"{archive.name} goes on after its end")
        for member, path in members:
            target = folder / path
            if member.isdir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            source = opened.extractfile(member)
            if source is not None:
                with source, target.open("wb") as out:
                    _copy(source, out, member.size, archive)
                target.chmod((member.mode & 0o777) | 0o644)


def _inside(archive: Path, name: str, *, is_folder: bool) -> str:
    plain = name if name.startswith("/") else PurePosixPath(name).as_posix()  # archivers write ./ before and / behind
    return plain if is_folder and plain == "." else safe_path(plain, f"a member of {archive.name}")


def _check_room(archive: Path, members: int, size: int, room: int) -> None:
    if members > _MEMBERS:
        raise InputError(f"{archive.name} has more than {_MEMBERS} members")
    if size > room:
        raise StorageError(f"{archive.name} unpacks to {size} bytes, there is room for {room}", errno=errno.ENOSPC)


def _copy(source: IO[bytes], out: IO[bytes], size: int, archive: Path) -> None:
    """Copy a member; more bytes than it announced are a bomb."""
    left = size
    while chunk := source.read(1 << 20):
        left -= len(chunk)
        if left < 0:
            raise InputError(f"{archive.name}: a member is longer than it says")
        out.write(chunk)
    if left:
        raise InputError(f"{archive.name}: a member is shorter than it says")
