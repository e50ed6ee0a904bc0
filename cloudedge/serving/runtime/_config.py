"""The settings of a runtime, and its description of a version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cloudedge.errors import ConfigError

__all__ = ["RuntimeConfig", "VersionInfo"]


@dataclass(frozen=True)
class RuntimeConfig:
    """The limits that versions run within. Immutable; checked when made."""

    workers: int = 0
    """Threads that run models; 0: one for each core this process may use."""
    max_rows: int = 1024
    """Most rows in one request."""
    max_input_bytes: int = 256 << 20
    """Most bytes of one request's arrays, and of one run's, the rows looked up for their ids included."""
    max_batch_rows: int = 256
    """Most rows in one run of a model."""
    batch_budget_s: float = 0.02
    """Longest time of one run, as measured when a version is loaded. A batch may exceed it only up to 1.5 times the
    time of one row."""
    max_queue_rows: int = 16_384
    """Most rows waiting for one version; further requests are refused."""
    max_queue_bytes: int = 512 << 20
    """Most bytes waiting for one version, the rows to look up included; further requests are refused."""
    max_wait_s: float = 1.0
    """Longest estimated wait; requests that would wait longer are refused at once."""
    inline_below_s: float | None = None
    """Models that take less for one row run on the thread that reads requests: handing them to another costs more.
    None: 1 ms on one core, which the reader and its clients fill anyway, 0.1 ms on more."""
    unload_wait_s: float = 60.0
    """Longest wait for the last requests of a version that is unloaded."""

    def __post_init__(self) -> None:
        if self.workers < 0:
            raise ConfigError(f"workers must not be below 0, not {self.workers}")
        for name, value in vars(self).items():
            if name not in ("workers", "inline_below_s") and value <= 0:
                raise ConfigError(f"{name} must be above 0, not {value}")


@dataclass(frozen=True)
class VersionInfo:
    """The description of a version."""

    pin: str
    name: str
    bundle: str
    """Name and digest."""
    version: str
    state: str
    """``queued``, ``loading``, ``ready``, ``unloading`` or ``failed``."""
    active: bool = False
    error: str = ""
    probes: int = 0
    probes_failed: tuple[str, ...] = ()
    pending: int = 0
    """Requests under way."""
    threads: int = 0
    max_batch_rows: int = 0
    run_us: float = 0.0
    """Time of one row, measured when the version was loaded."""
    memory_bytes: int = 0
    """StateFile of the loaded version, estimated from its files."""
    inline: bool = False
    tables: Mapping[str, str] = field(default_factory=dict)
    """The names of its tables in the source of rows, where they differ from its own."""
