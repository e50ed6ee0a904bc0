"""The process supervisor of local targets and edge nodes: a process of its own that keeps others running."""

from cloudedge.supervisor._files import write_json, write_text
from cloudedge.supervisor._lifecycle import change, down, has_read, is_up, log_tail, process_states, restart, tell, up
from cloudedge.supervisor._supervisor import (
    MARK,
    ProcessSpec,
    Supervisor,
    find_processes,
    pause_before_restart,
    read_specs,
    save_specs,
    specs_digest,
)

__all__ = [
    "MARK",
    "ProcessSpec",
    "Supervisor",
    "change",
    "down",
    "find_processes",
    "has_read",
    "is_up",
    "log_tail",
    "pause_before_restart",
    "process_states",
    "read_specs",
    "restart",
    "save_specs",
    "specs_digest",
    "tell",
    "up",
    "write_json",
    "write_text",
]
