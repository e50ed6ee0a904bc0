"""The example's own modules, imported as its script imports them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "yolov3"))
