"""Files, locks, memory and the network as every room uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudedge._lazy import lazy_names
from cloudedge.io._address import join_address, parse_address
from cloudedge.io._atomic_files import (
    atomic_file,
    publish,
    sync_directory,
    sync_file,
    write_atomically,
    write_synced,
)
from cloudedge.io._bounded_body import json_parts, parse_length, read_body
from cloudedge.io._file_locks import FileLock, Holder, LockHeld, locked_by
from cloudedge.io._memory import free_memory_bytes
from cloudedge.io._retries import Backoff, Patience, retry
from cloudedge.io._safe_paths import path_below, safe_path
from cloudedge.io._storage_errors import storage_errors
from cloudedge.io._user import who

if TYPE_CHECKING:
    from cloudedge.io._digests import Digests, digest_chunks, digest_file, file_chunks
    from cloudedge.io._downloads import Answer, Download, Opener, Throttle
    from cloudedge.io._endpoints import EndpointCounts, EndpointPolicy, EndpointPool
    from cloudedge.io._literals import parse_literal, read_npz
    from cloudedge.io._parallel import in_threads, map_in_threads

__all__ = [
    "Answer",
    "Backoff",
    "Digests",
    "Download",
    "EndpointCounts",
    "EndpointPolicy",
    "EndpointPool",
    "FileLock",
    "Holder",
    "LockHeld",
    "Opener",
    "Patience",
    "Throttle",
    "atomic_file",
    "digest_chunks",
    "digest_file",
    "file_chunks",
    "free_memory_bytes",
    "in_threads",
    "join_address",
    "json_parts",
    "locked_by",
    "map_in_threads",
    "parse_address",
    "parse_length",
    "parse_literal",
    "path_below",
    "publish",
    "read_body",
    "read_npz",
    "retry",
    "safe_path",
    "storage_errors",
    "sync_directory",
    "sync_file",
    "who",
    "write_atomically",
    "write_synced",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "_digests": ("Digests", "digest_chunks", "digest_file", "file_chunks"),
        "_downloads": ("Answer", "Download", "Opener", "Throttle"),
        "_endpoints": ("EndpointCounts", "EndpointPolicy", "EndpointPool"),
        "_literals": ("parse_literal", "read_npz"),
        "_parallel": ("in_threads", "map_in_threads"),
    },
)
