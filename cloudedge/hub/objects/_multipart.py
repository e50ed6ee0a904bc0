"""Multipart uploads of large objects that continue after a crash.

The source is read from its first byte and hashed whole while it is cut into parts. A part that the store already has,
with the same size and MD5, is not sent again. The upload is completed only if the whole source matches its
descriptor, and abandoned otherwise. `PartUpload` is the only interface to the store.
"""

from __future__ import annotations

import hashlib
import io
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Final, Protocol

from cloudedge.errors import IntegrityError
from cloudedge.hub.core import CHUNK, verified

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cloudedge.hub.core import Descriptor, Reader

__all__ = ["PART", "Part", "PartUpload", "opened", "part_size", "upload_parts"]

PART: Final = 8 * 1024 * 1024
"""The smallest part, and the largest blob that is sent as one object."""

_MOST_PARTS: Final = 9000  # stores accept 10,000
_BUFFER: Final = 3 * PART
_IN_FLIGHT: Final = 2


@dataclass(frozen=True)
class Part:
    """One part of a blob: its offset and its hashes."""

    number: int
    offset: int
    size: int
    md5: bytes


class PartUpload(Protocol):
    """An upload that was begun and is not complete."""

    def found(self) -> dict[int, tuple[int, str]]:
        """Return size and ETag of the uploaded parts, by number."""
        ...

    def send(self, part: Part, body: IO[bytes]) -> str:
        """Send a part and return its ETag. May be called from several threads."""
        ...

    def complete(self, etags: dict[int, str]) -> None:
        """Complete the object from these parts, at once."""
        ...

    def abandon(self) -> None:
        """Drop the parts."""
        ...


def part_size(size: int) -> int:
    """Return the part size of a blob; it must be the same at every attempt, or no upload could be continued."""
    return max(PART, -(-size // _MOST_PARTS))


@contextmanager
def opened(read: Reader, start: int = 0) -> Iterator[Iterator[bytes]]:
    """Open a source and close it again."""
    chunks = read(start)
    try:
        yield chunks
    finally:
        close = getattr(chunks, "close", None)
        if close is not None:
            close()


def upload_parts(
    upload: PartUpload, blob: Descriptor, read: Reader, progress: Callable[[int], None], where: str
) -> None:
    """Send the missing parts of a blob and complete it.

    Raises:
        IntegrityError: the source does not match `blob`; the upload is abandoned.
    """
    size = part_size(blob.size)
    # A part is read once and kept until it is sent. Larger parts, of blobs over 100 GiB, are read a second time
    # instead; the store checks them against the first reading's MD5.
    keep = 2 * size <= _BUFFER
    most = min(_IN_FLIGHT, _BUFFER // size - 1) if keep else _IN_FLIGHT
    found = upload.found()
    etags: dict[int, str] = {}
    flying: dict[Future[str], Part] = {}

    def land(until: int) -> None:
        while len(flying) > until:
            for future in wait(flying, return_when=FIRST_COMPLETED).done:
                part = flying.pop(future)
                etags[part.number] = future.result()
                progress(part.size)

    with ThreadPoolExecutor(most, thread_name_prefix="part") as pool, opened(read) as chunks:
        try:
            for part, body in _cut_parts(verified(chunks, blob, where), size, keep=keep):
                if found.get(part.number) == (part.size, part.md5.hex()):
                    etags[part.number] = part.md5.hex()
                    progress(part.size)
                else:
                    land(most - 1)
                    send = pool.submit(upload.send, part, body) if body else pool.submit(_resend, upload, part, read)
                    flying[send] = part
                del body  # otherwise a part that was found stays in memory while the next one fills
            land(0)
        except IntegrityError:
            wait(flying)
            upload.abandon()
            raise
    upload.complete(etags)


def _cut_parts(chunks: Iterator[bytes], size: int, *, keep: bool) -> Iterator[tuple[Part, io.BytesIO | None]]:
    """Cut a stream into parts and hash each; with `keep`, pass its bytes on as well."""
    number, offset, length = 1, 0, 0
    md5, body = hashlib.md5(usedforsecurity=False), None
    for chunk in chunks:
        rest = memoryview(chunk)
        while rest:
            if not length:
                md5, body = hashlib.md5(usedforsecurity=False), _buffer(size) if keep else None
            piece, rest = rest[: size - length], rest[size - length :]
            md5.update(piece)
            if body is not None:
                body.write(piece)
            length += len(piece)
            if length == size:
                yield Part(number, offset, length, md5.digest()), body
                body = None  # the sender owns it now, so that it is freed once sent
                number, offset, length = number + 1, offset + length, 0
    if length:
        if body is not None:
            body.truncate()
        yield Part(number, offset, length, md5.digest()), body


def _buffer(size: int) -> io.BytesIO:
    """Allocate a buffer of exactly this size; one that grows takes an eighth more."""
    body = io.BytesIO()
    body.seek(size - 1)
    body.write(b"\0")
    body.seek(0)
    return body


def _resend(upload: PartUpload, part: Part, read: Reader) -> str:
    source = _RereadPart(read, part)
    with io.BufferedReader(source, CHUNK) as body:
        try:
            return upload.send(part, body)
        except Exception as error:
            if source.failure is not None:  # a store's client reports it as a broken connection
                raise source.failure from error
            raise


class _RereadPart(io.RawIOBase):
    """A part as a file that is read from the source again each time it is sent."""

    def __init__(self, read: Reader, part: Part) -> None:
        self._read = read
        self._part = part
        self._at = 0
        self._chunks: Iterator[bytes] | None = None
        self._rest = memoryview(b"")
        self.failure: Exception | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._part.size}[whence]
        if start + offset != self._at:
            self._drop()
            self._at = start + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        try:
            return self._fill(memoryview(buffer))
        except Exception as error:
            self.failure = error
            raise

    def close(self) -> None:
        self._drop()
        super().close()

    def _fill(self, buffer: memoryview) -> int:
        wanted = min(len(buffer), self._part.size - self._at)
        if wanted <= 0:
            return 0
        if self._chunks is None:
            self._chunks = self._read(self._part.offset + self._at)
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                raise IntegrityError("the source shrank while it was sent", offset=self._part.offset)
            self._rest = memoryview(chunk)
        taken, self._rest = self._rest[:wanted], self._rest[wanted:]
        buffer[: len(taken)] = taken
        self._at += len(taken)
        return len(taken)

    def _drop(self) -> None:
        close = getattr(self._chunks, "close", None)
        if close is not None:
            close()
        self._chunks, self._rest = None, memoryview(b"")
