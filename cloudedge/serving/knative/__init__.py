"""Paddle Serving on Knative through PaddleService: its manifest, its status, and changes that keep it answering."""

from cloudedge.serving.knative._parts import Autoscale, Endpoint
from cloudedge.serving.knative._service import PaddleService
from cloudedge.serving.knative._services import PaddleServices
from cloudedge.serving.knative._status import ServiceStatus

__all__ = ["Autoscale", "Endpoint", "PaddleService", "PaddleServices", "ServiceStatus"]
