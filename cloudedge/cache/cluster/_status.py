"""The state of a SampleSet or SampleJob, read from its terse status and completed from events."""

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
    """The state of a data set; sizes in bytes, None while unknown."""

    name: str
    phase: str
    total_bytes: int | None = None
    total_files: int | None = None
    cached_bytes: int | None = None
    available_bytes: int | None = None
    runtime: str = ""
    """Ready runtime pods and their number: 1/2."""
    created: str = ""
    error: str = ""
    """The runtime's error message about its caches."""
    why: str = ""
    """The reason it waits, from its phase and from warnings about it."""

    @property
    def is_ready(self) -> bool:
        """True if it can be used."""
        return self.phase == "Ready"

    @property
    def has_failed(self) -> bool:
        """True if waiting is useless."""
        return self.phase == _FAILED

    @property
    def cached_ratio(self) -> float | None:
        """The cached share of it, from 0 to 1."""
        if not self.total_bytes or self.cached_bytes is None:
            return None
        return min(1.0, self.cached_bytes / self.total_bytes)


@dataclass(frozen=True)
class JobStatus:
    """The state of a SampleJob."""

    name: str
    phase: str
    why: str = ""

    @property
    def is_done(self) -> bool:
        """True if it succeeded."""
        return self.phase == "Succeeded"

    @property
    def has_failed(self) -> bool:
        """True if it failed."""
        return self.phase == "Failed"


def parse_size(text: str) -> int:
    """Return the bytes of a size such as ``4.2 GiB``, as the resource writes it.

    Raises:
        InputError: the text is not a size.
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
        warnings: The cluster's warnings about it, the newest last.
        pods: The problems of its runtime pods, the newest last.
    """
    status = obj.get("status") or {}
    cache = status.get("cacheStatus") or {}
    phase = status.get("phase", "")
    runtime = (status.get("runtimeStatus") or {}).get("runtimeReady", "")
    meaning = _PHASES.get(phase, f"in an undocumented phase: {phase}")
    # Earlier warnings count until its runtime is up; after that, only the current problems of its pods.
    problems = {"Ready": (), "Syncing": (), "PartialReady": pods}.get(phase, [*pods, *warnings])
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
        why=f"{meaning}: {problems[-1]}" if problems else meaning,
    )


def read_job(obj: Mapping[str, Any], warnings: Sequence[str] = ()) -> JobStatus:
    """Read a SampleJob; an empty phase for more than half a minute is a mistake that only events report."""
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
