"""What a SampleSet or SampleJob is up to, read from a status that says little and from events that say the rest."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cloudedge.errors import InputError

__all__ = ["JobStatus", "SampleSetStatus", "parse_size", "read_job", "read_sample_set"]

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGTPE]i)?B")
_PHASES: Mapping[str, str] = {
    "": "its volume is being made",
    "Bound": "its runtime pods are starting",
    "Mount": "about to copy from the source, or just done",
    "Syncing": "copying from the source",
    "SyncFailed": "the copy failed",
    "PartialReady": "some runtime pods are still starting; a normal step on the way to Ready, unless it lasts",
    "Ready": "usable",
}
_FAILED = "SyncFailed"


@dataclass(frozen=True)
class SampleSetStatus:
    """A data set as people ask for it; sizes in bytes, None where nothing is known yet."""

    name: str
    phase: str
    total_bytes: int | None = None
    total_files: int | None = None
    cached_bytes: int | None = None
    available_bytes: int | None = None
    runtime: str = ""
    """Runtime pods that are ready, of how many: 1/2."""
    created: str = ""
    error: str = ""
    """What the runtime wrote about its caches."""
    why: str = ""
    """What it waits for, from its phase and from warnings about it."""

    @property
    def is_ready(self) -> bool:
        """Whether it can be used."""
        return self.phase == "Ready"

    @property
    def has_failed(self) -> bool:
        """Whether waiting is of no use."""
        return self.phase == _FAILED

    @property
    def cached_ratio(self) -> float | None:
        """How much of it is in the caches, from 0 to 1."""
        if not self.total_bytes or self.cached_bytes is None:
            return None
        return min(1.0, self.cached_bytes / self.total_bytes)


@dataclass(frozen=True)
class JobStatus:
    """A SampleJob as people ask for it."""

    name: str
    phase: str
    why: str = ""

    @property
    def is_done(self) -> bool:
        """Whether it did what it should."""
        return self.phase == "Succeeded"

    @property
    def has_failed(self) -> bool:
        """Whether it ended without."""
        return self.phase == "Failed"


def parse_size(text: str) -> int:
    """Return the bytes of a size such as ``4.2 GiB``, as the resource writes it.

    Raises:
        InputError: it is none.
    """
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise InputError(f"{text!r} is not a size such as 4.2 GiB")
    factor: int = 1024 ** _UNITS.index(f"{found[2] or ''}B")
    return round(float(found[1]) * factor)


def read_sample_set(obj: Mapping[str, Any], warnings: Sequence[str] = (), pods: Sequence[str] = ()) -> SampleSetStatus:
    """Read a SampleSet.

    Args:
        obj: The object.
        warnings: What the cluster wrote down about it, the newest last.
        pods: What keeps its runtime pods from getting ready, the newest last.
    """
    status = obj.get("status") or {}
    cache = status.get("cacheStatus") or {}
    phase = status.get("phase", "")
    runtime = (status.get("runtimeStatus") or {}).get("runtimeReady", "")
    meaning = _PHASES.get(phase, f"in a phase nobody documented: {phase}")
    # Warnings of before count until its runtime is up; from then on only what its pods have to say now.
    told = {"Ready": (), "Syncing": (), "PartialReady": pods}.get(phase, [*pods, *warnings])
    return SampleSetStatus(
        name=obj["metadata"]["name"],
        phase=phase,
        total_bytes=_size(cache.get("totalSize")),
        total_files=_count(cache.get("totalFiles")),
        cached_bytes=_size(cache.get("cachedSize")),
        available_bytes=_size(cache.get("diskAvail")),
        runtime=runtime,
        created=obj["metadata"].get("creationTimestamp", ""),
        error=cache.get("errorMassage", ""),  # so spelt in the resource
        why=f"{meaning}: {told[-1]}" if told else meaning,
    )


def read_job(obj: Mapping[str, Any], warnings: Sequence[str] = ()) -> JobStatus:
    """Read a SampleJob; an empty phase for more than half a minute is a mistake that only events tell of."""
    phase = (obj.get("status") or {}).get("phase", "")
    return JobStatus(obj["metadata"]["name"], phase, warnings[-1] if warnings and phase in ("", "Failed") else "")


def _size(text: str | None) -> int | None:
    try:
        return parse_size(text) if text else None
    except InputError:
        return None


def _count(text: str | None) -> int | None:
    digits = (text or "").replace(",", "")
    return int(digits) if digits.isdecimal() else None
