"""What each protocol says when a call fails: one table, so that they all say the same."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from cloudedge.errors import CloudEdgeError, DeadlineExceeded, InputError, NotFound, Overloaded, Rejected, Unavailable
from cloudedge.http1 import HttpAnswer
from cloudedge.serving.engine import ModelFailed, NoneActive
from cloudedge.serving.formats import Malformed

__all__ = ["Fault", "fault_of", "timeout_of", "too_long", "too_long_http"]

_log = logging.getLogger("cloudedge.serving")


@dataclass(frozen=True)
class Fault:
    """A failure in every protocol's own terms."""

    status: int
    """Of HTTP."""
    err_no: int
    """Of the Pipeline service: 3001 closed, 3002 no service, 5000 input, 6000 timeout, 8000 package, 9000 client,
    10000 unknown."""
    grpc: str
    """Name of the gRPC status."""
    rpc: int
    """Error code of baidu_std: upstream's own below zero, brpc's above; brpc clients retry 2004 by themselves."""
    message: str = ""

    @property
    def is_transport(self) -> bool:
        """Whether the call could not be carried out, rather than being a wrong one."""
        return self.status >= TOO_MANY


TOO_MANY = 429
KINDS: tuple[tuple[type[CloudEdgeError], Fault], ...] = (
    (Malformed, Fault(400, 8000, "INVALID_ARGUMENT", -5100)),
    (InputError, Fault(400, 5000, "INVALID_ARGUMENT", -5100)),
    (Rejected, Fault(403, 5000, "PERMISSION_DENIED", -5100)),
    (NotFound, Fault(404, 3002, "NOT_FOUND", -5100)),
    (Overloaded, Fault(429, 6000, "RESOURCE_EXHAUSTED", 2004)),
    (DeadlineExceeded, Fault(504, 6000, "DEADLINE_EXCEEDED", 1008)),
    (NoneActive, Fault(503, 3001, "UNAVAILABLE", -5000)),
    (ModelFailed, Fault(500, 10000, "INTERNAL", -5000, "the model failed on the server, whose log says why")),
    # Its own message names shards and addresses, which callers have no business with.
    (Unavailable, Fault(503, 9000, "UNAVAILABLE", -5000, "rows this call needs could not be had; try again")),
)
UNKNOWN = Fault(500, 10000, "INTERNAL", -5000, "the call failed on the server, whose log says why")


def fault_of(error: Exception) -> Fault:
    """Say how an error is answered; what only the operator should know goes to the log instead."""
    for kind, fault in KINDS:
        if isinstance(error, kind):
            if fault.message:
                _log.warning("a call failed: %s", error)
                return fault
            return Fault(fault.status, fault.err_no, fault.grpc, fault.rpc, error.message)
    _log.error("a call failed unexpectedly", exc_info=error)
    return UNKNOWN


def too_long(size: int, limit: int) -> str:
    """Say why an answer is not sent."""
    return f"the answer has {size} bytes, {limit} are sent at most: ask for fewer rows or outputs"


def too_long_http(size: int, limit: int) -> HttpAnswer:
    """Make the HTTP answer that replaces one that is too long; 5000 is the Pipeline service's number for bad input."""
    why = too_long(size, limit).encode()
    return HttpAnswer(400, b'{"err_no":5000,"err_msg":"%b","error":"%b"}' % (why, why))


UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


def timeout_of(header: str | None) -> float | None:
    """Read seconds from a `grpc-timeout` header ("500m"), which upstream's gateway takes too; None without one.

    Raises:
        InputError: it is there and cannot be read.
    """
    if not header:
        return None
    digits, unit = header[:-1], UNITS.get(header[-1:])
    if unit is None or not digits.isascii() or not digits.isdecimal() or len(digits) > 8:  # noqa: PLR2004 - gRPC's rule
        raise InputError(f"grpc-timeout {header[:20]!r} is not up to 8 digits and one of H, M, S, m, u, n")
    return int(digits) * unit
