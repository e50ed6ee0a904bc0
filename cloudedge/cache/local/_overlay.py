"""Overlay mounts: warm files as plain files over a volume, so that they are read at the speed of the local disk.

A file system in user space costs a small file several process switches, which is more than reading it from a disk
takes. The kernel's own overlay has no such cost. But only root may mount one, and the layers must not change while it
is mounted: code that changes them unmounts the overlay first.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from cloudedge.errors import Conflict, Rejected

__all__ = ["can_overlay", "is_mounted", "mount_overlay", "unmount_overlay"]

_SHORT_S = 60.0
_BUSY = 32
"""The exit code of `umount` when a process has a file open."""


def can_overlay() -> bool:
    """Return whether this process may mount an overlay."""
    return os.geteuid() == 0 and "\toverlay\n" in Path("/proc/filesystems").read_text(encoding="ascii")


def is_mounted(point: Path) -> bool:
    """Return whether anything is mounted at a path."""
    # Not os.path.ismount: it raises for a mount whose process died.
    with Path("/proc/self/mounts").open(encoding="utf-8") as mounts:
        return any(line.split(" ", 2)[1] == str(point) for line in mounts)


def mount_overlay(files: Path, volume: Path, point: Path) -> None:
    """Mount a volume at `point`, read-only, with files over it.

    Raises:
        Rejected: the kernel refuses it.
    """
    if is_mounted(point):
        return
    for folder in (files, point):
        folder.mkdir(parents=True, exist_ok=True)
    layers = f"ro,lowerdir={_escaped(files)}:{_escaped(volume)}"
    done = _run("mount", "-t", "overlay", "cloudedge", "-o", layers, str(point))
    if done.returncode:
        raise Rejected(f"mounting {files} over {volume}: {done.stderr.strip()}")


def unmount_overlay(point: Path) -> bool:
    """Unmount an overlay; return whether there was one.

    Raises:
        Conflict: a process reads it.
    """
    if not is_mounted(point):
        return False
    done = _run("umount", str(point))
    if done.returncode == _BUSY:
        raise Conflict(f"a process reads {point}", hint="Try again when its readers have ended.", path=str(point))
    if done.returncode:
        raise Rejected(f"unmounting {point}: {done.stderr.strip()}")
    return True


def _escaped(path: Path) -> str:
    return str(path).replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=_SHORT_S, check=False)
