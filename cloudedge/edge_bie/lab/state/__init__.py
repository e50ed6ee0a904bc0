"""The lab's state: objects in memory and on disk, their JSON types, label selectors, and the API's errors."""

from __future__ import annotations

from cloudedge.edge_bie.lab.state import json_types, selectors
from cloudedge.edge_bie.lab.state._errors import ApiError, in_use, invalid, not_found, reserved, taken, too_large
from cloudedge.edge_bie.lab.state._state import APP_MODE, HIDDEN_LABELS, NODE_NAME, SYSTEM, LabState, check_name

__all__ = [
    "APP_MODE",
    "HIDDEN_LABELS",
    "NODE_NAME",
    "SYSTEM",
    "ApiError",
    "LabState",
    "check_name",
    "in_use",
    "invalid",
    "json_types",
    "not_found",
    "reserved",
    "selectors",
    "taken",
    "too_large",
]
