"""Staging of a version's files at a cube server: fetched from sources or sent in pieces, and verified.

    DIR/NAME/.artifact.json   the expected artifact; incomplete files stand beside it under other names
    DIR/NAME/artifact.json    the same, once all files are there and verified

An interrupted staging continues where it stopped.
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
"""Bytes of the disk left free for the state file and other programs."""


class _ClosableThrottle(Throttle):
    """A bandwidth limit that stops all transfers once it is closed."""

    is_closed = False

    def take(self, count: int) -> None:
        if self.is_closed:
            raise Interrupted("the server is stopping", hint="The fetched bytes are kept for the next start.")
        super().take(count)


class Staging:
    """The directory of a server's staged versions.

    Args:
        versions: The directory; each version's files are in a subdirectory of its name.
        is_held: Tells whether a version is in use and therefore must not change under its name.
        limit_bytes_per_s: For all fetches together.
        clock: For deadlines.
    """

    def __init__(
        self, versions: Path, is_held: Callable[[str], bool], *, limit_bytes_per_s: float | None, clock: Clock
    ) -> None:
        self.versions = versions
        self._is_held = is_held
        self._clock = clock
        self._throttle = _ClosableThrottle(math.inf if limit_bytes_per_s is None else limit_bytes_per_s, clock)
        self._receiving = threading.Lock()

    def close(self) -> None:
        """Break off fetches; they continue after the next start."""
        self._throttle.is_closed = True

    def stage(self, name: str, artifact: Artifact, sources: Sequence[Source], *, deadline_s: float) -> int:
        """Fetch and verify a version's files, continuing an earlier call.

        Returns:
            Bytes that travelled.

        Raises:
            Conflict: the name is taken by other content that is loaded.
            StorageError: there is not enough room.
            Unavailable: no source gave the files.
            IntegrityError: a source's bytes do not match the artifact.
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
        """Prepare for a version's files, which will be sent here; or finish, once all of them are there.

        Returns:
            The bytes of each file that are there; None once the version is staged.

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
                    self._append(folder / file.name, file, b"")  # an empty one, or a kill came before the rename
            if all((folder / file.name).is_file() for file in artifact.files):
                self._finish(folder)
                return None
            return there

    def receive(self, name: str, file_name: str, offset: int, content: bytes) -> int:
        """Append the next piece of an expected file; after the last one, verify its SHA-256.

        Returns:
            The bytes of the file that are there.

        Raises:
            NotFound: no file of that name is expected.
            Conflict: another piece comes next.
            IntegrityError: the whole file has another SHA-256; nothing of it is kept.
        """
        with self._receiving, self._stored(name):
            folder = self.folder(name)
            noted = self._noted(folder / _UNFINISHED)
            files = Artifact.from_json(json.loads(noted)).files if noted else ()
            file = next((each for each in files if each.name == file_name), None)
            if file is None:
                raise NotFound(
                    f"no file {file_name!r} of version {name!r} is expected", hint="Call `POST /staged` first."
                )
            path, there = folder / file.name, self._arrived(folder / file.name, file)
            if offset != there or offset + len(content) > file.size:
                raise Conflict(f"{file_name} of version {name!r} has {there} of {file.size} bytes, not {offset}")
            self._append(path, file, content)
            return there + len(content)

    def _opened(self, name: str, artifact: Artifact) -> Path | None:
        """Return the directory for a version's files; None if they are staged already."""
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
                hint="Send it again; the received bytes were thrown away.",
            )
        publish(part, path)

    def staged(self) -> dict[str, Artifact]:
        """Return the artifacts of staged versions, loaded or not; see `unreadable` for the others."""
        found: dict[str, Artifact] = {}
        for path in self._notes():
            with suppress(CloudEdgeError):
                found[path.parent.name] = self.artifact(path.parent)
        return found

    def unreadable(self) -> dict[str, CloudEdgeError]:
        """Return the staged versions whose artifact cannot be read, and why; staging one again replaces it."""
        found: dict[str, CloudEdgeError] = {}
        for path in self._notes():
            try:
                self.artifact(path.parent)
            except NotFound:
                continue  # it has just been removed
            except CloudEdgeError as error:
                found[path.parent.name] = error
        return found

    def _notes(self) -> list[Path]:
        return sorted(self.versions.glob(f"[!.]*/{NOTE}"))

    def begun(self) -> list[str]:
        """Return the names of versions whose staging has begun."""
        return sorted(path.parent.name for path in self.versions.glob(f"[!.]*/{_UNFINISHED}"))

    def free_disk_bytes(self) -> int:
        """Return the bytes that may still be fetched; 0 if the disk is gone."""
        try:
            return max(0, shutil.disk_usage(self.versions).free - _SPARE_DISK)
        except OSError:
            return 0

    def folder(self, name: str) -> Path:
        """Return the directory of a version's files.

        Raises:
            InputError: no version can have that name.
        """
        if not is_version_name(name):
            raise InputError(f"{name!r} cannot name a version: letters, digits, '_', '.' and '-'")
        return self.versions / name

    def artifact(self, folder: Path) -> Artifact:
        """Read the artifact of a directory's files.

        Raises:
            NotFound: the files are not there, or not all of them.
            IntegrityError: the artifact file is damaged.
            StorageError: the artifact file cannot be read.
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
            return 0  # it was verified before it got its name
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
                    limit=self._throttle,
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
        why = "; ".join(each.message for each in reasons) or "no source was named"
        raise Unavailable(f"cannot fetch {file.name}: {why}", hint="Check that a source runs and can be reached.")
