"""The versions of a cube server on disk: a server that is killed and started again restores them.

    DIR/state.json            the loaded versions in the order of loading, and the active one
    DIR/versions/NAME/        a version's files; artifact.json stands there once all of them are there and verified

The state is replaced by rename after a version was loaded and before the pointer moves. A delta's base stays on disk
as long as the delta does, loaded or not. The active version cannot be unloaded, nor the previous one unless the caller
gives it up explicitly. Upstream's control commands, which bypass the state, are refused.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cloudedge import _core
from cloudedge.admin import error_fields, states
from cloudedge.clock import Clock, SystemClock
from cloudedge.cube.server._load import load_patch, load_version
from cloudedge.cube.server._load_delivered import load_artifact
from cloudedge.cube.server._server import Server
from cloudedge.cube.server._staging import Staging
from cloudedge.errors import (
    CloudEdgeError,
    Conflict,
    InputError,
    IntegrityError,
    NotFound,
    StorageError,
    Unavailable,
)
from cloudedge.io import write_atomically

__all__ = ["VersionStore"]

_STATE = "state.json"
_MAX_STATE = 1 << 20
_BUSY_S = 5.0


@dataclass(frozen=True)
class _Held:
    """A version of the state file."""

    name: str
    path: str = ""
    """The path of its files; empty for a version that was staged in this directory."""
    base: str | None = None
    """The version that it was loaded on top of."""
    is_loaded: bool = True
    """False for a version that is kept only as a base."""


class VersionStore:
    """A server's versions on disk.

    Args:
        server: The server that loads them.
        directory: The directory to keep them in; made if it is absent.
        limit_bytes_per_s: For all fetches together.
        clock: For deadlines.
    """

    def __init__(
        self,
        server: Server,
        directory: Path,
        *,
        limit_bytes_per_s: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.server = server
        self.directory = directory
        self.versions = directory / "versions"
        self._changing = threading.Lock()  # held while a version is loaded or removed
        self._writing = threading.Lock()
        self._held: dict[str, _Held] = {}
        self.staging = Staging(
            self.versions,
            lambda name: name in self._held,
            limit_bytes_per_s=limit_bytes_per_s,
            clock=clock or SystemClock(),
        )
        self._natives: dict[str, _core.Version] = {}
        self._active: str | None = None
        self.previous: str | None = None
        # They would load and switch past the state file, and a restart would restore other versions.
        server.refuse_control(
            "this server keeps its versions in a state directory and takes them by its admin API only: "
            "deliver with cloudedge cube deliver, or serve without --state"
        )
        try:
            self.versions.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"cannot keep versions in {directory}: {error.strerror}", path=str(directory)) from error

    def close(self) -> None:
        """Break off fetches; they continue after the next start."""
        self.staging.close()

    def restore(self) -> list[str]:
        """Load the versions that were loaded when the process last ran, and activate the one that was active.

        A version that cannot be loaded is left out; if it was the active one, none is active. Damaged files are
        removed, so that the version can be delivered again. If the files could not be read, or there is not enough
        memory, they stay, and so does the state file: the next start tries again.

        Returns:
            The versions that were left out, with the reasons.

        Raises:
            IntegrityError: the state file is damaged.
        """
        state = self.directory / _STATE
        for leftover in (*self.versions.glob(".gone-*"), state.with_name(f".{_STATE}")):
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink(missing_ok=True)
        if not state.exists():
            return []
        try:
            found = json.loads(state.read_bytes()[:_MAX_STATE])
            held = {each["name"]: _Held(**each) for each in found["versions"]}
            active, previous = found["active"], found["previous"]
        except (ValueError, TypeError, KeyError) as error:
            raise IntegrityError(
                f"{state} is damaged: {error}", hint="Move it away to start empty; then deliver again."
            ) from error
        self._held = held
        problems = {name: why for name, each in held.items() if each.is_loaded and (why := self._restore(each))}
        loaded = {version.name for version in self.server.versions()}
        if problems:
            kept = {each for name, why in problems.items() if not _is_lost(why) for each in self._chain(name)}
            kept |= {each for name in loaded for each in self._chain(name)}
            self._held = {name: replace(each, is_loaded=name in loaded) for name, each in held.items() if name in kept}
            active, previous = (each if each in loaded else None for each in (active, previous))
            if any(_is_lost(why) for why in problems.values()):
                with self._writing:
                    self._write_locked(self._held, active, previous)
            for name in held.keys() - kept:
                self._remove(name)
        self._active, self.previous = active, previous
        self._drop_natives()
        if active is not None:
            self.server.activate(active)
        return [f"{name}: {why.message}" for name, why in problems.items()]

    def _restore(self, held: _Held) -> CloudEdgeError | None:
        try:
            self.server.add(self._native(held.name))
        except CloudEdgeError as error:
            return error
        except OSError as error:
            return StorageError(f"cannot read version {held.name!r}: {error.strerror}")
        except MemoryError:
            return _no_memory(held.name)
        return None

    def load(self, name: str, *, path: str = "", base: str | None = None) -> None:
        """Load a version from a path or from its staged files; a delta on top of `base`, or of the base it is made for.

        Raises:
            NotFound: the version was not staged, or the base is not loaded.
            Conflict: it is loaded.
            InputError: no loaded version is the base that the delta was made for.
            StorageError: there is not enough memory.
            CloudEdgeError: its files are damaged or do not fit together.
        """
        with self._alone(name):
            if name in self._held and self._held[name].is_loaded:
                raise Conflict(f"version {name!r} is loaded already, and a version does not change under its name")
            if name in self._held:  # kept as another version's base
                held = replace(self._held[name], is_loaded=True)
            else:
                held = _Held(name, path, base if path else self._base_of(name))
            try:
                native = self._make(held)
            except MemoryError as error:
                raise _no_memory(name) from error
            self._natives[name] = native
            # Written first: a client that sees it loaded may activate it at once, and a restart must then find it.
            self._write(held={**self._held, name: held})
            self.server.add(native)
            self._drop_natives()

    def activate(self, name: str) -> None:
        """Activate a loaded version, and remember the one it replaces.

        Raises:
            NotFound: it is not loaded.
        """
        with self._writing:  # `unload` may run at the same time: the first to write wins
            if name not in self._held or not self._held[name].is_loaded:
                raise NotFound(f"version {name!r} is not loaded", hint="Load it first.")
            if name != self._active:
                self._write_locked(self._held, name, self._active)
            self.server.activate(name)

    def deactivate(self) -> None:
        """Activate no version and keep none to roll back to; loaded versions stay and answer pinned reads."""
        with self._writing:
            if (self._active, self.previous) != (None, None):
                self._write_locked(self._held, None, None)
            self.server.deactivate()

    def unload(self, name: str, *, previous: bool = False) -> None:
        """Unload a version and remove its files.

        Args:
            name: The version.
            previous: Unload it also if it is the version to roll back to; there is none then.

        Raises:
            NotFound: there is no version of that name.
            Conflict: it is active, or the version to roll back to.
        """
        with self._alone(name):
            if name == self._active:
                raise Conflict(f"version {name!r} is active and cannot be unloaded")
            if name == self.previous and not previous:
                raise Conflict(f"version {name!r} is the one to roll back to and cannot be unloaded")
            if name not in self._held and not self.staging.folder(name).exists():
                raise NotFound(f"version {name!r} is neither loaded nor staged")
            if name in self._held:
                self._forget(name)
            elif not any(each.base == name for each in self._held.values()):
                self._remove(name)

    def describe(self) -> list[dict[str, Any]]:
        """List versions, the oldest first: loaded ones with the versions they are made of, then staged ones."""
        staged = self.staging.staged()
        found: list[dict[str, Any]] = []
        loaded = {version.name: version for version in self.server.versions()}
        for name, version in sorted(loaded.items(), key=lambda item: self._order(item[0])):
            chain = [staged[each] for each in self._chain(name) if each in staged]
            deltas = [each.size for each in chain if each.kind == "delta"]
            about = {"state": states.LOADED, "deltas": len(deltas), "delta_bytes": sum(deltas)}
            found.append({**asdict(version), **about})
        for name, artifact in staged.items():
            if name not in loaded and name not in self._held:
                found.append(
                    {"name": name, "state": states.STAGED, "rows": artifact.rows, "checksum": artifact.checksum}
                )
        found += [
            {"name": name, "state": states.FAILED, **error_fields(why)}
            for name, why in self.staging.unreadable().items()
            if name not in loaded and name not in self._held
        ]
        return [*found, *({"name": name, "state": states.PARTIAL} for name in self.staging.begun())]

    def kept(self) -> list[dict[str, Any]]:
        """List unloaded versions that stay in files because others are made of them; they can be loaded again."""
        return [{"name": each.name, "state": states.STAGED} for each in self._held.values() if not each.is_loaded]

    def _base_of(self, name: str) -> str | None:
        """Find the version that a staged delta belongs on; None for a base."""
        artifact = self.staging.artifact(self.staging.folder(name))
        if artifact.kind == "base":
            return None
        for version in self.server.versions():
            if version.checksum == artifact.base and version.name in self._natives:
                return version.name
        raise InputError(
            f"version {name!r} is a delta for rows {artifact.base}, and no loaded version has them",
            hint="Deliver it as a base.",
            base=artifact.base,
        )

    def _native(self, name: str) -> _core.Version:
        """Return a version's rows, loaded from its files if it is not in memory."""
        if name not in self._natives:
            if name not in self._held:
                raise NotFound(f"version {name!r} is not loaded")
            self._natives[name] = self._make(self._held[name])
        return self._natives[name]

    def _make(self, held: _Held) -> _core.Version:
        base = None if held.base is None else self._native(held.base)
        if not held.path:
            return load_artifact(self.staging.artifact(self.staging.folder(held.name)), held.name, base)
        return load_version(held.path, held.name) if base is None else load_patch(base, held.path, held.name)

    def _chain(self, name: str) -> Iterator[str]:
        at: str | None = name
        while at is not None:
            yield at
            at = self._held[at].base if at in self._held else None

    def _order(self, name: str) -> int:
        return list(self._held).index(name) if name in self._held else -1

    def _forget(self, name: str) -> None:
        held = {**self._held, name: replace(self._held[name], is_loaded=False)}
        # Remove every version that no loaded one is made of; a chain is removed from its end.
        needed = {each for one in held.values() if one.is_loaded for each in self._chain(one.name)}
        with self._writing:
            if name == self._active:
                raise Conflict(f"version {name!r} has just been activated and cannot be unloaded")
            if any(each.name == name for each in self.server.versions()):
                self.server.unload(name)
            left = {each: one for each, one in held.items() if each in needed}
            self._write_locked(left, self._active, None if name == self.previous else self.previous)
        self._drop_natives()
        for each in held.keys() - needed:
            self._remove(each)

    def _drop_natives(self) -> None:
        loaded = {name for name, held in self._held.items() if held.is_loaded}
        self._natives = {name: native for name, native in self._natives.items() if name in loaded}

    def _remove(self, name: str) -> None:
        folder, gone = self.staging.folder(name), self.versions / f".gone-{name}"
        if folder.exists():
            shutil.rmtree(gone, ignore_errors=True)
            folder.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        if not self._changing.acquire(timeout=_BUSY_S):
            raise Unavailable(f"version {name!r} has to wait: another one is being loaded or removed")
        try:
            yield
        finally:
            self._changing.release()

    def _write(self, *, held: dict[str, _Held]) -> None:
        with self._writing:
            self._write_locked(held, self._active, self.previous)

    def _write_locked(self, held: dict[str, _Held], active: str | None, previous: str | None) -> None:
        content = {"versions": [asdict(each) for each in held.values()], "active": active, "previous": previous}
        text, scratch = json.dumps(content, indent=1), self.directory / f".{_STATE}"
        try:
            write_atomically(self.directory / _STATE, text, scratch=scratch)
        except OSError as error:
            raise StorageError(f"cannot write {self.directory / _STATE}: {error.strerror}") from error
        self._held, self._active, self.previous = held, active, previous


def _is_lost(why: CloudEdgeError) -> bool:
    """Tell whether the version's files are at fault, and not the disk or the memory at this moment."""
    if isinstance(why, StorageError):
        return False
    said = why.__cause__.args if isinstance(why.__cause__, _core.FileError) else ("",)
    return said[0] != "unreadable" or not Path(str(why.facts.get("path", ""))).exists()


def _no_memory(name: str) -> StorageError:
    return StorageError(
        f"there is not enough memory to load version {name!r} beside the others",
        hint="Keep fewer versions, use more shards, or give the server more memory.",
    )
