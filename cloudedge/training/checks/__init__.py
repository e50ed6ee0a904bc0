"""Rules for a job's manifest, checked before the job is submitted."""

from __future__ import annotations

from cloudedge.training.checks._paddle import check_paddle_job
from cloudedge.training.checks._volcano import check_volcano_job

__all__ = ["check_paddle_job", "check_volcano_job"]
