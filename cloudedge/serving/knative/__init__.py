"""Paddle Serving on Knative through PaddleService: what it is told, and the order that keeps it answering."""

from cloudedge.serving.knative._service import Autoscale, Endpoint, PaddleService
from cloudedge.serving.knative._services import PaddleServices, ServiceStatus

__all__ = ["Autoscale", "Endpoint", "PaddleService", "PaddleServices", "ServiceStatus"]
