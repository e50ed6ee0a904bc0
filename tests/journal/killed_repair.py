"""A repair or a backup in a process of its own, which dies by SIGKILL at the call it is told to.

Arguments: what to do, the journal, and after how many calls that change the folder it dies.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from cloudedge.journal import Journal, repair_journal

what, path, die_at = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
left = die_at


def watch(event, args):
    global left  # noqa: PLW0603 - one process, one count
    if event in ("os.rename", "os.link", "os.remove", "sqlite3.connect") and str(path.parent) in str(args):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


sys.addaudithook(watch)
if what == "repair":
    repair_journal(path)
else:
    with Journal(path) as journal, journal.writing("ann") as writer:
        writer.remember("more", True)
