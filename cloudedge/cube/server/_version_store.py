"""What a server keeps on disk, so that killed and started again it comes back with the versions it had.

    DIR/state.json            the versions that were loaded, in that order, and which one is active
    DIR/versions/NAME/        a version's files; artifact.json stands there once all of them are, checked

The state is replaced by rename after a version was loaded and before the pointer moves. A delta's base stays on disk
as long as the delta does, loaded or not. The active version does not go, nor the one before it unless somebody gives
that up in so many words. Upstream's control commands, which know nothing of this, are refused.
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
    """Where its files are; empty for those fetched into this directory."""
    base: str | None = None
    """What it was loaded on top of."""
    is_loaded: bool = True
    """False for one that is kept as a base only."""


class VersionStore:
    """A server's versions on disk.

    Args:
        server: Whose they are.
        directory: Where they are kept; made if it is not there.
        limit_bytes_per_s: For everything that is fetched.
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
        # They would load and switch past the state file, and a restart would come back with other versions.
        server.refuse_control(
            "this server keeps its versions in a state directory and takes them by its admin API only: "
            "deliver with cloudedge cube deliver, or serve without --state"
        )
        try:
            self.versions.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"cannot keep versions in {directory}: {error.strerror}", path=str(directory)) from error

    def close(self) -> None:
        """Break off what is being fetched; it goes on after the next start."""
        self.staging.close()

    def restore(self) -> list[str]:
        """Load what was loaded when the process last ran, and activate what was active.

        A version that cannot be loaded is left out; if that is the active one, none is. Where its files are damaged
        they are removed, so that it can be delivered again. Where they could only not be read, or not enough memory
        is there, they stay, and so does the state file: the next start tries again.

        Returns:
            What was left out, and why.

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
        """Load a version from a path, or from its files here; a delta on top of `base`, or of what it was made for.

        Raises:
            NotFound: it was not fetched, or the base is not loaded.
            Conflict: it is loaded.
            InputError: no loaded version is what the delta was made for.
            StorageError: there is not enough memory.
            CloudEdgeError: what is wrong with its files.
        """
        with self._alone(name):
            if name in self._held and self._held[name].is_loaded:
                raise Conflict(f"version {name!r} is loaded already, and a version does not change under its name")
            if name in self._held:  # kept as another one's base
                held = replace(self._held[name], is_loaded=True)
            else:
                held = _Held(name, path, base if path else self._base_of(name))
            try:
                native = self._make(held)
            except MemoryError as error:
                raise _no_memory(name) from error
            self._natives[name] = native
            # Written first: whoever sees it loaded may activate it at once, and a restart must then find it.
            self._write(held={**self._held, name: held})
            self.server.add(native)
            self._drop_natives()

    def activate(self, name: str) -> None:
        """Make a loaded version the active one, and remember the one it replaces.

        Raises:
            NotFound: it is not loaded.
        """
        with self._writing:  # an `unload` may be at it: what it writes first counts
            if name not in self._held or not self._held[name].is_loaded:
                raise NotFound(f"version {name!r} is not loaded", hint="load it first")
            if name != self._active:
                self._write_locked(self._held, name, self._active)
            self.server.activate(name)

    def deactivate(self) -> None:
        """Make no version the active one, nor the one to go back to; what is loaded stays and answers pinned reads."""
        with self._writing:
            if (self._active, self.previous) != (None, None):
                self._write_locked(self._held, None, None)
            self.server.deactivate()

    def unload(self, name: str, *, previous: bool = False) -> None:
        """Let a version go, its files too.

        Args:
            name: Which one.
            previous: Also if it is the one to go back to; there is none then.

        Raises:
            NotFound: there is none of that name.
            Conflict: it is active, or the one to go back to.
        """
        with self._alone(name):
            if name == self._active:
                raise Conflict(f"version {name!r} is active and does not go")
            if name == self.previous and not previous:
                raise Conflict(f"version {name!r} is the one to go back to and does not go")
            if name not in self._held and not self.staging.folder(name).exists():
                raise NotFound(f"version {name!r} is neither loaded nor staged")
            if name in self._held:
                self._forget(name)
            elif not any(each.base == name for each in self._held.values()):
                self._remove(name)

    def describe(self) -> list[dict[str, Any]]:
        """List versions, the oldest first: loaded ones with what they are made of, then those only in files."""
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
        """List what was let go and stays in files, for the versions that are made of it; it can be loaded again."""
        return [{"name": each.name, "state": states.STAGED} for each in self._held.values() if not each.is_loaded]

    def _base_of(self, name: str) -> str | None:
        """Find the version that a fetched delta belongs on; None for a base."""
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
        """Return a version's rows, made from its files where it is not loaded."""
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
        # What no loaded version is made of any more goes; a chain is let go from its end.
        needed = {each for one in held.values() if one.is_loaded for each in self._chain(one.name)}
        with self._writing:
            if name == self._active:
                raise Conflict(f"version {name!r} has just been activated and does not go")
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
    """Tell whether what went wrong is the version's files, and not this moment's disk or memory."""
    if isinstance(why, StorageError):
        return False
    said = why.__cause__.args if isinstance(why.__cause__, _core.FileError) else ("",)
    return said[0] != "unreadable" or not Path(str(why.facts.get("path", ""))).exists()


def _no_memory(name: str) -> StorageError:
    return StorageError(
        f"there is not enough memory to load version {name!r} beside the others",
        hint="Keep fewer versions, use more shards, or give the server more memory.",
    )
