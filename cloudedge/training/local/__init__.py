"""Training on this machine through ``paddle.distributed.launch``: no cluster, no image, the same interface."""

from cloudedge.training.local._launch_plan import LocalPlan, plan_local
from cloudedge.training.local._run import LocalRun, LogLine, attach, list_runs
from cloudedge.training.local._submit import plan, submit, supports_servers

__all__ = [
    "LocalPlan",
    "LocalRun",
    "LogLine",
    "attach",
    "list_runs",
    "plan",
    "plan_local",
    "submit",
    "supports_servers",
]
