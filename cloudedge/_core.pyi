"""Types of the compiled half; the sources are in native/."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Keys: TypeAlias = NDArray[np.uint64]
Columns: TypeAlias = Sequence[NDArray[np.uint8]]

def checksum(keys: Keys, columns: Columns) -> tuple[int, int]: ...
def first_disorder(keys: Keys, before: int = 0, has_before: bool = False) -> int: ...
def diff(
    before_keys: Keys, before_columns: Columns, after_keys: Keys, after_columns: Columns
) -> tuple[Keys, Keys, Keys]: ...
def merged_size(base: Keys, keys: Keys, removed: Keys) -> int: ...
def merge(
    base_keys: Keys,
    base_columns: Columns,
    keys: Keys,
    columns: Columns,
    removed: Keys,
    out_keys: Keys,
    out_columns: Columns,
) -> None: ...

# Cube: server, client and load generator.

Rows: TypeAlias = NDArray[np.uint8]

class NotLoaded(Exception): ...
class NameTaken(Exception): ...

class Version:
    @property
    def name(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...

def memory_version(name: str, keys: Keys, values: Rows) -> Version: ...

class CubeServer:
    def __init__(
        self,
        *,
        loader: Callable[[str, str], Version],
        patch_loader: Callable[[Version, str, str], Version],
        host: str,
        port: int,
        threads: int,
        data_dir: str,
        remote_control: bool,
        max_body: int,
        max_keys: int,
        max_connections: int,
        idle_ms: int,
        message_ms: int,
        write_ms: int,
        held_bytes: int,
    ) -> None: ...
    def start(self) -> None: ...
    @property
    def port(self) -> int: ...
    @property
    def draining(self) -> bool: ...
    def add(self, version: Version) -> None: ...
    def load(self, path: str, name: str) -> None: ...
    def patch(self, base: str, path: str, name: str) -> None: ...
    def activate(self, name: str) -> None: ...
    def unload(self, name: str) -> None: ...
    def active(self) -> str | None: ...
    def versions(self) -> list[tuple[str, int, int, tuple[int, int]]]: ...
    def stats(self) -> dict[str, Any]: ...
    def drain(self, within_ms: int) -> None: ...
    def stop(self) -> None: ...

ShardOutcome: TypeAlias = tuple[int, int, bool, str, list[tuple[str, str, int]]]

class CubeClient:
    def __init__(
        self,
        *,
        shards: Sequence[Sequence[tuple[str, int]]],
        timeout_ms: int,
        connect_timeout_ms: int,
        retry: int,
        backup_ms: int,
        least_loaded: bool,
        max_idle: int,
    ) -> None: ...
    def seek(
        self, keys: Keys, pin: str | None, width: int | None
    ) -> tuple[Rows | None, Rows | None, list[ShardOutcome], tuple[int, int, int] | None]: ...
    def time_seek(self, keys: Keys, rounds: int) -> float: ...

def generate_load(
    *,
    peer: str,
    host: str,
    port: int,
    connections: int,
    batch: int,
    key_space: int,
    value_bytes: int,
    seconds: float,
    warmup_seconds: float,
    seed: int,
    pin: str | None,
) -> dict[str, Any]: ...
def fill_redis(host: str, port: int, keys: Keys, values: Rows) -> None: ...
def run_echo_server(host: str, port: int, response_bytes: int, ready: Callable[[int], None]) -> None: ...
