"""A client that follows cube.conf: it reads a replaced file again, and looks for one at most once a second.

The servers of one cube.conf, the old or the new one, answer each call. A new file that cannot be used changes nothing;
`problem` gives the reason, and the next file is tried.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from cloudedge.clock import Clock, SystemClock
from cloudedge.cube.client._client import Client, ClientConfig, KeyLike, SeekResult
from cloudedge.cube.formats import CubeConf
from cloudedge.errors import ConfigError, InputError

__all__ = ["FollowingClient"]

_LOOK_S = 1.0

_Mark = tuple[int, int, int]


class FollowingClient(Client):
    """Reads rows from the shards that cube.conf names at the moment; see `Client.from_conf`."""

    def __init__(self, path: str | os.PathLike[str], table: str, *, clock: Clock | None = None, **more: Any) -> None:
        self._path, self._table, self._more = path, table, more
        self._clock = clock or SystemClock()
        self._looking = threading.Lock()
        self._mark = self._look()
        self._looked_at = self._clock.monotonic()
        self._client: Client | None = self._open()
        self.problem = ""
        """The reason that the newest cube.conf is not used; empty while it is."""

    @property
    def config(self) -> ClientConfig:  # type: ignore[override]  # changes with cube.conf; fixed in the parent
        """The configuration from the current cube.conf."""
        return self._now().config

    def seek(
        self,
        keys: KeyLike,
        *,
        pin: str | None = None,
        dtype: DTypeLike = np.float32,
        timeout_s: float | None = None,
    ) -> SeekResult:
        """Look keys up; see `Client.seek`."""
        return self._newest().seek(keys, pin=pin, dtype=dtype, timeout_s=timeout_s)

    def measure(self, **load: Any) -> dict[str, Any]:
        """Load the shards that are asked now; see `Client.measure`."""
        return self._newest().measure(**load)

    def close(self) -> None:
        """Close all connections; the client cannot be used afterwards."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _newest(self) -> Client:
        """Return the client of the current cube.conf, replacing it if the file was replaced."""
        client = self._now()
        # One caller checks; the others go on with the client there is. A replaced client is not closed: calls under way
        # end on it, and its connections close with the last of them.
        if self._clock.monotonic() - self._looked_at < _LOOK_S or not self._looking.acquire(blocking=False):
            return client
        try:
            self._looked_at = self._clock.monotonic()
            mark = self._look()
            if mark != self._mark:
                self._mark = mark
                self._client = client = self._open()
                self.problem = ""
        except ConfigError as error:
            self.problem = error.message
        finally:
            self._looking.release()
        return client

    def _now(self) -> Client:
        if self._client is None:
            raise InputError("this cube client is closed")
        return self._client

    def _open(self) -> Client:
        table = CubeConf.from_file(self._path)[self._table]
        return Client(ClientConfig.from_table(table, **self._more), clock=self._clock)

    def _look(self) -> _Mark | None:
        """Return a mark of the file that changes when it is renamed over or written."""
        try:
            found = Path(self._path).stat()
        except OSError:
            return None  # reading it reports the reason
        return found.st_ino, found.st_mtime_ns, found.st_size
