"""The simulator and its parts, public for tests of what is built on releases.

`simulate` runs many seeds; `run_seed` runs one, with a trace. `SimulatedWorld`, `SimPlace`, `SimBundleSource` and
`Clients` are the parts, for scenarios of your own. `FolderPlace` is a place that keeps real bytes in a folder.
"""

from cloudedge._lazy import renamed_names
from cloudedge.testing._folder import FolderPlace
from cloudedge.testing._requests import Clients
from cloudedge.testing._scenario import Result, run_seed
from cloudedge.testing._simulate import Report, simulate
from cloudedge.testing._simulated_places import SimPlace
from cloudedge.testing._simulated_world import FAULTS, Killed, SimClock, SimJournal, SimulatedWorld, Violation
from cloudedge.testing._target_parts import SimBundleSource, SimLayouts, sim_target, sim_version

__all__ = [
    "FAULTS",
    "Clients",
    "FolderPlace",
    "Killed",
    "Report",
    "Result",
    "SimBundleSource",
    "SimClock",
    "SimJournal",
    "SimLayouts",
    "SimPlace",
    "SimulatedWorld",
    "Violation",
    "run_seed",
    "sim_target",
    "sim_version",
    "simulate",
]

__getattr__ = renamed_names(
    __name__, {"SimShelf": "cloudedge.testing.SimBundleSource", "World": "cloudedge.testing.SimulatedWorld"}
)
