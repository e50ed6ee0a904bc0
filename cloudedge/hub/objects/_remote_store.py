"""An object store over HTTP: what S3 and BOS have in common.

Downloads that go on where the connection broke, uploads that go on where the process died, listings of any
length, locks made of objects. How a call is made is in `_calls`, how parts are in `_multipart`, why the locks
hold is in `_lease`; which bytes go over the wire is the backends' business.
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
        """Whether the server itself compares what `put` expects."""
        return False

    def head(self, key: str) -> ObjectInfo | None:
        """Describe an object, or return None."""
        try:
            info = self._caller.attempt(f"looking at {key}", partial(self._calls.head, self._name(key)))
        except NotFound:
            return None
        return self._relative(info)

    def get(self, key: str, start: int = 0) -> Iterator[bytes]:
        """Stream an object from a byte offset, going on where a broken connection stopped.

        Raises:
            NotFound: it is not there.
            Conflict: it was replaced half-way.
        """
        what, name = f"reading {key}", self._name(key)
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
                        raise _short(self.url, key, at, end)
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

        `expected` is compared by looking first: exact as long as a lock keeps other writers away.

        Raises:
            Conflict: it has another version than `expected`.
        """
        if not isinstance(expected, AnyVersion):
            there = self.head(key)
            if (there.version if there else None) != expected:
                raise Conflict(
                    f"{self.url}: {key} is not at version {expected or 'nothing'}: someone else wrote it",
                    hint="Read it again and repeat the change.",
                    key=key,
                )
        self._caller.attempt(f"writing {key}", partial(self._calls.put, self._name(key), data, md5_of(data)))

    def upload(self, key: str, blob: Descriptor, read: Reader, progress: Callable[[int], None]) -> None:
        """Write a large object, continuing an earlier attempt; visible only once it hashes to `blob.digest`.

        Raises:
            IntegrityError: the source is not what `blob` says; nothing of it is kept.
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
            call = partial(self._calls.page, self._name(prefix), token)
            page, token = self._caller.attempt(f"listing {prefix or 'everything'}", call)
            yield from map(self._relative, page)
            if token is None:
                return

    def delete(self, key: str) -> None:
        """Delete an object; deleting nothing is fine."""
        try:
            self._caller.attempt(f"deleting {key}", partial(self._calls.delete, self._name(key)))
        except NotFound:
            return

    def settle(self, keys: Sequence[str]) -> None:
        """Do nothing: a store that answered has the object."""

    def sweep(self, older_than_s: float) -> int:
        """Drop unfinished uploads that are older."""
        uploads = self._caller.attempt("listing uploads", partial(self._calls.list_uploads, self._name("")))
        old = [found for found in uploads if found.age_s > older_than_s]
        for found in old:
            call = partial(self._calls.abort_upload, found.name, found.upload)
            with suppress(NotFound):  # somebody else did it
                self._caller.attempt(f"aborting the upload of {found.name}", call)
        return len(old)

    def lock(self, name: str, *, shared: bool = False, wait_s: float = 60) -> AbstractContextManager[Lease]:
        """Hold a named lock, alone or with other sharers; a killed holder loses it.

        Raises:
            Conflict: others hold it and did not let go within `wait_s`; says who.
            Unavailable: on leaving, that it was lost while the block ran.
        """
        return lease(self, name, shared=shared, wait_s=wait_s, clock=self._clock, ttl_s=self._lock_ttl_s)

    def _name(self, key: str) -> str:
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
            upload = _Upload(self._calls, self._caller, self._name(key))
            upload_parts(upload, blob, read, settle, f"source of {key}")
        except _UploadGone:
            if not self._is_whole(key, blob):
                raise
            progress(blob.size - settled)  # somebody else uploaded the same blob and was done first


class _UploadGone(Unavailable):
    """Somebody else completed or aborted the upload that we were continuing."""


class _Upload:
    """An upload in parts: the unfinished one that is there, else a new one."""

    def __init__(self, calls: Calls, caller: Caller, name: str) -> None:
        self._calls = calls
        self._caller = caller
        self._name = name
        # One step, so that a repeat finds what a try whose answer was lost has begun.
        self._id = caller.attempt(
            f"beginning to upload {name}", lambda: newest_upload(calls, name) or calls.begin_upload(name)
        )

    def found(self) -> dict[int, tuple[int, str]]:
        """Return size and ETag of the parts that are there, by number."""
        call = partial(self._calls.list_parts, self._name, self._id)
        try:
            return self._caller.attempt(f"listing parts of {self._name}", call)
        except NotFound as error:
            raise self._gone() from error

    def send(self, part: Part, body: IO[bytes]) -> str:
        """Send a part and return its ETag."""

        def call() -> str:
            body.seek(0)
            return self._calls.send_part(self._name, self._id, part, body)

        try:
            return self._caller.attempt(f"sending part {part.number} of {self._name}", call)
        except NotFound as error:
            raise self._gone() from error

    def complete(self, etags: dict[int, str]) -> None:
        """Make the object of these parts."""
        call = partial(self._calls.complete_upload, self._name, self._id, dict(sorted(etags.items())))
        try:
            self._caller.attempt(f"completing {self._name}", call)
        except NotFound as error:  # also when an earlier try did it and its answer was lost
            raise self._gone() from error

    def abandon(self) -> None:
        """Drop the parts."""
        try:
            call = partial(self._calls.abort_upload, self._name, self._id)
            self._caller.attempt(f"aborting the upload of {self._name}", call)
        except NotFound:
            return

    def _gone(self) -> _UploadGone:
        return _UploadGone(
            f"the unfinished upload of {self._name} was completed or aborted by someone else",
            hint="Run the same command again.",
        )


def newest_upload(calls: Calls, name: str) -> str | None:
    """Return the newest unfinished upload of an object."""
    own = [found for found in calls.list_uploads(name) if found.name == name]
    return max(own, key=lambda found: found.begun).upload if own else None


def _short(url: str, key: str, at: int, end: int) -> Unavailable:
    return Unavailable(
        f"{url}: {key} ended after {at} of {end} bytes",
        hint="The connection breaks again and again; try later, or from elsewhere.",
        key=key,
    )
