"""What a server remembers across a restart: which versions were loaded, and who answered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from cloudedge.errors import InputError
from cloudedge.io import storage_errors, write_atomically
from cloudedge.serving.control import Routing, Shadow, Variant

__all__ = ["LoadedRef", "Memory", "State", "read_state", "write_state"]


class LoadedRef(BaseModel):
    """A version that was loaded."""

    model_config = ConfigDict(frozen=True)

    pin: str
    bundle: str
    """Name and digest, so that it is the same bundle after the restart."""
    tables: Mapping[str, str] = {}
    """What its source of rows calls its tables, where not by their names."""


class State(BaseModel):
    """Everything that is remembered."""

    model_config = ConfigDict(frozen=True)

    versions: tuple[LoadedRef, ...] = ()
    active: str | None = None
    variants: tuple[Variant, ...] = ()
    shadow: Shadow | None = None

    @property
    def routing(self) -> Routing:
        """Who answered."""
        return Routing(self.active, self.variants, self.shadow)


def read_state(path: Path) -> State:
    """Read a state file; one that is not there is empty.

    Raises:
        InputError: it is not a state file.
    """
    try:
        return State.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return State()
    except ValidationError as error:
        raise InputError(
            f"{path} is not a state file: {error.errors()[0]['msg']}", hint="remove it to start afresh", path=str(path)
        ) from error


def write_state(path: Path, state: State) -> None:
    """Write a state file, whole or not at all.

    Raises:
        StorageError: it cannot be written.
    """
    with storage_errors("remembering what is loaded", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, state.model_dump_json(indent=2))


class Memory:
    """What a runtime was told to have and to answer with, whether it has it yet or not.

    What could not be brought back stays remembered until it is unloaded: a shard that is away for a moment must not
    cost a version, nor a second kill in the middle of a restart.

    Args:
        file: Where it is kept; None: nowhere.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._is_read = False
        self.routing = Routing()
        """As ordered; of versions that are not here, too."""
        self.missing: dict[str, LoadedRef] = {}
        """Versions that were loaded before the restart and are not yet again."""

    def read(self) -> None:
        """Read the file, once.

        Raises:
            InputError: it is not a state file.
        """
        if self._file is None or self._is_read:
            return
        before = read_state(self._file)
        self.missing, self.routing, self._is_read = {ref.pin: ref for ref in before.versions}, before.routing, True

    def write(self, loaded: Iterable[LoadedRef], routing: Routing) -> None:
        """Write what is loaded or ought to be, and who is to answer; an order that cannot be written is not obeyed.

        Raises:
            StorageError: it cannot be written.
        """
        if self._file is not None:
            here = {ref.pin: ref for ref in loaded}
            state = State(
                versions=tuple((self.missing | here).values()),
                active=routing.active,
                variants=routing.variants,
                shadow=routing.shadow,
            )
            write_state(self._file, state)
        self.routing = routing
