"""Translation of the compiled half's errors to cloudedge's.

`_core` knows files and bytes and throws `_core.FileError`; this module alone decides which error and which hint
a caller sees.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cloudedge import _core
from cloudedge.errors import CloudEdgeError, InputError, StorageError

__all__ = ["file_errors"]


@contextmanager
def file_errors(doing: str, *, damaged: type[CloudEdgeError] = InputError, hint: str = "") -> Iterator[None]:
    """Translate `_core.FileError` to cloudedge's errors.

    Args:
        doing: The attempted action, worded to follow "cannot": "read the SequenceFile".
        damaged: The error class for a file that violates its format.
        hint: The hint for such a file.

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
            advice = "Free space there or choose another place. Nothing was published."
            raise StorageError(message, hint=advice, path=path, offset=offset) from error
        kinds = {"damaged": damaged, "refused": InputError, "unreadable": InputError}
        raise kinds[kind](message, hint=hint if kind == "damaged" else "", path=path, offset=offset) from error
