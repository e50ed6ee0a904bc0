"""The example's own modules, imported as its script imports them."""

import sys

from tests import ROOT

sys.path.insert(0, str(ROOT / "examples" / "yolov3"))
