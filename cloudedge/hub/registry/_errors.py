"""What a registry's refusals and the network's failures mean, as one table from theirs to `cloudedge.errors`.

`Passing` marks those that may pass when the same request is sent again; whether it may be sent again is the
session's to know.
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

__all__ = ["Passing", "refusal", "translated"]


class Passing(Exception):
    """Carries an error that may pass, and how long the other side asked to wait."""

    def __init__(self, error: Unavailable, after_s: float | None = None) -> None:
        super().__init__(error)
        self.error, self.after_s = error, after_s


@dataclass(frozen=True)
class _Refusal:
    kind: type[CloudEdgeError]
    hint: str = ""


# What a registry's word, or else its status, means. Words are the distribution API's error codes.
_BY_CODE = {
    "DIGEST_INVALID": _Refusal(IntegrityError, "Pack or fetch the bundle again: its bytes changed on the way."),
    "SIZE_INVALID": _Refusal(IntegrityError, "Pack or fetch the bundle again: its bytes changed on the way."),
    "MANIFEST_BLOB_UNKNOWN": _Refusal(NotFound, "Push what the manifest names first; run the same push again."),
    "MANIFEST_INVALID": _Refusal(Rejected, "The registry does not take OCI artifacts; use another one."),
    "NAME_INVALID": _Refusal(InputError, "Use a name the registry takes."),
}
_BY_STATUS = {
    400: _Refusal(Rejected),
    401: _Refusal(Rejected, "Log in with: docker login, or give user name and password for this registry."),
    403: _Refusal(Rejected, "Ask the registry's owner for permission."),
    404: _Refusal(NotFound),
    405: _Refusal(Rejected, "The registry is configured not to allow this."),
    409: _Refusal(Conflict, "Look at what is there now, then repeat the command if it is still what you want."),
    412: _Refusal(Conflict, "Look at what is there now, then repeat the command if it is still what you want."),
    413: _Refusal(InputError, "The registry, or a proxy before it, limits how large a request may be; raise it there."),
    429: _Refusal(Unavailable, "Wait and run the same command again."),
    501: _Refusal(Rejected, "The registry does not support this."),
    507: _Refusal(StorageError, "Make room where the registry keeps its data."),
}
_PASSES = {408, 429, 500, 502, 503, 504}


def refusal(
    what: str, host: str, *, status: int, headers: Mapping[str, str], body: bytes, now: datetime
) -> CloudEdgeError | Passing:
    """Return what to raise for an answer that is a refusal."""
    code, said = _first_error(body)
    passes = status in _PASSES
    found = _BY_STATUS.get(status) if passes else _BY_CODE.get(code) or _BY_STATUS.get(status)
    if found is None:
        found = _Refusal(Unavailable if status >= 500 else Rejected)  # noqa: PLR2004
    answer = " ".join(filter(None, (str(status), code, said)))
    facts: dict[str, Any] = {"hub": host, "status": status, "code": code}
    after_s = _retry_after(headers.get("Retry-After"), now) if passes else None
    if after_s is not None:
        facts["retry_after_s"] = after_s
    error = found.kind(f"{what} at {host}: {answer}", hint=found.hint, **facts)
    return Passing(error, after_s) if passes and isinstance(error, Unavailable) else error


@contextmanager
def translated(what: str, host: str) -> Iterator[None]:
    """Turn what requests, urllib3 and the system raise into our errors."""
    try:
        yield
    except (requests.exceptions.SSLError, urllib3.exceptions.SSLError) as error:
        raise Rejected(
            f"{what} at {host}: TLS failed: {_root(error)}",
            hint="Give the registry's certificates with ca_file; for a registry without TLS add ?insecure.",
            hub=host,
        ) from error
    except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
        root = _root(error)
        if isinstance(root, ConnectionRefusedError):
            refused = f"{what}: connection refused at {host}; is the registry up?"
            raise Unavailable(refused, hub=host) from error
        if isinstance(root, socket.gaierror):
            raise Unavailable(f"{what}: there is no host {host}", hub=host) from error
        raise Passing(
            Unavailable(
                f"{what} at {host}: the connection failed: {type(root).__name__}",
                hint="Run the same command again; what is done is kept.",
                hub=host,
            )
        ) from error


def _root(error: BaseException) -> BaseException:
    """Return the system's own error below what the libraries wrapped around it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, (ConnectionError, TimeoutError, socket.gaierror, ssl.SSLError)) and not isinstance(
            cause, requests.exceptions.RequestException
        ):
            return cause
        cause = cause.__cause__ or cause.__context__
    return error


def _first_error(body: bytes) -> tuple[str, str]:
    """Return code and message of a registry's refusal, made safe to print."""
    try:
        first = parse_json(body, "refusal")["errors"][0]
        code, said = str(first.get("code") or ""), str(first.get("message") or "")
    except (InputError, KeyError, IndexError, TypeError, AttributeError):
        return "", ""
    return re.sub(r"[^A-Z_]", "", code)[:60], re.sub(r"[^\x20-\x7e]", "?", said)[:200]


def _retry_after(value: str | None, now: datetime) -> float | None:
    if not value:
        return None
    try:
        return max(0.0, float(value) if value.isdecimal() else _seconds_until(value, now))
    except (TypeError, ValueError):
        return None


def _seconds_until(date: str, now: datetime) -> float:
    return (parsedate_to_datetime(date) - now).total_seconds()
