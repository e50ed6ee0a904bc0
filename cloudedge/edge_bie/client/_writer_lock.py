"""The writer lock: one writer per account and namespace on this machine; others wait.

A writer holds it for writes that belong together: a wave's labels, a publication, an apply. A rollout that waits for
nodes does not hold it. Nothing keeps two machines apart; let only one of them write.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from cloudedge.clock import Clock
from cloudedge.config import CloudConfig
from cloudedge.edge_bie.client._audit import state_folder
from cloudedge.errors import Conflict
from cloudedge.hub import storage_errors, who

__all__ = ["turn"]

_WAIT_S = 600.0
_POLL_S = 0.1


@contextmanager
def turn(settings: CloudConfig, clock: Clock, *, wait_s: float = _WAIT_S) -> Iterator[None]:
    """Hold the only write access on this machine to a namespace of an account; ends with the process at the latest.

    Raises:
        Conflict: another process held it for too long; the message names it.
    """
    path = state_folder(settings) / "writer.lock"
    with storage_errors("locking", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        end = clock.monotonic() + wait_s
        while not _locked(descriptor):
            if clock.monotonic() >= end:
                holder = os.pread(descriptor, 4096, 0).decode(errors="replace").strip() or "another process"
                raise Conflict(
                    f"{holder} has been writing to {settings.url} for {wait_s:g} s",
                    hint="Wait until that process is done.",
                )
            clock.sleep(_POLL_S)
        with storage_errors("locking", path):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{who()} (process {os.getpid()})\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
