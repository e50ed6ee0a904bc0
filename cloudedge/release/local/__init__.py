"""The local kind of target: a release's places as processes on this machine, supervised."""

from cloudedge.release.local._local_target import down, layout_of, layouts, places, serving_urls, target_folder, up
from cloudedge.supervisor import find_processes, is_up, process_states

__all__ = [
    "down",
    "find_processes",
    "is_up",
    "layout_of",
    "layouts",
    "places",
    "process_states",
    "serving_urls",
    "target_folder",
    "up",
]
