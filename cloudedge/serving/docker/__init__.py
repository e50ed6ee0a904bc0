"""Services in Docker containers: our runtime or stock Paddle Serving, replaced without a gap."""

from cloudedge.serving.docker._containers import Containers
from cloudedge.serving.docker._service import DockerService, own_runtime, stock_runtime
from cloudedge.serving.docker._service_plan import Found, Step, Wanted, plan_run, plan_stop

__all__ = [
    "Containers",
    "DockerService",
    "Found",
    "Step",
    "Wanted",
    "own_runtime",
    "plan_run",
    "plan_stop",
    "stock_runtime",
]
