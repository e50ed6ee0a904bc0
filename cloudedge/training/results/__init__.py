"""The state of a training job, why it is not further, and what it made."""

from __future__ import annotations

from cloudedge.training.results._errors import TrainingFailed
from cloudedge.training.results._outputs import Outputs, lineage_of
from cloudedge.training.results._status import Debounce, JobStatus, RoleStatus, State, role_of, status_of

__all__ = [
    "Debounce",
    "JobStatus",
    "Outputs",
    "RoleStatus",
    "State",
    "TrainingFailed",
    "lineage_of",
    "role_of",
    "status_of",
]
