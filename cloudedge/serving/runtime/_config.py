"""What a runtime is told, and what it tells of its versions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cloudedge.errors import ConfigError

__all__ = ["RuntimeConfig", "VersionInfo"]


@dataclass(frozen=True)
class RuntimeConfig:
    """How versions are run and what they put up with. Immutable; checked when made."""

    workers: int = 0
    """Threads that run models; 0: one for each core this process may use."""
    max_rows: int = 1024
    """In one request."""
    max_input_bytes: int = 256 << 20
    """Of one request's arrays, the rows that are looked up for its ids included, and of one run's."""
    max_batch_rows: int = 256
    """In one run of a model."""
    batch_budget_s: float = 0.02
    """How long one run may take; batches stay below what takes longer, as measured when a version is loaded, and longer
    than 1.5 times one row."""
    max_queue_rows: int = 16_384
    """Waiting for one version; further requests are refused."""
    max_queue_bytes: int = 512 << 20
    """Waiting for one version, the rows that will be looked up included; further requests are refused."""
    max_wait_s: float = 1.0
    """As estimated; requests that would wait longer are refused at once."""
    inline_below_s: float | None = None
    """Models that take less for one row run where requests are read, because handing them to a thread costs more.
    None: 1 ms on one core, which the reader and its clients fill anyway, 0.1 ms on more."""
    unload_wait_s: float = 60.0
    """For the last requests of a version that is unloaded."""

    def __post_init__(self) -> None:
        if self.workers < 0:
            raise ConfigError(f"workers must not be below 0, not {self.workers}")
        for name, value in vars(self).items():
            if name not in ("workers", "inline_below_s") and value <= 0:
                raise ConfigError(f"{name} must be above 0, not {value}")


@dataclass(frozen=True)
class VersionInfo:
    """What is known of a version."""

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
    """One row, as measured when it was loaded."""
    memory_bytes: int = 0
    """What it takes, as estimated from its files, once it is loaded."""
    inline: bool = False
    tables: Mapping[str, str] = field(default_factory=dict)
    """What its source of rows calls its tables, where not by their names."""
