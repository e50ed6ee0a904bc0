"""Plain files laid over a volume: what was warmed up is read at the speed of the disk it lies on, the rest from below.

A file system in user space costs a small file several changes of process, which is more than reading it from a disk
takes. The kernel's own overlay costs nothing of the kind, but only root may mount one, and what lies below must not
change while it is mounted: whoever changes it lifts it first.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from cloudedge.errors import Conflict, Rejected

__all__ = ["can_overlay", "is_mounted", "lay", "lift"]

_SHORT_S = 60.0
_BUSY = 32
"""How `umount` ends when somebody has a file open."""


def can_overlay() -> bool:
    """Tell whether this process may lay files over a volume."""
    return os.geteuid() == 0 and "\toverlay\n" in Path("/proc/filesystems").read_text(encoding="ascii")


def is_mounted(point: Path) -> bool:
    """Tell whether something is mounted there."""
    # Not os.path.ismount: a mount whose process died raises there instead of saying so.
    with Path("/proc/self/mounts").open(encoding="utf-8") as mounts:
        return any(line.split(" ", 2)[1] == str(point) for line in mounts)


def lay(files: Path, volume: Path, point: Path) -> None:
    """Show a volume at `point`, with files laid over it; read-only.

    Raises:
        Rejected: the kernel does not do it.
    """
    if is_mounted(point):
        return
    for folder in (files, point):
        folder.mkdir(parents=True, exist_ok=True)
    layers = f"ro,lowerdir={_escaped(files)}:{_escaped(volume)}"
    done = _run("mount", "-t", "overlay", "cloudedge", "-o", layers, str(point))
    if done.returncode:
        raise Rejected(f"laying {files} over {volume}: {done.stderr.strip()}")


def lift(point: Path) -> bool:
    """Take away what `lay` mounted; tell whether there was anything.

    Raises:
        Conflict: somebody reads it.
    """
    if not is_mounted(point):
        return False
    done = _run("umount", str(point))
    if done.returncode == _BUSY:
        raise Conflict(f"{point} is being read", hint="Try again when its readers have ended.", path=str(point))
    if done.returncode:
        raise Rejected(f"unmounting {point}: {done.stderr.strip()}")
    return True


def _escaped(path: Path) -> str:
    return str(path).replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=_SHORT_S, check=False)
