"""Loading of a version from a part's files: upstream's index and data files, read into memory."""

from __future__ import annotations

from pathlib import Path

from cloudedge import _core
from cloudedge.cube.formats import read_checksum_file
from cloudedge.native import file_errors

__all__ = ["load_patch", "load_version"]

_HINT = "Build or fetch the version again; loaded versions keep answering."


def load_version(path: str, name: str) -> _core.Version:
    """Read ``index.*`` and ``data.*`` under a path.

    Raises:
        InputError: there is no such part, or its files do not fit together; the message names file and offset.
        IntegrityError: the rows are not those that were built.
    """
    with file_errors(f"load version {name!r}", hint=_HINT):
        return _core.load_version(Path(path), name, False, read_checksum_file(Path(path)))


def load_patch(base: _core.Version, path: str, name: str) -> _core.Version:
    """Read a delta's files on top of a version.

    Raises:
        InputError: its files do not fit together, or belong to another base.
    """
    with file_errors(f"load version {name!r} on {base.name!r}", hint=_HINT):
        return _core.load_patch(base, Path(path), name)
