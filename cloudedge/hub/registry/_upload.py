"""Blob uploads to a registry: small blobs in one request, large ones in chunks that a later run can continue.

The bytes are read from the start each time and hashed whole; those that the registry has are not sent again. The
registry knows an upload's offset; `state_dir` records only the session's address. A session that is gone, or that the
registry cannot continue, is given up and the upload starts again: docker-registry 2, for one, cannot use a session
whose last chunk broke off in the middle, because its address names the offset. Memory: one chunk.
"""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

from cloudedge.errors import CloudEdgeError, IntegrityError, Rejected, StorageError, Unavailable
from cloudedge.hub.core import Descriptor, Reader, verified
from cloudedge.hub.registry._session import BACKOFF
from cloudedge.io import Patience, write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cloudedge.hub.registry._repository import Repository
    from cloudedge.hub.registry._session import Reply

__all__ = ["CHUNK_SIZE", "SMALL", "Upload"]

SMALL = 4 * 1024 * 1024
"""Blobs up to this size are sent in one request."""
CHUNK_SIZE = 8 * 1024 * 1024
"""Bytes per chunk: few requests per gigabyte, little memory."""
CHUNK_LIMIT = 64 * 1024 * 1024
"""The largest chunk a registry may insist on (``OCI-Chunk-Min-Length``)."""

_MOST_FAILURES = 4
"""Consecutive failures of an upload without progress before giving up."""
_HASH_BYTES_PER_S = 20e6  # the slowest rate at which a registry reads and hashes the blob again at the end


class _SessionLost(Exception):
    """The registry cannot continue this session; a new one may work."""


@dataclass(frozen=True)
class _UploadSession:
    """An upload session: its latest address and its chunk size."""

    location: str
    chunk_size: int


class Upload:
    """The upload of one blob into one repository."""

    def __init__(self, repository: Repository, blob: Descriptor, state_dir: Path | None) -> None:
        self._repo, self._http, self._blob = repository, repository.session, blob
        self._what = f"uploading blob {blob.digest} to {repository.path}"
        self._scope = repository.scope("pull,push")
        self._note = _SessionFile(state_dir, f"{self._http.host}/{repository.path}@{blob.digest}")

    def run(self, read: Reader, progress: Callable[[int], None]) -> None:
        """Upload the blob.

        Raises:
            IntegrityError: `read` yields bytes that do not match the blob, or the registry received others.
            Unavailable: the registry went away; what it has is kept for the next run.
        """
        settled = _UploadProgress(progress)
        patience = Patience(_MOST_FAILURES, BACKOFF, self._http.clock)
        while not self._repo.has_blob(self._blob):
            before = settled.at
            try:
                if self._blob.size <= SMALL:
                    self._send_whole(read)
                else:
                    self._send_chunks(read, settled)
                break
            except (_SessionLost, Unavailable) as error:
                if isinstance(error, _SessionLost):
                    self._note.remove()
                if not patience.wait(progressed=settled.at > before):
                    raise self._given_up(error) from error.__cause__
        settled.up_to(self._blob.size)
        self._note.remove()

    def _send_whole(self, read: Reader) -> None:
        with self._source(read) as chunks:
            data = b"".join(chunks)
        self._finish(self._start().location, data)

    def _send_chunks(self, read: Reader, settled: _UploadProgress) -> None:
        resumed = self._resume()
        session, at = resumed or (self._start(), 0)
        self._note.write(session)
        passed = 0
        with self._source(read) as chunks:
            for buffer in _blocks(chunks, session.chunk_size):
                # The part of this block that the registry lacks: all of it, or the bytes behind the reported offset.
                while at < passed + len(buffer):
                    session, at = self._patch(session, at, buffer[at - passed :])
                    self._note.write(session)
                    settled.up_to(at)
                passed += len(buffer)
                settled.up_to(passed)
        try:
            self._finish(session.location, b"")
        except IntegrityError as error:
            # Our bytes matched the digest on their way out, so the session holds others. Another process may have
            # written to it; try once more with a new session.
            self._note.remove()
            if resumed:
                raise _SessionLost from error
            raise

    @contextmanager
    def _source(self, read: Reader) -> Iterator[Iterator[bytes]]:
        """Open the blob's bytes; if they do not match, drop the session that holds some of them."""
        raw = read(0)
        try:
            yield verified(raw, self._blob, self._what)
        except IntegrityError:
            self._abandon()
            raise
        finally:
            if close := getattr(raw, "close", None):
                close()

    def _start(self) -> _UploadSession:
        reply = self._http.call(
            "POST",
            self._http.url(f"{self._repo.path}/blobs/uploads/"),
            what=self._what,
            scope=self._scope,
            accept=(202,),
        )
        at_least = reply.headers.get("OCI-Chunk-Min-Length", "")
        chunk_size = max(CHUNK_SIZE, int(at_least) if at_least.isdecimal() else 0)
        if chunk_size > CHUNK_LIMIT and self._blob.size > CHUNK_LIMIT:
            raise Rejected(
                f"{self._what} at {self._http.host}: it needs chunks of {chunk_size} bytes; the limit is {CHUNK_LIMIT}",
                hint="Have the registry accept smaller chunks.",
                hub=self._http.host,
            )
        return _UploadSession(self._location(reply), min(chunk_size, CHUNK_LIMIT))

    def _resume(self) -> tuple[_UploadSession, int] | None:
        """Return the recorded session and the registry's offset, or None if there is nothing to continue."""
        noted = self._note.read()
        if noted is None:
            return None
        reply = self._http.call(
            "GET",
            noted.location,
            what=self._what,
            scope=self._scope,
            accept=(200, 204, 400, 401, 403, 404, 410),
        )
        at = _offset(reply)
        # One byte and none look the same ("0-0"); a session with so little is not worth continuing.
        if reply.status not in (200, 204) or at is None or not 1 < at <= self._blob.size:
            return None
        return replace(noted, location=self._location(reply, noted.location)), at

    def _patch(self, session: _UploadSession, at: int, data: memoryview) -> tuple[_UploadSession, int]:
        """Send a chunk; returns the session after it and the registry's offset."""
        try:
            reply = self._http.call(
                "PATCH",
                session.location,
                what=self._what,
                scope=self._scope,
                accept=(202, 204, 400, 404, 410, 416),
                headers={
                    "Content-Type": "application/octet-stream",
                    "Content-Range": f"{at}-{at + len(data) - 1}",
                },
                data=data,
                repeat=False,  # the registry may have received all or half of it
            )
        except Unavailable as error:
            return self._ask_again(session, at, at + len(data), error)
        if reply.status == 416:  # noqa: PLR2004 - the registry's offset is another
            return self._ask_again(session, at, at + len(data), None)
        now = _offset(reply)
        if reply.status not in (202, 204) or now is None or not at < now <= at + len(data):
            raise _SessionLost
        return replace(session, location=self._location(reply, session.location)), now

    def _ask_again(
        self, session: _UploadSession, low: int, high: int, cause: CloudEdgeError | None
    ) -> tuple[_UploadSession, int]:
        """Ask for the registry's offset after a failed chunk; it should be inside that chunk.

        Raises:
            Unavailable: the registry took nothing; `cause` has the reason.
            _SessionLost: the offset is elsewhere, or unknown.
        """
        reply = self._http.call(
            "GET", session.location, what=self._what, scope=self._scope, accept=(200, 204, 400, 404, 410)
        )
        at = _offset(reply)
        if reply.status not in (200, 204) or at is None or not max(low, 2) <= at <= high:
            raise _SessionLost from cause
        session = replace(session, location=self._location(reply, session.location))
        if at == low:
            self._note.write(session)
            raise cause or _SessionLost
        return session, at

    def _finish(self, location: str, data: bytes) -> None:
        parts = urlsplit(location)
        query = "&".join(filter(None, (parts.query, f"digest={self._blob.digest}")))
        reply = self._http.call(
            "PUT",
            parts._replace(query=query).geturl(),
            what=self._what,
            scope=self._scope,
            accept=(201, 204, 404, 410),
            headers={"Content-Type": "application/octet-stream"},
            data=data,
            repeat=False,  # if it was done after all, `run` finds the blob
            extra_wait_s=self._blob.size / _HASH_BYTES_PER_S,
        )
        if reply.status not in (201, 204):
            raise _SessionLost

    def _given_up(self, error: Unavailable | _SessionLost) -> Unavailable:
        if isinstance(error, Unavailable):
            return error
        return Unavailable(
            f"{self._what} at {self._http.host}: the registry repeatedly lost the upload",
            hint="If several servers share the load, give them one `http.secret`, then run the command again.",
            hub=self._http.host,
        )

    def _location(self, reply: Reply, fallback: str = "") -> str:
        location = reply.headers.get("Location") or fallback
        if not location:
            raise Unavailable(f"{self._what} at {self._http.host}: it opened a session without an address")
        return urljoin(reply.url, location)

    def _abandon(self) -> None:
        """Drop the recorded session at the registry; a remaining one expires by itself."""
        noted = self._note.read()
        self._note.remove()
        if noted is None:
            return
        with suppress(CloudEdgeError):  # best effort; the pending error matters more
            self._http.call(
                "DELETE",
                noted.location,
                what=self._what,
                scope=self._scope,
                accept=range(100, 600),
                repeat=False,
            )


class _SessionFile:
    """Remembers an upload session in memory and, if there is a directory, in a small file for the next process."""

    def __init__(self, state_dir: Path | None, key: str) -> None:
        self._key = key
        self._session: _UploadSession | None = None
        self._path = state_dir and state_dir / f"upload-{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"

    def read(self) -> _UploadSession | None:
        if self._session or not self._path:
            return self._session
        try:
            value = json.loads(self._path.read_bytes())
            session = _UploadSession(str(value["location"]), int(value["chunk_size"]))
            ours = value["upload"] == self._key and CHUNK_SIZE <= session.chunk_size <= CHUNK_LIMIT
        except (OSError, ValueError, KeyError, TypeError):
            return None  # no file, or a foreign one: starting again is always right
        return session if ours else None

    def write(self, session: _UploadSession) -> None:
        self._session = session
        if not self._path:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            note = json.dumps({"upload": self._key, **asdict(session)})
            # Mode 0600: on some registries the address alone permits writing.
            write_atomically(self._path, note, mode=0o600, durable=False)
        except OSError as error:
            where = self._path.parent
            raise StorageError(f"cannot record an upload in {where}: {error.strerror}", path=where) from error

    def remove(self) -> None:
        self._session = None
        if self._path:
            self._path.unlink(missing_ok=True)


class _UploadProgress:
    """Reports progress and counts a byte that was sent twice once."""

    def __init__(self, progress: Callable[[int], None]) -> None:
        self._progress, self.at = progress, 0

    def up_to(self, at: int) -> None:
        if at > self.at:
            self._progress(at - self.at)
            self.at = at


def _blocks(chunks: Iterator[bytes], size: int) -> Iterator[memoryview]:
    """Regroup chunks into blocks of one size, the last one shorter; each is valid until the next."""
    block, filled = bytearray(size), 0
    for chunk in chunks:
        rest = memoryview(chunk)
        while rest:
            taken = rest[: size - filled]
            block[filled : filled + len(taken)] = taken
            filled += len(taken)
            rest = rest[len(taken) :]
            if filled == size:
                yield memoryview(block)
                filled = 0
    if filled:
        yield memoryview(block)[:filled]


def _offset(reply: Reply) -> int | None:
    """Return the number of bytes that a registry reports (``Range: 0-<last>``)."""
    found = re.fullmatch(r"(?:bytes=)?0-(\d+)", reply.headers.get("Range", ""))
    return int(found[1]) + 1 if found else None
