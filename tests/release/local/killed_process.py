"""cloudedge as a process that dies by SIGKILL a moment after the journal write it is told to.

Environment: DIE_AT, which write; DIE_AFTER_MS, how long after it, so that it dies in the middle of what follows.
"""

from __future__ import annotations

import os
import signal
import threading

from cloudedge.cli import main
from cloudedge.journal import Journal

left = int(os.environ["DIE_AT"])
after_s = float(os.environ.get("DIE_AFTER_MS", "0")) / 1000
write = Journal._write


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def dying(self, sql, *values):
    global left  # noqa: PLW0603 - one process, one count
    number = write(self, sql, *values)
    left -= 1
    if left == 0 and after_s:
        threading.Timer(after_s, die).start()
    elif left == 0:
        die()
    return number


Journal._write = dying
main()
