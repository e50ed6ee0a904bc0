"""A version's files on their way in: fetched from others, or sent here piece by piece, and checked either way.

    DIR/NAME/.artifact.json   what is to come; files that are not whole yet stand beside it under other names
    DIR/NAME/artifact.json    the same once all of them are there, checked

Whatever was interrupted goes on where it stopped.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from cloudedge.clock import Clock
from cloudedge.cube.formats import NOTE, Artifact, ArtifactFile, Source, is_version_name
from cloudedge.cube.server._download import fetch, part_of
from cloudedge.errors import (
    CloudEdgeError,
    Conflict,
    InputError,
    IntegrityError,
    Interrupted,
    NotFound,
    StorageError,
    Unavailable,
)
from cloudedge.io import Throttle, digest_file, publish, sync_directory, write_synced

__all__ = ["Staging"]

_UNFINISHED = f".{NOTE}"
_SPARE_DISK = 64 << 20
"""Left alone on the disk for the state file and everybody else."""


class _Gate(Throttle):
    """Lets bytes through until it is closed."""

    is_closed = False

    def take(self, count: int) -> None:
        if self.is_closed:
            raise Interrupted("the server is stopping", hint="What was fetched is kept for the next time.")
        super().take(count)


class Staging:
    """The folder of a server's versions.

    Args:
        versions: The folder; a version's files are in one of its name.
        is_held: Tells whether a version is in use, and so does not change under its name.
        limit_bytes_per_s: For everything that is fetched.
        clock: For deadlines.
    """

    def __init__(
        self, versions: Path, is_held: Callable[[str], bool], *, limit_bytes_per_s: float | None, clock: Clock
    ) -> None:
        self.versions = versions
        self._is_held = is_held
        self._clock = clock
        self._gate = _Gate(math.inf if limit_bytes_per_s is None else limit_bytes_per_s, clock)
        self._receiving = threading.Lock()

    def close(self) -> None:
        """Break off what is being fetched; it goes on after the next start."""
        self._gate.is_closed = True

    def stage(self, name: str, artifact: Artifact, sources: Sequence[Source], *, deadline_s: float) -> int:
        """Fetch a version's files, checked, continuing what an earlier call left.

        Returns:
            Bytes that travelled.

        Raises:
            Conflict: the name is taken by other content that is loaded.
            StorageError: there is not enough room.
            Unavailable: no source gave the files.
            IntegrityError: what a source gave is not what the artifact says.
        """
        with self._stored(name):
            folder = self._opened(name, artifact)
            if folder is None:
                return 0
            deadline = self._clock.monotonic() + deadline_s
            shipped = sum(self._fetch(folder, file, sources, deadline) for file in artifact.files)
            self._finish(folder)
        return shipped

    def expect(self, name: str, artifact: Artifact) -> dict[str, int] | None:
        """Make ready for a version's files, which will be sent here; or finish, once all of them are there.

        Returns:
            How many bytes of each file are there; None once it is staged.

        Raises:
            Conflict: the name is taken by other content that is loaded.
            StorageError: there is not enough room.
        """
        with self._receiving, self._stored(name):
            folder = self._opened(name, artifact)
            if folder is None:
                return None
            there = {file.name: self._arrived(folder / file.name, file) for file in artifact.files}
            for file in artifact.files:
                if there[file.name] == file.size and not (folder / file.name).is_file():
                    self._append(folder / file.name, file, b"")  # an empty one, or killed before it got its name
            if all((folder / file.name).is_file() for file in artifact.files):
                self._finish(folder)
                return None
            return there

    def receive(self, name: str, file_name: str, offset: int, content: bytes) -> int:
        """Take the next piece of a file that is expected; the last one is followed by a look at its SHA-256.

        Returns:
            How many bytes of it are there.

        Raises:
            NotFound: nothing of that name is expected.
            Conflict: another piece comes next.
            IntegrityError: the whole is not what it should be; nothing of it is kept.
        """
        with self._receiving, self._stored(name):
            folder = self.folder(name)
            noted = self._noted(folder / _UNFINISHED)
            files = Artifact.from_json(json.loads(noted)).files if noted else ()
            file = next((each for each in files if each.name == file_name), None)
            if file is None:
                raise NotFound(f"no file {file_name!r} of version {name!r} is expected", hint="POST /staged first.")
            path, there = folder / file.name, self._arrived(folder / file.name, file)
            if offset != there or offset + len(content) > file.size:
                raise Conflict(f"{file_name} of version {name!r} has {there} of {file.size} bytes, not {offset}")
            self._append(path, file, content)
            return there + len(content)

    def _opened(self, name: str, artifact: Artifact) -> Path | None:
        """Return the folder that a version's files go to; None if they are there."""
        folder = self.folder(name)
        note = json.dumps(artifact.as_json(), sort_keys=True)
        if self._noted(folder / NOTE) == note:
            return None
        if self._is_held(name):
            self._require_same(folder, artifact)
            return None
        if self._noted(folder / _UNFINISHED) != note:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            write_synced(folder / _UNFINISHED, note)
        self._require_room(folder, artifact)
        return folder

    def _finish(self, folder: Path) -> None:
        publish(folder / _UNFINISHED, folder / NOTE)
        sync_directory(self.versions)

    def _arrived(self, path: Path, file: ArtifactFile) -> int:
        part = path if path.is_file() else part_of(path, file.sha256)
        return part.stat().st_size if part.is_file() else 0

    def _append(self, path: Path, file: ArtifactFile, content: bytes) -> None:
        part = part_of(path, file.sha256)
        with part.open("ab") as out:
            out.write(content)
            if out.tell() < file.size:
                return
            out.flush()
            os.fsync(out.fileno())
        digest = digest_file(part).sha256
        if digest != file.sha256:
            part.unlink()
            raise IntegrityError(
                f"{file.name} has the SHA-256 {digest}, not {file.sha256}",
                hint="Send it again; what came was thrown away.",
            )
        publish(part, path)

    def staged(self) -> dict[str, Artifact]:
        """Return what is there in files, loaded or not; not what cannot be told, see `unreadable`."""
        found: dict[str, Artifact] = {}
        for path in self._notes():
            with suppress(CloudEdgeError):
                found[path.parent.name] = self.artifact(path.parent)
        return found

    def unreadable(self) -> dict[str, CloudEdgeError]:
        """Return what is there and cannot be told, and why; staging it again replaces it."""
        found: dict[str, CloudEdgeError] = {}
        for path in self._notes():
            try:
                self.artifact(path.parent)
            except NotFound:
                continue  # it has just gone
            except CloudEdgeError as error:
                found[path.parent.name] = error
        return found

    def _notes(self) -> list[Path]:
        return sorted(self.versions.glob(f"[!.]*/{NOTE}"))

    def begun(self) -> list[str]:
        """Return the names of what is on its way."""
        return sorted(path.parent.name for path in self.versions.glob(f"[!.]*/{_UNFINISHED}"))

    def free_disk_bytes(self) -> int:
        """Return what may still be fetched: nothing where the disk is gone."""
        try:
            return max(0, shutil.disk_usage(self.versions).free - _SPARE_DISK)
        except OSError:
            return 0

    def folder(self, name: str) -> Path:
        """Return where a version's files are.

        Raises:
            InputError: nothing can be called that.
        """
        if not is_version_name(name):
            raise InputError(f"{name!r} cannot name a version: letters, digits, '_', '.' and '-'")
        return self.versions / name

    def artifact(self, folder: Path) -> Artifact:
        """Read what a folder's files are.

        Raises:
            NotFound: they are not there, or not all of them.
            IntegrityError: the note that says it is damaged.
            StorageError: it cannot be read.
        """
        try:
            return Artifact.from_json(json.loads((folder / NOTE).read_bytes()), folder)
        except FileNotFoundError:
            raise NotFound(f"version {folder.name!r} was not fetched", hint="Stage it first.") from None
        except OSError as error:
            raise StorageError(f"cannot read {folder / NOTE}: {error.strerror}", path=str(folder / NOTE)) from error
        except (ValueError, RecursionError, InputError) as error:
            raise IntegrityError(f"{folder / NOTE} is damaged: {error}") from error

    @contextmanager
    def _stored(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(f"cannot keep version {name!r} in {self.versions}: {error.strerror}") from error

    def _noted(self, path: Path) -> str:
        return path.read_text(encoding="utf-8") if path.is_file() else ""

    def _require_same(self, folder: Path, artifact: Artifact) -> None:
        there = self.artifact(folder)
        if (there.checksum, there.rows) != (artifact.checksum, artifact.rows):
            raise Conflict(
                f"version {folder.name!r} is loaded with rows {there.checksum}, not {artifact.checksum}",
                hint="A version does not change under its name: deliver the rows under another one.",
            )

    def _require_room(self, folder: Path, artifact: Artifact) -> None:
        there = sum(path.stat().st_size for path in folder.iterdir())
        needed, free = artifact.size - there, self.free_disk_bytes()
        if needed > free:
            raise StorageError(
                f"{artifact.size} bytes do not fit: {self.versions} has room for {free} more",
                hint="Free space there, unload old versions, or move the server to a larger disk.",
                needed_bytes=needed,
                free_bytes=free,
            )

    def _fetch(self, folder: Path, file: ArtifactFile, sources: Sequence[Source], deadline: float) -> int:
        path = folder / file.name
        if path.is_file() and path.stat().st_size == file.size:
            return 0  # it got its name after it was checked
        reasons: list[CloudEdgeError] = []
        # One attempt without a byte, then the next source: the delivery that asked for this owns the retries.
        for source in sources:
            url = f"{source.url.rstrip('/')}/{file.name}"
            try:
                return fetch(
                    url,
                    path,
                    sha256=file.sha256,
                    size=file.size,
                    deadline=deadline,
                    token=source.token or None,
                    limit=self._gate,
                    clock=self._clock,
                    attempts=1,
                ).received_bytes
            except StorageError:
                raise
            except CloudEdgeError as error:
                reasons.append(error)
        damaged = next((each for each in reasons if isinstance(each, IntegrityError)), None)
        if damaged is not None:
            raise damaged
        why = "; ".join(each.message for each in reasons) or "nobody was named to fetch from"
        raise Unavailable(f"cannot fetch {file.name}: {why}", hint="See that a source runs and can be reached.")
