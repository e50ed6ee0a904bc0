"""Translation of a registry's refusals and of network failures to `cloudedge.errors`, in one table.

`TransientFailure` marks those that a repeated request may cure; only the session knows whether a request may be
repeated.
"""

from __future__ import annotations

import re
import socket
import ssl
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

import requests
import urllib3.exceptions

from cloudedge.errors import (
    CloudEdgeError,
    Conflict,
    InputError,
    IntegrityError,
    NotFound,
    Rejected,
    StorageError,
    Unavailable,
)
from cloudedge.hub.core import parse_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

__all__ = ["TransientFailure", "refusal", "translate_network_errors"]


class TransientFailure(Exception):
    """Carries an error that may pass, and the pause that the server asked for."""

    def __init__(self, error: Unavailable, after_s: float | None = None) -> None:
        super().__init__(error)
        self.error, self.after_s = error, after_s


@dataclass(frozen=True)
class _Refusal:
    kind: type[CloudEdgeError]
    hint: str = ""


# The meaning of a registry's error code (the distribution API's), else of its status.
_BY_CODE = {
    "DIGEST_INVALID": _Refusal(IntegrityError, "Pack or fetch the bundle again; its bytes changed on the way."),
    "SIZE_INVALID": _Refusal(IntegrityError, "Pack or fetch the bundle again; its bytes changed on the way."),
    "MANIFEST_BLOB_UNKNOWN": _Refusal(NotFound, "Run the same push again; a blob of the manifest is missing."),
    "MANIFEST_INVALID": _Refusal(Rejected, "Use another registry; this one does not accept OCI artifacts."),
    "NAME_INVALID": _Refusal(InputError, "Use a name that the registry accepts."),
}
_BY_STATUS = {
    400: _Refusal(Rejected),
    401: _Refusal(Rejected, "Log in with `docker login`, or configure the registry's user name and password."),
    403: _Refusal(Rejected, "Ask the registry's owner for permission."),
    404: _Refusal(NotFound),
    405: _Refusal(Rejected, "Ask the registry's owner to allow this in its configuration."),
    409: _Refusal(Conflict, "Look at `cloudedge hub history`, then run the command again if you still want it."),
    412: _Refusal(Conflict, "Look at `cloudedge hub history`, then run the command again if you still want it."),
    413: _Refusal(InputError, "Raise the request size limit of the registry, or of the proxy before it."),
    429: _Refusal(Unavailable, "Wait and run the same command again."),
    501: _Refusal(Rejected, "Use another registry; this one does not support the request."),
    507: _Refusal(StorageError, "Free space in the registry's storage."),
}
_TRANSIENT_STATUSES = {408, 429, 500, 502, 503, 504}


def refusal(
    what: str, host: str, *, status: int, headers: Mapping[str, str], body: bytes, now: datetime
) -> CloudEdgeError | TransientFailure:
    """Return the error to raise for a refusal."""
    code, message = _first_error(body)
    passes = status in _TRANSIENT_STATUSES
    found = _BY_STATUS.get(status) if passes else _BY_CODE.get(code) or _BY_STATUS.get(status)
    if found is None:
        found = _Refusal(Unavailable if status >= 500 else Rejected)  # noqa: PLR2004
    answer = " ".join(filter(None, (str(status), code, message)))
    facts: dict[str, Any] = {"hub": host, "status": status, "code": code}
    after_s = _retry_after(headers.get("Retry-After"), now) if passes else None
    if after_s is not None:
        facts["retry_after_s"] = after_s
    error = found.kind(f"{what} at {host}: {answer}", hint=found.hint, **facts)
    return TransientFailure(error, after_s) if passes and isinstance(error, Unavailable) else error


@contextmanager
def translate_network_errors(what: str, host: str) -> Iterator[None]:
    """Translate errors of requests, urllib3 and the system to cloudedge's."""
    try:
        yield
    except (requests.exceptions.SSLError, urllib3.exceptions.SSLError) as error:
        raise Rejected(
            f"{what} at {host}: TLS failed: {_root_cause(error)}",
            hint="Set `ca_file` to the registry's certificates, or add `?insecure` for a registry without TLS.",
            hub=host,
        ) from error
    except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
        root = _root_cause(error)
        if isinstance(root, ConnectionRefusedError):
            refused = f"{what}: connection refused at {host}; is the registry up?"
            raise Unavailable(refused, hub=host) from error
        if isinstance(root, socket.gaierror):
            raise Unavailable(f"{what}: the host {host} does not exist", hub=host) from error
        raise TransientFailure(
            Unavailable(
                f"{what} at {host}: the connection failed: {type(root).__name__}",
                hint="Run the same command again; finished work is kept.",
                hub=host,
            )
        ) from error


def _root_cause(error: BaseException) -> BaseException:
    """Return the system's own error below the libraries' wrappers."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, (ConnectionError, TimeoutError, socket.gaierror, ssl.SSLError)) and not isinstance(
            cause, requests.exceptions.RequestException
        ):
            return cause
        cause = cause.__cause__ or cause.__context__
    return error


def _first_error(body: bytes) -> tuple[str, str]:
    """Return the code and message of a registry's refusal, made safe to print."""
    try:
        first = parse_json(body, "refusal")["errors"][0]
        code, message = str(first.get("code") or ""), str(first.get("message") or "")
    except (InputError, KeyError, IndexError, TypeError, AttributeError):
        return "", ""
    return re.sub(r"[^A-Z_]", "", code)[:60], re.sub(r"[^\x20-\x7e]", "?", message)[:200]


def _retry_after(value: str | None, now: datetime) -> float | None:
    if not value:
        return None
    try:
        return max(0.0, float(value) if value.isdecimal() else _seconds_until(value, now))
    except (TypeError, ValueError):
        return None


def _seconds_until(date: str, now: datetime) -> float:
    return (parsedate_to_datetime(date) - now).total_seconds()
