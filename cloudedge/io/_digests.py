"""Digests of files and streams, several in one pass."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Digests", "digest_chunks", "digest_file", "file_chunks"]

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Digests:
    """The size of some content and its digests, in hexadecimal; those not asked for are empty."""

    size: int
    sha256: str = ""
    md5: str = ""


def digest_chunks(chunks: Iterable[bytes], *, sha256: bool = True, md5: bool = False) -> Digests:
    """Hash content that comes in pieces, and count its bytes."""
    wanted = {"sha256": hashlib.sha256()} if sha256 else {}
    if md5:
        wanted["md5"] = hashlib.md5(usedforsecurity=False)
    size = 0
    for chunk in chunks:
        size += len(chunk)
        for each in wanted.values():
            each.update(chunk)
    return Digests(size, **{name: each.hexdigest() for name, each in wanted.items()})


def digest_file(path: Path, *, sha256: bool = True, md5: bool = False) -> Digests:
    """Hash a file.

    Raises:
        OSError: the file cannot be read.
    """
    return digest_chunks(file_chunks(path), sha256=sha256, md5=md5)


def file_chunks(path: Path) -> Iterator[bytes]:
    """Read a file in pieces of a megabyte."""
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            yield chunk
