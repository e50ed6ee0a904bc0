"""The state file of a runtime: the loaded versions and the routing, saved across restarts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from cloudedge.errors import InputError
from cloudedge.io import storage_errors, write_atomically
from cloudedge.serving.control import Routing, Shadow, Variant

__all__ = ["LoadedRef", "SavedState", "StateFile", "read_state", "write_state"]


class LoadedRef(BaseModel):
    """A loaded version in the state file."""

    model_config = ConfigDict(frozen=True)

    pin: str
    bundle: str
    """Name and digest, so that it is the same bundle after the restart."""
    tables: Mapping[str, str] = {}
    """The names of its tables in the source of rows, where they differ from its own."""


class SavedState(BaseModel):
    """The content of the state file."""

    model_config = ConfigDict(frozen=True)

    versions: tuple[LoadedRef, ...] = ()
    active: str | None = None
    variants: tuple[Variant, ...] = ()
    shadow: Shadow | None = None

    @property
    def routing(self) -> Routing:
        """The saved routing."""
        return Routing(self.active, self.variants, self.shadow)


def read_state(path: Path) -> SavedState:
    """Read a state file; a missing one is empty.

    Raises:
        InputError: It is not a state file.
    """
    try:
        return SavedState.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return SavedState()
    except ValidationError as error:
        raise InputError(
            f"{path} is not a state file: {error.errors()[0]['msg']}", hint="Remove it to start afresh.", path=str(path)
        ) from error


def write_state(path: Path, state: SavedState) -> None:
    """Write a state file, completely or not at all.

    Raises:
        StorageError: It cannot be written.
    """
    with storage_errors("remembering what is loaded", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, state.model_dump_json(indent=2))


class StateFile:
    """The ordered versions and routing of a runtime, loaded or not, and the file that saves them.

    A version that could not be loaded again stays saved until it is unloaded: neither an unreachable shard nor a second
    kill in the middle of a restart may lose a version.

    Args:
        file: The state file; None: nothing is saved.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._is_read = False
        self.routing = Routing()
        """The ordered routing, which may name versions that are not loaded."""
        self.missing: dict[str, LoadedRef] = {}
        """Versions that were loaded before the restart and are not loaded yet."""

    def read(self) -> None:
        """Read the file, once.

        Raises:
            InputError: It is not a state file.
        """
        if self._file is None or self._is_read:
            return
        saved = read_state(self._file)
        self.missing, self.routing, self._is_read = {ref.pin: ref for ref in saved.versions}, saved.routing, True

    def write(self, loaded: Iterable[LoadedRef], routing: Routing) -> None:
        """Save the loaded and the missing versions, and the routing; a routing that cannot be saved is not applied.

        Raises:
            StorageError: The file cannot be written.
        """
        if self._file is not None:
            loaded_by_pin = {ref.pin: ref for ref in loaded}
            state = SavedState(
                versions=tuple((self.missing | loaded_by_pin).values()),
                active=routing.active,
                variants=routing.variants,
                shadow=routing.shadow,
            )
            write_state(self._file, state)
        self.routing = routing
