"""An object store over HTTP: the code that S3 and BOS share.

It resumes broken downloads and interrupted uploads, lists any number of objects, and locks with objects. `_store_calls`
makes single calls, `_multipart` uploads in parts, `_lease` implements the locks; a backend supplies its wire protocol.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import IO, TYPE_CHECKING

from cloudedge.errors import Conflict, NotFound, Unavailable
from cloudedge.hub.core import ANY, CHUNK, AnyVersion, verified
from cloudedge.hub.objects._lease import TTL_S, lease
from cloudedge.hub.objects._multipart import PART, opened, upload_parts
from cloudedge.hub.objects._store_calls import Caller, md5_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from cloudedge.clock import Clock
    from cloudedge.hub.core import Descriptor, ObjectInfo, Reader
    from cloudedge.hub.objects._lease import Lease
    from cloudedge.hub.objects._multipart import Part
    from cloudedge.hub.objects._store_calls import Calls

__all__ = ["RemoteStore", "newest_upload"]


class RemoteStore:
    """An `ObjectStore` on top of a backend's calls."""

    def __init__(self, url: str, prefix: str, calls: Calls, *, clock: Clock, lock_ttl_s: float = TTL_S) -> None:
        self.url = url
        self._prefix = prefix and f"{prefix}/"
        self._calls = calls
        self._caller = Caller(calls, url, clock)
        self._clock = clock
        self._lock_ttl_s = lock_ttl_s

    @property
    def compare_and_set(self) -> bool:
        """True if the server itself compares the version that `put` expects."""
        return False

    def head(self, key: str) -> ObjectInfo | None:
        """Describe an object, or return None."""
        try:
            info = self._caller.attempt(f"looking at {key}", partial(self._calls.head, self._object_name(key)))
        except NotFound:
            return None
        return self._relative(info)

    def get(self, key: str, start: int = 0) -> Iterator[bytes]:
        """Stream an object from a byte offset, resuming after a broken connection.

        Raises:
            NotFound: the object does not exist.
            Conflict: it was replaced during the download.
        """
        what, name = f"reading {key}", self._object_name(key)
        body = self._caller.attempt(what, partial(self._calls.open, name, start))
        if body is None:
            return
        version, at, end = body.version, start, start + body.size
        failures, failed_at = 0, start
        try:
            while at < end:
                try:
                    chunk = body.stream.read(min(CHUNK, end - at))
                    if not chunk:
                        raise _truncated(self.url, key, at, end)
                except self._caller.errors as error:
                    body.stream.close()
                    failures = failures + 1 if at - failed_at < CHUNK else 1
                    failed_at = at
                    self._caller.pause_or_raise(error, what, failures)
                    again = self._caller.attempt(what, partial(self._calls.open, name, at))
                    if again is None or again.version != version:
                        raise Conflict(f"{self.url}: {key} was replaced while it was read", key=key) from error
                    body = again
                else:
                    at += len(chunk)
                    yield chunk
        finally:
            body.stream.close()

    def put(self, key: str, data: bytes, *, expected: str | AnyVersion | None = ANY) -> None:
        """Write a small object at once.

        `expected` is compared with a look first, which is exact while a lock keeps other writers away.

        Raises:
            Conflict: its version is not `expected`.
        """
        if not isinstance(expected, AnyVersion):
            there = self.head(key)
            if (there.version if there else None) != expected:
                raise Conflict(
                    f"{self.url}: {key} is not at version {expected or 'nothing'}: another process wrote it",
                    hint="Run the command again.",
                    key=key,
                )
        self._caller.attempt(f"writing {key}", partial(self._calls.put, self._object_name(key), data, md5_of(data)))

    def upload(self, key: str, blob: Descriptor, read: Reader, progress: Callable[[int], None]) -> None:
        """Write a large object, continuing an earlier attempt; visible only when it hashes to `blob.digest`.

        Raises:
            IntegrityError: the source does not match `blob`; nothing of it is kept.
        """
        if self._is_whole(key, blob):
            progress(blob.size)
        elif blob.size <= PART:
            with opened(read) as chunks:
                data = b"".join(verified(chunks, blob, f"source of {key}"))
            self.put(key, data)
            progress(blob.size)
        else:
            self._upload_parts(key, blob, read, progress)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """List the objects under a prefix."""
        token: str | None = None
        while True:
            call = partial(self._calls.page, self._object_name(prefix), token)
            page, token = self._caller.attempt(f"listing {prefix or 'everything'}", call)
            yield from map(self._relative, page)
            if token is None:
                return

    def delete(self, key: str) -> None:
        """Delete an object; a missing one is no error."""
        try:
            self._caller.attempt(f"deleting {key}", partial(self._calls.delete, self._object_name(key)))
        except NotFound:
            return

    def settle(self, keys: Sequence[str]) -> None:
        """Do nothing: a store that answered has the object on disk."""

    def sweep(self, older_than_s: float) -> int:
        """Drop unfinished uploads that are older."""
        uploads = self._caller.attempt("listing uploads", partial(self._calls.list_uploads, self._object_name("")))
        old = [found for found in uploads if found.age_s > older_than_s]
        for found in old:
            call = partial(self._calls.abort_upload, found.name, found.upload)
            with suppress(NotFound):  # another process did it
                self._caller.attempt(f"aborting the upload of {found.name}", call)
        return len(old)

    def lock(self, name: str, *, shared: bool = False, wait_s: float = 60) -> AbstractContextManager[Lease]:
        """Hold a named lock, exclusive or shared; a killed holder loses it.

        Raises:
            Conflict: others still hold it after `wait_s`; names them.
            Unavailable: on leaving, if the lock was lost while the block ran.
        """
        return lease(self, name, shared=shared, wait_s=wait_s, clock=self._clock, ttl_s=self._lock_ttl_s)

    def _object_name(self, key: str) -> str:
        return self._prefix + key

    def _relative(self, info: ObjectInfo) -> ObjectInfo:
        return replace(info, key=info.key.removeprefix(self._prefix))

    def _is_whole(self, key: str, blob: Descriptor) -> bool:
        there = self.head(key)
        return there is not None and there.size == blob.size

    def _upload_parts(self, key: str, blob: Descriptor, read: Reader, progress: Callable[[int], None]) -> None:
        settled = 0

        def settle(size: int) -> None:
            nonlocal settled
            settled += size
            progress(size)

        try:
            upload = _Upload(self._calls, self._caller, self._object_name(key))
            upload_parts(upload, blob, read, settle, f"source of {key}")
        except _UploadGone:
            if not self._is_whole(key, blob):
                raise
            progress(blob.size - settled)  # another process finished uploading the same blob


class _UploadGone(Unavailable):
    """Another process completed or aborted the upload that this one continued."""


class _Upload:
    """A multipart upload: the existing unfinished one, else a new one."""

    def __init__(self, calls: Calls, caller: Caller, name: str) -> None:
        self._calls = calls
        self._caller = caller
        self._object_name = name
        # One step, so that a repeat finds the upload of an earlier try whose answer was lost.
        self._id = caller.attempt(
            f"beginning to upload {name}", lambda: newest_upload(calls, name) or calls.begin_upload(name)
        )

    def found(self) -> dict[int, tuple[int, str]]:
        """Return size and ETag of the uploaded parts, by number."""
        call = partial(self._calls.list_parts, self._object_name, self._id)
        try:
            return self._caller.attempt(f"listing parts of {self._object_name}", call)
        except NotFound as error:
            raise self._upload_gone() from error

    def send(self, part: Part, body: IO[bytes]) -> str:
        """Send a part and return its ETag."""

        def call() -> str:
            body.seek(0)
            return self._calls.send_part(self._object_name, self._id, part, body)

        try:
            return self._caller.attempt(f"sending part {part.number} of {self._object_name}", call)
        except NotFound as error:
            raise self._upload_gone() from error

    def complete(self, etags: dict[int, str]) -> None:
        """Complete the object from these parts."""
        call = partial(self._calls.complete_upload, self._object_name, self._id, dict(sorted(etags.items())))
        try:
            self._caller.attempt(f"completing {self._object_name}", call)
        except NotFound as error:  # also if an earlier try completed it and its answer was lost
            raise self._upload_gone() from error

    def abandon(self) -> None:
        """Drop the parts."""
        try:
            call = partial(self._calls.abort_upload, self._object_name, self._id)
            self._caller.attempt(f"aborting the upload of {self._object_name}", call)
        except NotFound:
            return

    def _upload_gone(self) -> _UploadGone:
        return _UploadGone(
            f"the unfinished upload of {self._object_name} was completed or aborted by another process",
            hint="Run the same command again.",
        )


def newest_upload(calls: Calls, name: str) -> str | None:
    """Return the newest unfinished upload of an object."""
    own = [found for found in calls.list_uploads(name) if found.name == name]
    return max(own, key=lambda found: found.begun).upload if own else None


def _truncated(url: str, key: str, at: int, end: int) -> Unavailable:
    return Unavailable(
        f"{url}: {key} ended after {at} of {end} bytes",
        hint="Try again later, or from another network; the connection keeps breaking.",
        key=key,
    )
