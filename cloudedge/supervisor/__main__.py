"""The supervisor as a process: ``python -m cloudedge.supervisor FOLDER``."""

import sys
from pathlib import Path

from cloudedge.supervisor._supervisor import Supervisor

Supervisor(Path(sys.argv[1])).run()
