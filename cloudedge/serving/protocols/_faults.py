"""Error codes: one table that maps each error to its answer in every protocol."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from cloudedge.errors import CloudEdgeError, DeadlineExceeded, InputError, NotFound, Overloaded, Rejected, Unavailable
from cloudedge.http1 import HttpAnswer
from cloudedge.serving.engine import ModelFailed, NoneActive
from cloudedge.serving.formats import Malformed, TooLarge

__all__ = ["Fault", "fault_of", "timeout_of", "too_long", "too_long_http"]

_log = logging.getLogger("cloudedge.serving")


@dataclass(frozen=True)
class Fault:
    """A failure in the terms of every protocol."""

    status: int
    """HTTP status."""
    err_no: int
    """Code of the Pipeline service: 3001 closed, 3002 no service, 5000 input, 6000 timeout, 8000 package, 9000 client,
    10000 unknown."""
    grpc: str
    """Name of the gRPC status."""
    rpc: int
    """Error code of baidu_std: upstream's below zero, brpc's above; brpc clients retry 2004 on their own."""
    message: str = ""

    @property
    def is_transport(self) -> bool:
        """The call is valid but could not be answered."""
        return self.status >= TOO_MANY


TOO_MANY = 429
KINDS: tuple[tuple[type[CloudEdgeError], Fault], ...] = (
    (Malformed, Fault(400, 8000, "INVALID_ARGUMENT", -5100)),
    (TooLarge, Fault(413, 5000, "INVALID_ARGUMENT", -5100)),
    (InputError, Fault(400, 5000, "INVALID_ARGUMENT", -5100)),
    (Rejected, Fault(403, 5000, "PERMISSION_DENIED", -5100)),
    (NotFound, Fault(404, 3002, "NOT_FOUND", -5100)),
    (Overloaded, Fault(429, 6000, "RESOURCE_EXHAUSTED", 2004)),
    (DeadlineExceeded, Fault(504, 6000, "DEADLINE_EXCEEDED", 1008)),
    (NoneActive, Fault(503, 3001, "UNAVAILABLE", -5000)),
    (ModelFailed, Fault(500, 10000, "INTERNAL", -5000, "the model failed on the server, whose log says why")),
    # The error's own message names shards and addresses, which callers must not see.
    (Unavailable, Fault(503, 9000, "UNAVAILABLE", -5000, "rows this call needs could not be had; try again")),
)
UNKNOWN = Fault(500, 10000, "INTERNAL", -5000, "the call failed on the server, whose log says why")


def fault_of(error: Exception) -> Fault:
    """Return the answer to an error; details for the operator go to the log instead."""
    for kind, fault in KINDS:
        if isinstance(error, kind):
            if fault.message:
                _log.warning("a call failed: %s", error)
                return fault
            return Fault(fault.status, fault.err_no, fault.grpc, fault.rpc, error.message)
    _log.error("a call failed unexpectedly", exc_info=error)
    return UNKNOWN


def too_long(size: int, limit: int) -> str:
    """Return the message for an answer that exceeds the limit."""
    return f"the answer has {size} bytes, {limit} are sent at most: ask for fewer rows or outputs"


def too_long_http(size: int, limit: int) -> HttpAnswer:
    """Make the HTTP answer that replaces one that is too long; 5000 is the Pipeline service's number for bad input."""
    why = too_long(size, limit).encode()
    return HttpAnswer(400, b'{"err_no":5000,"err_msg":"%b","error":"%b"}' % (why, why))


UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


def timeout_of(header: str | None) -> float | None:
    """Parse the seconds of a `grpc-timeout` header ("500m"), which upstream's gateway takes too; None without one.

    Raises:
        InputError: The header cannot be parsed.
    """
    if not header:
        return None
    digits, unit = header[:-1], UNITS.get(header[-1:])
    if unit is None or not digits.isascii() or not digits.isdecimal() or len(digits) > 8:  # noqa: PLR2004 - gRPC's rule
        raise InputError(f"grpc-timeout {header[:20]!r} is not up to 8 digits and one of H, M, S, m, u, n")
    return int(digits) * unit
