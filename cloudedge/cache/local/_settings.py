"""The settings of a data set, and the refusal of credentials in addresses."""

from __future__ import annotations

import os
from dataclasses import dataclass

from cloudedge.cache.local._meta import has_password
from cloudedge.errors import InputError

__all__ = ["DatasetSettings", "keys_given", "refuse_password"]

_KEYS = "CLOUDEDGE_DATASET_ACCESS_KEY", "CLOUDEDGE_DATASET_SECRET_KEY"


@dataclass(frozen=True)
class DatasetSettings:
    """The choices made at a data set's creation, saved so that later commands need only its name."""

    name: str
    meta: str
    """The metadata engine: ``sqlite3://FILE`` by default, or ``redis://HOST:6379/1``; without the password, which is
    in a separate file that only its owner may read."""
    storage: str
    bucket: str
    """The location of the data: a folder, or a bucket of an object store."""
    partitions: int
    cache: str
    """The folder that holds the cache of each partition."""
    cache_mib: int
    source: str = ""
    created_s: float = 0.0


def keys_given() -> tuple[str, str]:
    """Return the access and secret key from the environment; empty if unset."""
    return os.environ.get(_KEYS[0], ""), os.environ.get(_KEYS[1], "")


def refuse_password(what: str, url: str) -> None:
    """Refuse an address with credentials: other users can see a process's arguments."""
    if has_password(url):
        # The message does not repeat the address.
        raise InputError(
            f"the address of the {what} carries credentials",
            hint=f"Set {' and '.join(_KEYS)} instead.",
        )
