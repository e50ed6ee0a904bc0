"""Tar files of parts with their MD5, as `tar` and `md5sum` would write them and upstream's agent fetches them.

The same files always give the same bytes: members are in a fixed order and carry neither owner nor time. Unlike with
`tar` run on ".", the directory itself is no member: unpacking would set its time back too, and upstream's agent deletes
version directories that look older than a day, the one it has just unpacked included.
"""

from __future__ import annotations

import hashlib
import os
import re
import tarfile
from io import FileIO
from pathlib import Path

from cloudedge.errors import IntegrityError
from cloudedge.io import digest_file

__all__ = ["md5_line", "pack", "packed_files", "verify_md5"]

_CHUNK = 1 << 20
_STRETCH = 32 << 20  # bytes of a tar that the device gets while the next ones are written
_FILE = re.compile(r"(data|index)\.([0-9]+|n)")


class _Hashing:
    """A file that hashes the bytes written to it, and starts the device early so that the last sync is short."""

    def __init__(self, file: FileIO) -> None:
        self._file = file
        self._at = 0
        self._started = 0
        self.md5 = hashlib.md5(usedforsecurity=False)

    def write(self, data: bytes) -> int:
        self.md5.update(data)
        written = 0
        while written < len(data):
            written += self._file.write(memoryview(data)[written:])
        self._at += written
        if self._at - self._started >= _STRETCH and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._file.fileno(), self._started, self._at - self._started, os.POSIX_FADV_DONTNEED)
            self._started = self._at
        return written

    def tell(self) -> int:
        return self._at


def packed_files(directory: Path) -> list[Path]:
    """List a part's files in the order they are packed: data, index, then the lists of both."""

    def rank(path: Path) -> tuple[bool, str, int]:
        match = _FILE.fullmatch(path.name)
        kind, number = match.groups() if match else ("", "n")
        return number == "n", kind, 0 if number == "n" else int(number)

    return sorted((path for path in directory.iterdir() if _FILE.fullmatch(path.name)), key=rank)


def pack(directory: Path, tar: Path) -> str:
    """Write the tar of a part's directory to a new file, wait until the device has it, and return its MD5."""
    with FileIO(tar, "x") as file:
        hashing = _Hashing(file)
        with tarfile.open(fileobj=hashing, mode="w", format=tarfile.GNU_FORMAT, copybufsize=_CHUNK) as out:  # type: ignore[call-overload]
            for path in packed_files(directory):
                member = tarfile.TarInfo(f"./{path.name}")
                member.size = path.stat().st_size
                with path.open("rb", buffering=0) as content:
                    out.addfile(member, content)
        os.fsync(file.fileno())
    return hashing.md5.hexdigest()


def md5_line(digest: str, tar: Path) -> str:
    """Return the line that `md5sum` prints for a tar at its final, absolute place."""
    return f"{digest}  {tar}\n"


def verify_md5(tar: Path) -> str:
    """Compare a tar with the .md5 beside it and return the digest.

    Raises:
        IntegrityError: they differ, or the .md5 file is malformed.
    """
    note = tar.with_name(tar.name + ".md5")
    words = note.read_bytes()[:4096].split()
    if not words or not re.fullmatch(rb"[0-9a-f]{32}", words[0]):
        raise IntegrityError(f"{note} does not begin with 32 hexadecimal digits", path=str(note))
    md5 = digest_file(tar, sha256=False, md5=True).md5
    if md5 != words[0].decode():
        raise IntegrityError(
            f"{tar} has the MD5 {md5}, {note.name} says {words[0].decode()}",
            hint="Fetch or build it again. Upstream's agent keeps a corrupt tar for ever: remove it there too.",
            path=str(tar),
        )
    return md5
