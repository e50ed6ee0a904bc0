"""The guard ends a run's processes even in other sessions: the launcher gives each worker its own.

It is also a program, started by its path so that it imports nothing else. It waits until its standard input closes and
then ends the launcher and all processes below it, unless it read a byte first: the sign of a regular end.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

__all__ = ["end_below"]


def end_below(pid: int, *, spare: Collection[int] = ()) -> None:
    """Kill every process below a process."""
    for each in _below(pid, spare):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(each, signal.SIGKILL)


def _below(pid: int, spare: Collection[int]) -> list[int]:
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found: list[int] = []
    todo = [pid]
    while todo:
        below = [each for each in children.get(todo.pop(), []) if each not in spare]
        found += below
        todo += below
    return found


if __name__ == "__main__":
    launcher = int(sys.argv[1])
    if not sys.stdin.buffer.read():
        # Stop the launcher first, so that it starts nothing while its processes are collected.
        with suppress(ProcessLookupError):
            os.kill(launcher, signal.SIGSTOP)
            end_below(launcher)
            os.kill(launcher, signal.SIGKILL)
