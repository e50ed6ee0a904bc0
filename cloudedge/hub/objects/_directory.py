"""Objects in a directory: files written under a temporary name and renamed.

Locks are flock(2) on files under ``.locks/``, so that the kernel releases a killed process's lock. Unfinished uploads
stay under ``uploads/`` and are continued. No file is ever changed in place.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cloudedge.clock import Clock, SystemClock
from cloudedge.errors import Conflict, IntegrityError, NotFound
from cloudedge.hub.core import ANY, CHUNK, AnyVersion, Hashed, Lock, ObjectInfo, Progress, SureLock, verified
from cloudedge.io import FileLock, Holder, storage_errors, sync_directory, sync_file, write_atomically

if TYPE_CHECKING:
    from cloudedge.hub.core import Descriptor, Reader

Adoption = Literal["copy", "link", "move"]

__all__ = ["Adoption", "DirectoryStore"]

_LIBC = ctypes.CDLL(None, use_errno=True)  # for syncfs(2), which the standard library does not offer
_SYNC_ALL_FROM = 64
"""From this many objects on, one sync of the file system is cheaper than one each; it waits for others' writes, too."""


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


class DirectoryStore:
    """An `ObjectStore` in a directory, which the first write creates."""

    compare_and_set = False  # the lock protects writes instead; flock is cheap

    def __init__(self, root: str | os.PathLike[str], clock: Clock | None = None) -> None:
        self.root = Path(root).expanduser().absolute()
        self.url = str(self.root)
        self._clock = clock or SystemClock()

    def path(self, key: str) -> Path:
        """Return the path of an object's file, existing or not."""
        return self.root / key

    def head(self, key: str) -> ObjectInfo | None:
        """Describe an object, or return None. A linked file that was changed since is no longer that object."""
        path = self.path(key)
        try:
            with storage_errors("looking into the hub", path):
                stat = path.stat()
        except NotFound:
            return None
        try:
            is_as_linked = self._link_record(key).read_text() == _file_stamp(stat)
        except FileNotFoundError:
            is_as_linked = True  # a file of the hub's own, which no one else writes to
        return _info(key, stat) if is_as_linked else None

    def get(self, key: str, start: int = 0) -> Iterator[bytes]:
        """Stream an object from a byte offset."""
        path = self.path(key)
        with storage_errors("reading from the hub", path), path.open("rb", buffering=0) as file:
            file.seek(start)
            while chunk := file.read(CHUNK):
                yield chunk

    def put(self, key: str, data: bytes, *, expected: str | AnyVersion | None = ANY) -> None:
        """Write a small object by rename.

        `expected` is compared with a look first, which is exact while a lock keeps other writers away.

        Raises:
            Conflict: its version is not `expected`.
        """
        path = self.path(key)
        if not isinstance(expected, AnyVersion):
            there = self.head(key)
            if (there.version if there else None) != expected:
                raise Conflict(f"{self.url}: another process changed {key}", hint="Run the command again.", key=key)
        temporary = self._scratch(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        with storage_errors("writing to the hub", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, data, scratch=temporary)

    def upload(self, key: str, blob: Descriptor, read: Reader, progress: Progress) -> None:
        """Write a large object, continuing an earlier attempt."""
        path = self.path(key)
        part = self._scratch(f"{path.name}.part")
        # Of two writers of one blob, the second waits and then finds it there.
        with storage_errors("writing to the hub", path), FileLock.take(part, wait_s=None, mode=0o666) as held:
            if (info := self.head(key)) is not None and info.size == blob.size:
                part.unlink(missing_ok=True)
                progress(blob.size)
                return
            if not part.exists() or part.stat().st_ino != os.fstat(held.descriptor).st_ino:
                # The writer before us failed and deleted its part, so our file has no name left. Start over.
                self.upload(key, blob, read, progress)
                return
            try:
                self._append(held.descriptor, blob, read, progress)
            except IntegrityError:
                part.unlink()  # continuing would repeat the damage
                raise
            path.parent.mkdir(parents=True, exist_ok=True)
            part.rename(path)
            self._link_record(key).unlink(missing_ok=True)

    def _append(self, fd: int, blob: Descriptor, read: Reader, progress: Progress) -> None:
        done = os.fstat(fd).st_size
        if done > blob.size:
            os.ftruncate(fd, 0)
            done = 0
        os.lseek(fd, done, os.SEEK_SET)
        readable = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)

        def whole() -> Iterator[bytes]:
            left = done
            while left:
                chunk = os.read(readable, min(CHUNK, left))
                left -= len(chunk)
                yield chunk
            yield from read(done)

        try:
            passed = 0
            for chunk in verified(whole(), blob, self.url):
                passed += len(chunk)
                if passed > done:
                    view = memoryview(chunk)
                    while view:
                        view = view[os.write(fd, view) :]
                progress(len(chunk))
        finally:
            os.close(readable)

    def adopt(self, key: str, source: Path, hashed: Hashed, *, how: Adoption) -> bool:
        """Take in a local file that was just hashed.

        A copy shares its blocks with the source where the file system can do that, and then costs nothing.

        Args:
            key: The object's key.
            source: The file.
            hashed: The result of hashing it.
            how: "copy" it; "move" it here; or "link" it without a copy: a later write to the source then damages the
                object, and `head` reports it as missing.

        Returns:
            True if the object is linked.

        Raises:
            IntegrityError: the file changed after it was hashed.
        """
        path, record = self.path(key), self._link_record(key)
        if (info := self.head(key)) is not None and info.size == hashed.size:
            return False
        temporary = self._scratch(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        with storage_errors("writing to the hub", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                is_linked = _copy_move_or_link(source, temporary, how)
                stat = (temporary if how == "move" else source).stat()
                if (stat.st_size, stat.st_mtime_ns) != (hashed.size, hashed.mtime_ns):
                    raise IntegrityError(f"{source} changed while it was packed", hint="Pack the bundle again.")
                if is_linked:
                    self.put(record.relative_to(self.root).as_posix(), _file_stamp(stat).encode())
                temporary.rename(path)
                if not is_linked:
                    record.unlink(missing_ok=True)
            finally:
                # Also after success: rename() does nothing for two names of one file and leaves both.
                temporary.unlink(missing_ok=True)
        return is_linked

    def settle(self, keys: Sequence[str]) -> None:
        """Make objects survive a power cut: a few one by one, many by a sync of their whole file system.

        Missing objects are skipped: a replica has no tables where shards have them.
        """
        with storage_errors("writing to the hub", self.root):
            if len(keys) > _SYNC_ALL_FROM:
                with _opened(self.root) as fd:
                    if _LIBC.syncfs(fd) != 0:
                        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
                return
            paths = [path for path in map(self.path, keys) if path.exists()]
            for path in paths:
                sync_file(path)
            for folder in sorted({path.parent for path in paths}):
                sync_directory(folder)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """List the objects in a folder and below; `prefix` is empty or ends with a slash."""
        folder = self.path(prefix)
        with storage_errors("listing the hub", folder):
            try:
                entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
            except FileNotFoundError:
                return
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from self.list(f"{prefix}{entry.name}/")
            else:
                with suppress(FileNotFoundError):  # deleted meanwhile
                    yield _info(f"{prefix}{entry.name}", entry.stat())

    def delete(self, key: str) -> None:
        """Delete an object; a missing one is no error."""
        path = self.path(key)
        with storage_errors("deleting from the hub", path):
            path.unlink(missing_ok=True)
            self._link_record(key).unlink(missing_ok=True)

    def sweep(self, older_than_s: float) -> int:
        """Drop unfinished uploads and scratch folders that were not continued for this long."""
        folder, gone = self.path("uploads"), 0
        with storage_errors("deleting from the hub", folder):
            for path in folder.iterdir() if folder.is_dir() else ():
                if time.time() - path.stat().st_mtime > older_than_s:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
                    gone += 1
        return gone

    @contextmanager
    def lock(self, name: str, *, shared: bool = False, wait_s: float = 60) -> Iterator[Lock]:
        """Hold a named lock, exclusive or shared."""

        def refusal(holder: Holder) -> Conflict:
            hint = "Run the command again when that process is done."
            return Conflict(f"{self.url}: the lock {name} is held by {holder}", hint=hint, lock=name)

        path = self.path(f".locks/{name}")
        with storage_errors("locking the hub", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            held = FileLock.take(path, shared=shared, wait_s=wait_s, clock=self._clock, mode=0o666, refusal=refusal)
        with held:
            yield SureLock()

    def _link_record(self, key: str) -> Path:
        """Return the file that records the state of an object when it was linked."""
        return self.path("links") / key.rpartition("/")[2]

    def _scratch(self, name: str) -> Path:
        folder = self.path("uploads")
        with storage_errors("writing to the hub", folder):
            folder.mkdir(parents=True, exist_ok=True)
        return folder / name


def _info(key: str, stat: os.stat_result) -> ObjectInfo:
    version = f"{stat.st_ino:x}-{stat.st_mtime_ns:x}-{stat.st_size:x}"
    return ObjectInfo(key, stat.st_size, version, age_s=time.time() - stat.st_mtime)


def _file_stamp(stat: os.stat_result) -> str:
    return f"{stat.st_size} {stat.st_mtime_ns}"


_FICLONE = 0x40049409  # linux/fs.h: share another file's blocks until either is written


def _copy_move_or_link(source: Path, target: Path, how: Adoption) -> bool:
    """Give `target` the contents of `source`; returns True if the two are now one file."""
    if how == "move":
        source.rename(target)
        return False
    with source.open("rb") as src, target.open("xb") as dst:
        try:
            fcntl.ioctl(dst, _FICLONE, src.fileno())
        except OSError:
            pass
        else:
            return False
    if how == "link":
        target.unlink()
        with suppress(OSError):  # another file system, or one without links
            os.link(source, target, follow_symlinks=True)
            return True
    shutil.copyfile(source, target)
    return False
