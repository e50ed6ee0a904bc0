"""The operating system's errors about files, as errors of cloudedge."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cloudedge.errors import CloudEdgeError, NotFound, StorageError

__all__ = ["storage_errors"]

_WHY = {
    errno.ENOSPC: "no space is left",
    errno.EDQUOT: "the quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission was denied",
    errno.EPERM: "permission was denied",
}


@contextmanager
def storage_errors(what: str, path: Path) -> Iterator[None]:
    """Turn the operating system's errors into ours, and state what was attempted.

    Raises:
        NotFound: a file or folder is missing.
        StorageError: any other error, such as no space or no permission.
    """
    try:
        yield
    except CloudEdgeError:
        raise
    except FileNotFoundError as error:
        raise NotFound(f"{what}: {error.filename or path} does not exist", path=str(path)) from error
    except OSError as error:
        why = _WHY.get(error.errno or 0, error.strerror or str(error))
        raise StorageError(
            f"{what}: {why} ({error.filename or path})",
            hint="Free space or grant write access, then run the command again. Nothing that existed has changed.",
            path=str(path),
            errno=error.errno,
        ) from error
