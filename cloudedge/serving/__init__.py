"""Serving: bundles behind Paddle Serving's interfaces, on today's Paddle, several versions at once."""

from cloudedge.serving._client import Client, Prediction
from cloudedge.serving._engine import Answer, Call, Engine
from cloudedge.serving._ops import Op, RequestOp, WebService, load_ops

__all__ = ["Answer", "Call", "Client", "Engine", "Op", "Prediction", "RequestOp", "WebService", "load_ops"]
