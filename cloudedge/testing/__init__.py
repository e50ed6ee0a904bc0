"""The simulator and its parts, public so that others can test what they build on releases.

`simulate` tells many seeds' stories; `run_seed` tells one, with a trace. `World`, `SimPlace`, `SimShelf` and `Clients`
are the parts, for stories of your own. `FolderPlace` is a place that keeps real bytes in a folder.
"""

from cloudedge.testing._folder import FolderPlace
from cloudedge.testing._requests import Clients
from cloudedge.testing._scenario import Result, run_seed
from cloudedge.testing._simulate import Report, simulate
from cloudedge.testing._simulated_places import SimPlace
from cloudedge.testing._simulated_world import FAULTS, Killed, SimClock, SimJournal, Violation, World
from cloudedge.testing._target_parts import SimLayouts, SimShelf, sim_target, sim_version

__all__ = [
    "FAULTS",
    "Clients",
    "FolderPlace",
    "Killed",
    "Report",
    "Result",
    "SimClock",
    "SimJournal",
    "SimLayouts",
    "SimPlace",
    "SimShelf",
    "Violation",
    "World",
    "run_seed",
    "sim_target",
    "sim_version",
    "simulate",
]
