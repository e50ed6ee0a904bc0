"""Errors on the wire of an admin API: an HTTP status and ``{"error", "hint", "kind"}``.

Servers write errors with `error_fields` and `status_of`; the client reads them with `read_error`. ``kind`` is the name
of an error class. The reader accepts only the names in `KINDS`: a server, or a process that answers in its place,
cannot choose what the client instantiates. An unknown kind becomes the error that the HTTP status stands for.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from cloudedge import errors
from cloudedge.errors import CloudEdgeError, Conflict, InputError, NotFound, Rejected, Unavailable

__all__ = ["KINDS", "error_fields", "read_error", "status_of"]

KINDS: Mapping[str, type[CloudEdgeError]] = {name: getattr(errors, name) for name in errors.__all__}
"""The error classes that a server may name."""

_STATUS: Mapping[type[CloudEdgeError], HTTPStatus] = {
    InputError: HTTPStatus.BAD_REQUEST,
    NotFound: HTTPStatus.NOT_FOUND,
    Conflict: HTTPStatus.CONFLICT,
    Unavailable: HTTPStatus.SERVICE_UNAVAILABLE,
}
_MEANING: Mapping[int, type[CloudEdgeError]] = {
    **{status: kind for kind, status in _STATUS.items()},
    HTTPStatus.UNAUTHORIZED: Rejected,
    HTTPStatus.FORBIDDEN: Rejected,
}


def error_fields(error: BaseException) -> dict[str, str]:
    """Return the fields that describe an error in an answer: what happened, what to do next, and its class."""
    if isinstance(error, CloudEdgeError):
        return {"error": error.message, "hint": error.hint, "kind": type(error).__name__}
    return {"error": f"{type(error).__name__}: {error}", "hint": "", "kind": type(error).__name__}


def status_of(error: CloudEdgeError) -> HTTPStatus:
    """Return the HTTP status of an answer that reports an error."""
    found = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), None)
    return found or HTTPStatus.INTERNAL_SERVER_ERROR


def read_error(
    found: Mapping[str, Any], what: str, *, status: int | None = None, pin: str | None = None
) -> CloudEdgeError:
    """Make the error that a server reported.

    Args:
        found: The fields of the answer, or of a version in state ``failed``.
        what: The beginning of the message: the call, or the server.
        status: The HTTP status; None for a version whose load failed.
        pin: The version concerned, kept as a fact of the error.
    """
    unknown = CloudEdgeError if status is None else _MEANING.get(status, _otherwise(status))
    kind = found.get("kind")
    chosen = KINDS.get(kind, unknown) if isinstance(kind, str) else unknown
    message = found.get("error") or ("no reason given" if status is None else f"HTTP {status}")
    facts = {} if pin is None else {"pin": pin}
    return chosen(f"{what}: {message}", hint=str(found.get("hint") or ""), **facts)


def _otherwise(status: int) -> type[CloudEdgeError]:
    return Unavailable if status >= HTTPStatus.INTERNAL_SERVER_ERROR else Rejected
