"""Writing a blob to a registry: at once when small, in chunks that a later run can continue when large.

The bytes are read from the start every time and hashed whole; those the registry has already are not sent
again. Where an upload stands is the registry's to say; what is noted here, in `state_dir`, is only where to
ask. A session that is gone, or that the registry cannot make sense of, is given up and the upload starts
again: docker-registry 2, for one, has no more use for a session whose last chunk broke off in the middle,
because the address it gave out names the offset. Memory: one chunk.
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

_FAILURES = 4
"""How often in a row an upload may fail without getting further than before."""
_SLOWEST_HASH = 20e6  # bytes per second a registry is trusted to check at the end, when it reads everything again


class _SessionLost(Exception):
    """The registry does not go on with this session; a new one may do."""


@dataclass(frozen=True)
class _Session:
    """An upload session: the address the registry gave last, and how large chunks have to be."""

    location: str
    chunk_size: int


class Upload:
    """The upload of one blob into one repository."""

    def __init__(self, repository: Repository, blob: Descriptor, state_dir: Path | None) -> None:
        self._repo, self._http, self._blob = repository, repository.session, blob
        self._what = f"uploading blob {blob.digest} to {repository.path}"
        self._scope = repository.scope("pull,push")
        self._note = _Note(state_dir, f"{self._http.host}/{repository.path}@{blob.digest}")

    def run(self, read: Reader, progress: Callable[[int], None]) -> None:
        """Bring the blob there.

        Raises:
            IntegrityError: `read` gives other bytes than the blob's, or the registry received others.
            Unavailable: the registry went away; what it has is kept for the next run.
        """
        settled = _Settled(progress)
        patience = Patience(_FAILURES, BACKOFF, self._http.clock)
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

    def _send_chunks(self, read: Reader, settled: _Settled) -> None:
        resumed = self._resume()
        session, at = resumed or (self._start(), 0)
        self._note.write(session)
        passed = 0
        with self._source(read) as chunks:
            for buffer in _blocks(chunks, session.chunk_size):
                # What of this block the registry lacks: all of it, or what is behind the offset it reported.
                while at < passed + len(buffer):
                    session, at = self._patch(session, at, buffer[at - passed :])
                    self._note.write(session)
                    settled.up_to(at)
                passed += len(buffer)
                settled.up_to(passed)
        try:
            self._finish(session.location, b"")
        except IntegrityError as error:
            # Our bytes hashed to the digest on their way out, so the session holds others. One that somebody
            # else may have written to is worth a second try with a new one.
            self._note.remove()
            if resumed:
                raise _SessionLost from error
            raise

    @contextmanager
    def _source(self, read: Reader) -> Iterator[Iterator[bytes]]:
        """Open the blob's bytes; if they turn out wrong, the session that holds some of them goes too."""
        raw = read(0)
        try:
            yield verified(raw, self._blob, self._what)
        except IntegrityError:
            self._abandon()
            raise
        finally:
            if close := getattr(raw, "close", None):
                close()

    def _start(self) -> _Session:
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
                f"{self._what} at {self._http.host}: it wants chunks of {chunk_size} bytes; the limit is {CHUNK_LIMIT}",
                hint="Have the registry accept smaller chunks.",
                hub=self._http.host,
            )
        return _Session(self._location(reply), min(chunk_size, CHUNK_LIMIT))

    def _resume(self) -> tuple[_Session, int] | None:
        """Return the noted session and the offset the registry is at, or None: nothing to continue."""
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
        # One byte and none look the same ("0-0"); a session that holds so little is not worth asking about.
        if reply.status not in (200, 204) or at is None or not 1 < at <= self._blob.size:
            return None
        return replace(noted, location=self._location(reply, noted.location)), at

    def _patch(self, session: _Session, at: int, data: memoryview) -> tuple[_Session, int]:
        """Send a chunk and return the session after it and the offset the registry is at."""
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
                repeat=False,  # the registry may have taken it, or half of it
            )
        except Unavailable as error:
            return self._ask_again(session, at, at + len(data), error)
        if reply.status == 416:  # noqa: PLR2004 - the registry is somewhere else than we think
            return self._ask_again(session, at, at + len(data), None)
        now = _offset(reply)
        if reply.status not in (202, 204) or now is None or not at < now <= at + len(data):
            raise _SessionLost
        return replace(session, location=self._location(reply, session.location)), now

    def _ask_again(self, session: _Session, low: int, high: int, cause: CloudEdgeError | None) -> tuple[_Session, int]:
        """Ask where the registry is after a chunk that went wrong: inside that chunk, if all is well.

        Raises:
            Unavailable: it took nothing, and `cause` says why.
            _SessionLost: it is somewhere else, or does not say.
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
            repeat=False,  # if it was done after all, `run` finds the blob there
            extra_wait_s=self._blob.size / _SLOWEST_HASH,
        )
        if reply.status not in (201, 204):
            raise _SessionLost

    def _given_up(self, error: Unavailable | _SessionLost) -> Unavailable:
        if isinstance(error, Unavailable):
            return error
        return Unavailable(
            f"{self._what} at {self._http.host}: the registry lost the upload again and again",
            hint="If several servers share the load, give them one http.secret; then run the command again.",
            hub=self._http.host,
        )

    def _location(self, reply: Reply, fallback: str = "") -> str:
        location = reply.headers.get("Location") or fallback
        if not location:
            raise Unavailable(f"{self._what} at {self._http.host}: it opened a session and did not say where")
        return urljoin(reply.url, location)

    def _abandon(self) -> None:
        """Tell the registry to drop the noted session; one that stays behind expires by itself."""
        noted = self._note.read()
        self._note.remove()
        if noted is None:
            return
        with suppress(CloudEdgeError):  # a courtesy; the error on its way matters more
            self._http.call(
                "DELETE",
                noted.location,
                what=self._what,
                scope=self._scope,
                accept=range(100, 600),
                repeat=False,
            )


class _Note:
    """Remembers an upload session: here and, if there is a directory, a small file for the next process."""

    def __init__(self, state_dir: Path | None, key: str) -> None:
        self._key = key
        self._session: _Session | None = None
        self._path = state_dir and state_dir / f"upload-{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"

    def read(self) -> _Session | None:
        if self._session or not self._path:
            return self._session
        try:
            value = json.loads(self._path.read_bytes())
            session = _Session(str(value["location"]), int(value["chunk_size"]))
            ours = value["upload"] == self._key and CHUNK_SIZE <= session.chunk_size <= CHUNK_LIMIT
        except (OSError, ValueError, KeyError, TypeError):
            return None  # no note, or not one of ours: the upload starts again, which is always right
        return session if ours else None

    def write(self, session: _Session) -> None:
        self._session = session
        if not self._path:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            note = json.dumps({"upload": self._key, **asdict(session)})
            # Only its owner may read it: on some registries the address alone gives the right to write.
            write_atomically(self._path, note, mode=0o600, durable=False)
        except OSError as error:
            where = self._path.parent
            raise StorageError(f"cannot note an upload in {where}: {error.strerror}", path=where) from error

    def remove(self) -> None:
        self._session = None
        if self._path:
            self._path.unlink(missing_ok=True)


class _Settled:
    """Reports progress so that a byte sent twice counts once."""

    def __init__(self, progress: Callable[[int], None]) -> None:
        self._progress, self.at = progress, 0

    def up_to(self, at: int) -> None:
        if at > self.at:
            self._progress(at - self.at)
            self.at = at


def _blocks(chunks: Iterator[bytes], size: int) -> Iterator[memoryview]:
    """Regroup chunks into blocks of one size, the last one shorter; each is valid until the next one."""
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
    """Return how many bytes a registry says it has (``Range: 0-<last>``)."""
    found = re.fullmatch(r"(?:bytes=)?0-(\d+)", reply.headers.get("Range", ""))
    return int(found[1]) + 1 if found else None
