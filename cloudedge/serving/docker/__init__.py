"""Services in Docker containers: cloudedge's runtime or stock Paddle Serving, replaced without downtime."""

from cloudedge._lazy import renamed_names
from cloudedge.serving.docker._containers import Containers
from cloudedge.serving.docker._service import DockerService, own_runtime, stock_runtime
from cloudedge.serving.docker._service_plan import Found, ServiceStep, WantedService, plan_run, plan_stop

__all__ = [
    "Containers",
    "DockerService",
    "Found",
    "ServiceStep",
    "WantedService",
    "own_runtime",
    "plan_run",
    "plan_stop",
    "stock_runtime",
]

__getattr__ = renamed_names(
    __name__, {"Step": "cloudedge.serving.docker.ServiceStep", "Wanted": "cloudedge.serving.docker.WantedService"}
)
