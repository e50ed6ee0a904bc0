"""What is told of requests while they are answered, in every protocol: lines of the access log, and spans."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import orjson

from cloudedge.serving.protocols._traces import Traces

__all__ = ["Asked", "Outcome", "Watch"]

_access = logging.getLogger("cloudedge.serving.access")
_Answer = TypeVar("_Answer")
_LONGEST_PATH = 200


@dataclass(frozen=True)
class Asked:
    """A request, as a log has it."""

    method: str
    """HTTP's, or the protocol's name."""
    path: str
    received: int
    """Bytes of its body."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Where the caller's span may be named."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """Of its span."""


@dataclass(frozen=True)
class Outcome:
    """What became of a request."""

    status: int | str
    """0 is well in baidu_std, OK in gRPC, 200 in HTTP."""
    pin: str = ""
    sent: int = 0
    has_failed: bool = False
    """Whether that was the server's fault."""
    attribute: str = "rpc.response.status_code"
    """What a span calls the status."""


class Watch:
    """Watches requests.

    Args:
        access_log: Share of requests that are logged, one JSON line each.
        traces: Makes spans of predictions.
    """

    def __init__(self, access_log: float = 0.0, traces: Traces | None = None) -> None:
        self._access_log = access_log
        self._traces = traces
        self.is_off = not access_log and traces is None
        """Whether nobody wants to know, and requests need not be described."""

    async def around(
        self, asked: Asked, answering: Coroutine[Any, Any, _Answer], outcome: Callable[[_Answer | None], Outcome]
    ) -> _Answer:
        """Answer a request and tell how it went.

        Args:
            asked: The request.
            answering: Answers it.
            outcome: Says what became of it, given the answer, or None if there was an exception instead.
        """
        begin = time.monotonic()
        is_logged = self._access_log and random.random() < self._access_log  # noqa: S311 - a share, not a secret
        name = f"{asked.method} {asked.path}"
        span = self._traces and self._traces.begin(name, asked.headers, asked.attributes)
        answer = None
        try:
            answer = await answering
            return answer
        finally:
            told = outcome(answer)
            if self._traces is not None:
                found = {told.attribute: told.status, "cloudedge.pin": told.pin}
                self._traces.end(span, found, has_failed=told.has_failed)
            if is_logged:
                took_ms = round((time.monotonic() - begin) * 1e3, 3)
                path = asked.path[:_LONGEST_PATH]
                line = {"method": asked.method, "path": path, "status": told.status, "pin": told.pin}
                line |= {"received": asked.received, "sent": told.sent}
                _access.info("%s", orjson.dumps({**line, "ms": took_ms}).decode())
