"""Errors of the compiled half, said in cloudedge's words.

`_core` knows files and bytes and throws `_core.FileError`; what that means to a caller, and what to do about it,
is decided here, once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cloudedge import _core
from cloudedge.errors import CloudEdgeError, InputError, StorageError

__all__ = ["file_errors"]


@contextmanager
def file_errors(doing: str, *, damaged: type[CloudEdgeError] = InputError, hint: str = "") -> Iterator[None]:
    """Translate what `_core` says about files.

    Args:
        doing: What is attempted, after "cannot": "read the SequenceFile".
        damaged: What a file whose bytes are not what its format says is an instance of.
        hint: What to do about such a file.

    Raises:
        CloudEdgeError: `damaged`; or InputError for a file that cannot be read or used here; or StorageError for
            one that cannot be written. All carry `path` and `offset`.
    """
    try:
        yield
    except _core.FileError as error:
        kind, path, offset, what = error.args
        where = path if offset is None else f"{path}, byte {offset}"
        message = f"cannot {doing}: {where}: {what}"
        if kind == "unwritable":
            advice = "Free space there or choose another place; nothing was published."
            raise StorageError(message, hint=advice, path=path, offset=offset) from error
        kinds = {"damaged": damaged, "refused": InputError, "unreadable": InputError}
        raise kinds[kind](message, hint=hint if kind == "damaged" else "", path=path, offset=offset) from error
