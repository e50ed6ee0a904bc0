"""The supervisor as a process: ``python -m cloudedge.release.local FOLDER``."""

import sys
from pathlib import Path

from cloudedge.release.local._supervisor import Supervisor

Supervisor(Path(sys.argv[1])).run()
