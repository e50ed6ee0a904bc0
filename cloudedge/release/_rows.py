"""Rows for serving from cube's shards: every read is pinned to the version whose dense part is running."""

from __future__ import annotations

import os
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cloudedge.bundle import Bundle
from cloudedge.cube import Client, ClientConfig, CubeConf
from cloudedge.errors import ConfigError, IntegrityError
from cloudedge.serving import FoundRows

__all__ = ["CubeRows"]

OnMissingShard = Literal["error", "default"]


class CubeRows:
    """Reads the tables of one bundle from the shards that cube.conf names; a `RowSource`.

    Dictionaries are called as the bundle's tables are. Where a dictionary is missing from cube.conf, its table is not
    served at all: an error at load time, not zeros later.

    Args:
        conf: Which servers hold which dictionary.
        bundle: Whose tables; their rows say how wide a row is.
        on_missing_shard: Fail when no replica of a shard answers, or give its ids zeros and count them.

    Raises:
        ConfigError: cube.conf does not name one of the tables.
    """

    def __init__(self, conf: CubeConf, bundle: Bundle, *, on_missing_shard: OnMissingShard = "error") -> None:
        self._clients: dict[str, Client] = {}
        self._widths: dict[str, int] = {}
        for table in sorted({lookup.table for lookup in bundle.signature.lookups}):
            rows = bundle.sparse.get(table)
            if rows is not None and rows.kind.dtype != np.float32:
                raise ConfigError(
                    f"table {table!r} of {bundle!r} has {rows.kind} rows, cube serves float32 to models",
                    hint="pack it as float32, or serve without --cube",
                )
            width = None if rows is None else rows.kind.dim * np.dtype(np.float32).itemsize
            config = ClientConfig.from_table(conf[table], value_bytes=width, on_missing_shard=on_missing_shard)
            self._clients[table] = Client(config)
            self._widths[table] = 0 if rows is None else rows.kind.dim

    @classmethod
    def from_conf(
        cls, path: str | os.PathLike[str], bundle: Bundle, *, on_missing_shard: OnMissingShard = "error"
    ) -> CubeRows:
        """Read cube.conf."""
        return cls(CubeConf.from_file(path), bundle, on_missing_shard=on_missing_shard)

    def rows(self, table: str, ids: NDArray[np.uint64], pin: str) -> FoundRows:
        """Read the rows of some ids from the pinned version; see `RowSource`.

        The client asks for every id once, whatever the batch repeats.
        """
        found = self._clients[table].seek(ids, pin=pin, dtype=np.float32)
        values, width = found.values, self._widths[table]
        if values.shape[1] != width and width:
            if found.found.any():
                raise IntegrityError(f"rows of table {table!r} have {values.shape[1]} numbers, the bundle says {width}")
            values = np.zeros((len(ids), width), np.float32)  # nothing was found, so nobody said how wide it is
        defaulted = int(np.count_nonzero(found.defaulted))
        missing = len(ids) - int(np.count_nonzero(found.found)) - defaulted
        return FoundRows(values, missing=missing, defaulted=found.defaulted if defaulted else None)

    def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            client.close()
