"""SequenceFiles as Paddle Serving's tools read and write them: 8-byte keys, raw values.

A file is read strictly: a wrong header, a record that is not whole or a sync mark that is not the file's own is an
`InputError` with the byte where it was found. With ``skip_damage`` reading goes on after the next sync mark and
counts what was left out. Files are streamed; only `read_table` holds one whole.

Not responsible for what values mean, for sharding, or for Hadoop's own files, whose keys carry an inner length.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from cloudedge import _core
from cloudedge.errors import Conflict, InputError, StorageError
from cloudedge.io import publish
from cloudedge.native import file_errors

__all__ = ["MAX_VALUE_BYTES", "Reader", "Table", "Writer", "is_sequence_file", "read", "read_table", "write"]

MAX_VALUE_BYTES = 67108860
"""The longest value a record may have."""

_BATCH = 4096
_HINT = "Make the file again, or read it with skip_damage to leave the damaged stretch out."


def is_sequence_file(path: str | os.PathLike[str]) -> bool:
    """Say whether a file begins like a SequenceFile."""
    with Path(path).open("rb") as file:
        return file.read(3) == b"SEQ"


class Reader:
    """The records of one file, in order.

    Example:
        >>> reader = Reader("feature")              # doctest: +SKIP
        >>> for key, value in reader: ...           # doctest: +SKIP

    Attributes:
        native: The compiled reader, for compiled code that takes records itself.
    """

    def __init__(self, path: str | os.PathLike[str], *, skip_damage: bool = False) -> None:
        """Open a file and check its header.

        Args:
            path: The file.
            skip_damage: Leave out a damaged stretch up to the next sync mark instead of refusing the file.

        Raises:
            InputError: not a SequenceFile, or not one this can read; `path` and `offset` say where.
        """
        with self._errors():
            self.native = _core.SequenceReader(Path(path), skip_damage)

    @staticmethod
    def _errors() -> Any:
        return file_errors("read the SequenceFile", hint=_HINT)

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        while True:
            with self._errors():
                batch = self.native.batch(_BATCH)
            if not batch:
                return
            yield from batch

    @property
    def size_bytes(self) -> int:
        """The file's size."""
        return self.native.size

    @property
    def skipped_bytes(self) -> int:
        """Bytes left out so far."""
        return self.native.skipped_bytes

    @property
    def skipped_places(self) -> int:
        """Damaged stretches left out so far."""
        return self.native.skipped_places


def read(path: str | os.PathLike[str], *, skip_damage: bool = False) -> Iterator[tuple[int, bytes]]:
    """Read the records (key, value) of a file in order; see `Reader`."""
    return iter(Reader(path, skip_damage=skip_damage))


@dataclass(frozen=True)
class Table:
    """A file whose values all have one length."""

    keys: NDArray[np.uint64]
    values: NDArray[np.uint8]
    """One row of bytes per key; ``values.view(np.float32)`` for vectors."""
    skipped_bytes: int = 0


def read_table(path: str | os.PathLike[str], *, skip_damage: bool = False) -> Table:
    """Read a whole file into two arrays, in file order, duplicate keys included.

    Raises:
        InputError: the file is damaged, or its values differ in length.
    """
    with file_errors("read the SequenceFile as a table", hint=_HINT):
        return Table(*_core.read_sequence_table(Path(path), skip_damage))


@final
class Writer:
    """Writes a file that appears under its name only once it is whole and on the device.

    Example:
        >>> with Writer("feature") as out:          # doctest: +SKIP
        ...     out.append(1, b"12345678")
    """

    def __init__(self, path: str | os.PathLike[str], *, sync: bytes | None = None) -> None:
        """Begin a file.

        Args:
            path: Where it shall appear; nothing may be there yet.
            sync: The 16-byte sync marker; random when not given, as it should be for real files.

        Raises:
            Conflict: `path` exists.
            StorageError: it cannot be written there.
        """
        self.path = Path(path)
        if self.path.exists():
            raise Conflict(f"{self.path} exists already", hint="Remove it or choose another name.", path=str(path))
        self._unfinished = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}")
        with self._errors():
            self._native = _core.SequenceWriter(self._unfinished, sync or secrets.token_bytes(16))

    @staticmethod
    def _errors() -> Any:
        return file_errors("write the SequenceFile")

    def append(self, key: int, value: bytes) -> None:
        """Write one record."""
        if not 0 <= key < 2**64:
            raise InputError(f"key {key} is not within 0 and 2^64 - 1", key=key)
        if len(value) > MAX_VALUE_BYTES:
            raise InputError(f"key {key} has a value of {len(value)} bytes; a record holds {MAX_VALUE_BYTES}", key=key)
        with self._errors():
            self._native.append(key, value)

    def append_rows(self, keys: NDArray[np.uint64], values: NDArray[Any]) -> None:
        """Write many records: one row of `values`, whatever its type, per key."""
        rows = np.ascontiguousarray(values).reshape(len(keys), -1).view(np.uint8)
        with self._errors():
            self._native.append_rows(np.ascontiguousarray(keys, np.uint64), rows)

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Publish the file, or remove what there is of it when the block failed."""
        try:
            if kind is None:
                with self._errors():
                    self._native.finish()
                self._publish()
        finally:
            self._unfinished.unlink(missing_ok=True)

    def _publish(self) -> None:
        try:
            publish(self._unfinished, self.path)
        except OSError as error:
            raise StorageError(f"cannot write {self.path}: {error.strerror}", path=str(self.path)) from error


def write(path: str | os.PathLike[str], records: Iterable[tuple[int, bytes]], *, sync: bytes | None = None) -> None:
    """Write records (key, value) to a new file; see `Writer`."""
    with Writer(path, sync=sync) as out:
        for key, value in records:
            out.append(key, value)
