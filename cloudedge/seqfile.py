"""SequenceFiles in the format of Paddle Serving's tools: read and write records of 8-byte keys and raw values.

A file is read strictly: a wrong header, an incomplete record or a foreign sync mark is an `InputError` with its byte
offset. With ``skip_damage`` the reader continues after the next sync mark and counts the skipped bytes. Files are
streamed; only `read_table` holds a whole one.

Out of scope: the meaning of values, sharding, and Hadoop's own files, whose keys carry an inner length.
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
_DAMAGE_HINT = "Write the file again, or read it with `skip_damage` to leave the damaged stretch out."


def is_sequence_file(path: str | os.PathLike[str]) -> bool:
    """Return True if a file begins like a SequenceFile."""
    with Path(path).open("rb") as file:
        return file.read(3) == b"SEQ"


class Reader:
    """The records of one file, in order.

    Example:
        >>> reader = Reader("feature")              # doctest: +SKIP
        >>> for key, value in reader: ...           # doctest: +SKIP

    Attributes:
        native: The compiled reader, for compiled code that reads records directly.
    """

    def __init__(self, path: str | os.PathLike[str], *, skip_damage: bool = False) -> None:
        """Open a file and check its header.

        Args:
            path: The file.
            skip_damage: Skip a damaged stretch up to the next sync mark instead of refusing the file.

        Raises:
            InputError: not a SequenceFile, or an unsupported kind; `path` and `offset` give the place.
        """
        with self._errors():
            self.native = _core.SequenceReader(Path(path), skip_damage)

    @staticmethod
    def _errors() -> Any:
        return file_errors("read the SequenceFile", hint=_DAMAGE_HINT)

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
        """Bytes skipped so far."""
        return self.native.skipped_bytes

    @property
    def skipped_places(self) -> int:
        """Damaged stretches skipped so far."""
        return self.native.skipped_places


def read(path: str | os.PathLike[str], *, skip_damage: bool = False) -> Iterator[tuple[int, bytes]]:
    """Read the records (key, value) of a file in order; see `Reader`."""
    return iter(Reader(path, skip_damage=skip_damage))


@dataclass(frozen=True)
class Table:
    """The contents of a file whose values all have one length."""

    keys: NDArray[np.uint64]
    values: NDArray[np.uint8]
    """One row of bytes per key; ``values.view(np.float32)`` for vectors."""
    skipped_bytes: int = 0


def read_table(path: str | os.PathLike[str], *, skip_damage: bool = False) -> Table:
    """Read a whole file into two arrays, in file order, duplicate keys included.

    Raises:
        InputError: the file is damaged, or its values differ in length.
    """
    with file_errors("read the SequenceFile as a table", hint=_DAMAGE_HINT):
        return Table(*_core.read_sequence_table(Path(path), skip_damage))


@final
class Writer:
    """Writes a file that appears under its name only when it is complete and synced to disk.

    Example:
        >>> with Writer("feature") as out:          # doctest: +SKIP
        ...     out.append(1, b"12345678")
    """

    def __init__(self, path: str | os.PathLike[str], *, sync: bytes | None = None) -> None:
        """Begin a file.

        Args:
            path: The final path, which must not exist yet.
            sync: The 16-byte sync marker; random by default, as real files need.

        Raises:
            Conflict: `path` exists.
            StorageError: the file cannot be written.
        """
        self.path = Path(path)
        if self.path.exists():
            raise Conflict(f"{self.path} exists", hint="Remove it or choose another name.", path=str(path))
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
        """Write many records: one row of `values`, of any type, per key."""
        rows = np.ascontiguousarray(values).reshape(len(keys), -1).view(np.uint8)
        with self._errors():
            self._native.append_rows(np.ascontiguousarray(keys, np.uint64), rows)

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Publish the file, or remove the unfinished one if the block failed."""
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
