"""The writer lock: one writer per account and namespace on this machine; others wait.

A writer holds it for writes that belong together: a wave's labels, a publication, an apply. A rollout that waits for
nodes does not hold it. Nothing keeps two machines apart; let only one of them write.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cloudedge.clock import Clock
from cloudedge.config import CloudConfig
from cloudedge.edge_bie.client._audit import state_folder
from cloudedge.errors import Conflict
from cloudedge.io import FileLock, Holder, storage_errors, who

__all__ = ["turn"]

_WAIT_S = 600.0
_POLL_S = 0.1


@contextmanager
def turn(settings: CloudConfig, clock: Clock, *, wait_s: float = _WAIT_S) -> Iterator[None]:
    """Hold the only write access on this machine to a namespace of an account; ends with the process at the latest.

    Raises:
        Conflict: another process held it for too long; the message names it.
    """

    def refusal(holder: Holder) -> Conflict:
        message = f"{holder} has been writing to {settings.url} for {wait_s:g} s"
        return Conflict(message, hint="Wait until that ends.")

    path = state_folder(settings) / "writer.lock"
    with storage_errors("locking", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock.take(path, owner=who(), wait_s=wait_s, poll_s=_POLL_S, mode=0o600, clock=clock, refusal=refusal)
    with lock:
        yield
