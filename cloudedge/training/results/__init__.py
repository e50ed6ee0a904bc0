"""Results of a training job: its state, the reasons for a delay, and its outputs."""

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
