"""Rows for serving from cube's shards: every read carries the pin of the version whose dense part runs."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cloudedge._renamed_arguments import renamed_arguments
from cloudedge.bundle import Bundle, RowType
from cloudedge.cube import Client, ClientConfig, CubeConf
from cloudedge.errors import IntegrityError
from cloudedge.serving import FoundRows

__all__ = ["CubeRows"]

OnMissingShard = Literal["error", "default"]

_SCALE = np.dtype("<f4")


class CubeRows:
    """Reads the tables of one bundle from the shards that cube.conf names; a `RowSource`.

    A table has the same name in cube.conf and in the bundle, unless `names_in_conf` gives another one. A table that
    cube.conf lacks is an error at load time, not zeros later. Rows of float16, and of int8 with a scale behind them,
    become the same float32 values as rows that serving reads from the bundle.

    Args:
        conf: The servers of every table.
        bundle: The bundle; its tables define how wide a row is.
        names_in_conf: By table: its name in cube.conf, where that differs. A table may be there in several layouts, and
            each version reads the one it was loaded in.
        on_missing_shard: Fail when no replica of a shard answers, or give its ids zeros and count them.
        kinds: By table: the type of its rows, where the bundle's tables are not here.

    Raises:
        ConfigError: cube.conf does not name one of the tables.
    """

    @renamed_arguments(dictionaries="names_in_conf")
    def __init__(
        self,
        conf: CubeConf,
        bundle: Bundle,
        names_in_conf: Mapping[str, str] | None = None,
        *,
        on_missing_shard: OnMissingShard = "error",
        kinds: Mapping[str, RowType] | None = None,
    ) -> None:
        names = names_in_conf or {}
        self._clients: dict[str, Client] = {}
        self._kinds: dict[str, RowType | None] = {}
        for table in sorted({lookup.table for lookup in bundle.signature.lookups}):
            kind = kinds.get(table) if kinds is not None else _kind(bundle, table)
            config = ClientConfig.from_table(
                conf[names.get(table, table)],
                value_bytes=None if kind is None else kind.row_bytes,
                on_missing_shard=on_missing_shard,
            )
            self._clients[table] = Client(config)
            self._kinds[table] = kind

    @classmethod
    @renamed_arguments(dictionaries="names_in_conf")
    def from_conf(
        cls,
        path: str | os.PathLike[str],
        bundle: Bundle,
        names_in_conf: Mapping[str, str] | None = None,
        *,
        on_missing_shard: OnMissingShard = "error",
    ) -> CubeRows:
        """Read cube.conf."""
        return cls(CubeConf.from_file(path), bundle, names_in_conf, on_missing_shard=on_missing_shard)

    def rows(self, table: str, ids: NDArray[np.uint64], pin: str, deadline: float | None = None) -> FoundRows:
        """Read the rows of some ids from the pinned version; see `RowSource`.

        The client asks for every id once, however often the batch repeats it.
        """
        kind = self._kinds[table]
        left_s = None if deadline is None else deadline - time.monotonic()
        dtype = np.float32 if kind is None else np.uint8
        found = self._clients[table].seek(ids, pin=pin, dtype=dtype, timeout_s=left_s)
        values = found.values
        if kind is not None and values.shape[1] == kind.row_bytes:
            values = _numbers(values, kind)
        elif kind is not None:
            if found.found.any():
                raise IntegrityError(
                    f"rows of table {table!r} have {values.shape[1]} bytes, the bundle says {kind.row_bytes}"
                )
            values = np.zeros((len(ids), kind.dim), np.float32)  # no row was found, so no answer has their width
        defaulted = int(np.count_nonzero(found.defaulted))
        missing = len(ids) - int(np.count_nonzero(found.found)) - defaulted
        return FoundRows(values, missing=missing, defaulted=found.defaulted if defaulted else None)

    def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            client.close()


def _kind(bundle: Bundle, table: str) -> RowType | None:
    rows = bundle.sparse.get(table)
    return None if rows is None else rows.kind


def _numbers(rows: NDArray[np.uint8], kind: RowType) -> NDArray[np.float32]:
    """Decode rows as servers hold them: one run of bytes each, an int8 row's scale behind its values."""
    if not kind.has_scale:
        return rows.view(kind.dtype).astype(np.float32, copy=False)
    values: NDArray[Any] = rows[:, : kind.dim].view(kind.dtype)
    scale: NDArray[np.float32] = np.ascontiguousarray(rows[:, kind.dim :]).view(_SCALE)
    return values.astype(np.float32) * scale
