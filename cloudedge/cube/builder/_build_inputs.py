"""Inputs of a build: SequenceFiles and tables, in an order that does not depend on the file system."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cloudedge import _core
from cloudedge.cube.formats import TableFile
from cloudedge.errors import InputError
from cloudedge.native import file_errors
from cloudedge.seqfile import Reader, is_sequence_file

__all__ = ["Input", "find_inputs"]


@dataclass(frozen=True)
class Input:
    """One file with rows."""

    path: Path
    size_bytes: int
    """Bytes to read."""
    table: TableFile | None = None
    """The positions of its rows, for a table; None for a SequenceFile."""

    @property
    def format(self) -> str:
        """The kind of file."""
        return "SequenceFile" if self.table is None else "table"

    def open(self, *, skip_damage: bool) -> _core.SequenceReader | _core.TableSource:
        """Open the file as a source of rows for the compiled builder."""
        if self.table is None:
            return Reader(self.path, skip_damage=skip_damage).native
        t = self.table
        with file_errors("read the table"):
            return _core.TableSource(t.path, t.keys_offset, t.values_offset, t.rows, t.width)


def find_inputs(paths: Sequence[str | os.PathLike[str]]) -> list[Input]:
    """List the files to build from.

    Directories are walked in the order of names. As upstream does, hidden files and symbolic links inside them are
    left out; unlike upstream, a file that is neither a SequenceFile nor a table is refused.

    Raises:
        InputError: there is nothing to build from, or a file is neither.
    """
    inputs = [_identify(file) for path in paths for file in _walk(Path(path))]
    if not inputs:
        named = ", ".join(str(path) for path in paths)
        raise InputError(
            f"there is no input in {named or 'an empty list'}",
            hint="Give SequenceFiles, directories of them, or a safetensors table.",
        )
    return inputs


def _walk(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for entry in sorted(path.iterdir(), key=lambda p: os.fsencode(p.name)):
        if entry.name.startswith(".") or entry.is_symlink():
            continue
        if entry.is_dir():
            yield from _walk(entry)
        elif entry.is_file():
            yield entry


def _identify(path: Path) -> Input:
    try:
        if is_sequence_file(path):
            Reader(path)  # finds a wrong header before anything is written
            return Input(path, path.stat().st_size)
    except OSError as error:
        raise InputError(f"cannot read the input {path}: {error.strerror}", path=str(path)) from error
    try:
        table = TableFile.open(path)
    except InputError as error:
        raise InputError(
            f"{path} is neither a SequenceFile nor a table: {error.message}",
            hint="Convert text, numpy and Paddle parameter files with `cloudedge cube dump`.",
            **error.facts,
        ) from error
    return Input(path, table.row_bytes, table)
