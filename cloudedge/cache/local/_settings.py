"""What was chosen when a data set was made, and what may not be chosen."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cloudedge.cache.local._meta import has_password
from cloudedge.errors import InputError, StorageError

__all__ = ["DatasetSettings", "keys_given", "refuse_password", "stored"]

_KEYS = "CLOUDEDGE_DATASET_ACCESS_KEY", "CLOUDEDGE_DATASET_SECRET_KEY"


@dataclass(frozen=True)
class DatasetSettings:
    """What was chosen when a data set was made; kept, so that every command after that needs only the name."""

    name: str
    meta: str
    """The metadata engine: ``sqlite3://FILE`` unless told otherwise, or ``redis://HOST:6379/1``; without a password,
    which is in a file of its own that only its owner may read."""
    storage: str
    bucket: str
    """Where the data lies: a folder, or a bucket of an object store."""
    partitions: int
    cache: str
    """The folder below which each partition caches."""
    cache_mib: int
    source: str = ""
    created_s: float = 0.0


def keys_given() -> tuple[str, str]:
    """Return the access and secret key of the environment; empty where there is none."""
    return os.environ.get(_KEYS[0], ""), os.environ.get(_KEYS[1], "")


def refuse_password(what: str, url: str) -> None:
    if has_password(url):
        # Everybody may see the arguments of a process; the address is not repeated.
        raise InputError(
            f"the address of the {what} carries credentials",
            hint=f"Give them as {' and '.join(_KEYS)}.",
        )


@contextmanager
def stored(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot write {folder}: {error.strerror}", path=str(folder)) from error
