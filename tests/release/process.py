"""cloudedge as a process of its own, on a target of folders; dies by SIGKILL at the journal write it is told to.

Environment: PLACES, the folder of the places; DIE_AT, which journal write is the last.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from cloudedge.cli import main
from cloudedge.journal import Journal
from cloudedge.release import register_kind
from tests.release.parts import folder_places

left = int(os.environ.get("DIE_AT", "-1"))
write = Journal._write


def dying(self, sql, *values):
    global left  # noqa: PLW0603 - one process, one count
    number = write(self, sql, *values)
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


Journal._write = dying
register_kind("local", lambda name, section: folder_places(Path(os.environ["PLACES"])))
main()
