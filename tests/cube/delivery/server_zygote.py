"""A process that runs `cloudedge` in children of its own, so that starting a server costs a fork and not an import.

Reads lines of JSON, {"argv": [...], "out": PATH}; says the child's pid. When its input ends, so do its children.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys

import requests  # noqa: F401 - imported where it is used; here, once for all children

from cloudedge.cli import main as cloudedge_main
from cloudedge.cube.server import _admin_api as _admin  # noqa: F401


def child(job: dict) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    out = os.open(job["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    nothing = os.open(os.devnull, os.O_RDWR)
    for target, source in ((0, nothing), (1, out), (2, nothing)):
        os.dup2(source, target)
    sys.argv = ["cloudedge", *job["argv"]]
    try:
        cloudedge_main()
    finally:
        os._exit(1)


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    children = []
    for line in sys.stdin:
        job = json.loads(line)
        pid = os.fork()
        if pid == 0:
            child(job)
        children.append(pid)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
