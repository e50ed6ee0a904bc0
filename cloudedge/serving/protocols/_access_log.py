"""Observation of requests in every protocol: lines of the access log, and spans for traces."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import orjson

from cloudedge.serving.protocols._traces import Traces

__all__ = ["Outcome", "RequestObserver", "RequestRecord"]

_access = logging.getLogger("cloudedge.serving.access")
_Answer = TypeVar("_Answer")
_LONGEST_PATH = 200


@dataclass(frozen=True)
class RequestRecord:
    """A request as the access log describes it."""

    method: str
    """The HTTP method, or the protocol's name."""
    path: str
    received: int
    """Bytes of its body."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers that may name the caller's span."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """Attributes of its span."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a request."""

    status: int | str
    """Success is 0 in baidu_std, OK in gRPC, 200 in HTTP."""
    pin: str = ""
    sent: int = 0
    has_failed: bool = False
    """The failure is the server's."""
    attribute: str = "rpc.response.status_code"
    """The span attribute of the status."""


class RequestObserver:
    """Logs and traces requests.

    Args:
        access_log: Share of requests to log, one JSON line each.
        traces: Makes spans of predictions.
    """

    def __init__(self, access_log: float = 0.0, traces: Traces | None = None) -> None:
        self._access_log = access_log
        self._traces = traces
        self.is_off = not access_log and traces is None
        """Neither log nor traces are on, and requests need no description."""

    async def observe(
        self,
        request: RequestRecord,
        answering: Coroutine[Any, Any, _Answer],
        outcome_of: Callable[[_Answer | None], Outcome],
    ) -> _Answer:
        """Answer a request, then log and trace its outcome.

        Args:
            request: The request.
            answering: Answers it.
            outcome_of: Returns the outcome of an answer, or of None if there was an exception instead.
        """
        begin = time.monotonic()
        is_logged = self._access_log and random.random() < self._access_log  # noqa: S311 - a share, not a secret
        name = f"{request.method} {request.path}"
        span = self._traces and self._traces.begin(name, request.headers, request.attributes)
        answer = None
        try:
            answer = await answering
            return answer
        finally:
            outcome = outcome_of(answer)
            if self._traces is not None:
                attributes = {outcome.attribute: outcome.status, "cloudedge.pin": outcome.pin}
                self._traces.end(span, attributes, has_failed=outcome.has_failed)
            if is_logged:
                took_ms = round((time.monotonic() - begin) * 1e3, 3)
                path = request.path[:_LONGEST_PATH]
                line = {"method": request.method, "path": path, "status": outcome.status, "pin": outcome.pin}
                line |= {"received": request.received, "sent": outcome.sent}
                _access.info("%s", orjson.dumps({**line, "ms": took_ms}).decode())
