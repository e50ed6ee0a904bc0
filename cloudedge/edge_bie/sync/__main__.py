"""``python -m cloudedge.edge_bie.sync plan FOLDER``: the same as ``cloudedge bie plan FOLDER``."""

from __future__ import annotations

import os
import sys

__all__: list[str] = []

if __name__ == "__main__":
    # The command line is a layer above; running it as a new process keeps it there.
    os.execv(sys.executable, [sys.executable, "-m", "cloudedge", "bie", *sys.argv[1:]])  # noqa: S606 - no shell
