"""The local kind of target: a release's places as processes on this machine, supervised."""

from cloudedge.release.local._local import down, layout_of, places, serving_urls, target_folder, up
from cloudedge.release.local._supervisor import find_processes
from cloudedge.release.local._up import is_up, process_states

__all__ = [
    "down",
    "find_processes",
    "is_up",
    "layout_of",
    "places",
    "process_states",
    "serving_urls",
    "target_folder",
    "up",
]
