"""Clients of a serving replica and of Paddle Serving's own servers, one transport for each protocol."""

from __future__ import annotations

from cloudedge.io import EndpointPolicy
from cloudedge.serving.client._client import Client, EndpointState, Prediction

__all__ = ["Client", "EndpointPolicy", "EndpointState", "Prediction"]
