"""Training jobs on a cluster: check, submit, watch."""

from __future__ import annotations

from cloudedge.training.cluster._run import Run, attach, list_runs
from cloudedge.training.cluster._submit import Submission, carry_out, plan_submit, submit

__all__ = ["Run", "Submission", "attach", "carry_out", "list_runs", "plan_submit", "submit"]
