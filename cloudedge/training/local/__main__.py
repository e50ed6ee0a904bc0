"""The keeper process: ``python -m cloudedge.training.local FOLDER``."""

import sys
from pathlib import Path

from cloudedge.training.local._keeper import Keeper

Keeper(Path(sys.argv[1])).run()
