"""The memory that this process may still take."""

from __future__ import annotations

from pathlib import Path

__all__ = ["free_memory_bytes"]

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def free_memory_bytes(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int | None:
    """Return the memory that the machine, or a tighter container limit, leaves; None if the kernel reports neither."""
    known = [each for each in (_available(meminfo), _left_in(cgroup)) if each is not None]
    return min(known) if known else None


def _available(meminfo: Path) -> int | None:
    try:
        lines = meminfo.read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def _left_in(cgroup: Path) -> int | None:
    try:
        limit, used = ((cgroup / name).read_text(encoding="ascii").strip() for name in ("memory.max", "memory.current"))
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text(encoding="ascii").splitlines())
        # Pages of files that no process writes to are given up before a limit hurts.
        return None if limit == "max" else max(0, int(limit) - int(used) + int(stat.get("inactive_file", 0)))
    except (OSError, ValueError):
        return None
