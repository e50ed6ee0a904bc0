"""The table from API server refusals and network failures to `cloudedge.errors`.

`Passing` marks failures that may pass when the same request is sent again, and tells whether the server may have acted
on this one. The session decides whether to send it again.
"""

from __future__ import annotations

import json
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import urllib3.exceptions

from cloudedge.errors import CloudEdgeError, Conflict, InputError, NotFound, Overloaded, Rejected, Unavailable

__all__ = ["Passing", "Status", "refusal", "translated"]

_LONGEST_MESSAGE = 2000
# Strict decoding says the first, server-side apply of the server's own kinds the second, before 1.21 with status 500.
_UNKNOWN_FIELD = re.compile(r'unknown field "([^"]+)"|\.([\w.\[\]"=,-]+): field not declared in schema')


class Passing(Exception):
    """Carries an error that a retry may overcome.

    Args:
        error: The error to raise if it does not pass.
        acted: Whether the server may have carried out the request.
        after_s: The pause the server asked for.
    """

    def __init__(self, error: CloudEdgeError, *, acted: bool, after_s: float | None = None) -> None:
        super().__init__(error)
        self.error, self.acted, self.after_s = error, acted, after_s


@dataclass(frozen=True)
class Status:
    """A refusal as the server reported it."""

    code: int
    reason: str = ""
    """One word: AlreadyExists, Forbidden, Invalid ..."""
    message: str = ""
    causes: tuple[Mapping[str, str], ...] = ()
    """The details: reason, message and field of each."""
    details: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, code: int, body: bytes) -> Status:
        """Read the body of a refusal; proxies in between do not use Kubernetes' format."""
        try:
            found = json.loads(body)
        except ValueError:
            found = None
        if not isinstance(found, dict) or found.get("kind") != "Status":
            return cls(code, message=_printable(body[:200].decode(errors="replace")))
        details = found.get("details")
        details = details if isinstance(details, dict) else {}
        causes = details.get("causes")
        return cls(
            code,
            reason=_printable(str(found.get("reason") or ""))[:60],
            message=_printable(str(found.get("message") or ""))[:_LONGEST_MESSAGE],
            causes=tuple(
                {key: _printable(str(cause.get(key) or "")) for key in ("reason", "message", "field")}
                for cause in (causes if isinstance(causes, list) else [])[:100]
                if isinstance(cause, dict)
            ),
            details=details,
        )


@dataclass(frozen=True)
class _Refusal:
    kind: type[CloudEdgeError]
    hint: str = ""
    passes: bool = False
    """The same request may succeed later."""
    acted: bool = False
    """The server may have carried it out nevertheless."""


_RUN_AGAIN = "Run the same command again. Finished work is kept."
_BY_CAUSE = {
    "FieldManagerConflict": _Refusal(
        Conflict, "Another manager owns these fields. Agree with its owner, or take the fields over by force."
    ),
    "NamespaceTerminating": _Refusal(
        Conflict, "The namespace is being deleted. Wait until it is gone, or use another."
    ),
}
_BY_REASON = {
    "AlreadyExists": _Refusal(Conflict, "Choose another name, or delete the existing object."),
    "Expired": _Refusal(Unavailable, "The requested version is too old by now. Read again from the beginning."),
}
_BY_STATUS = {
    400: _Refusal(InputError),
    401: _Refusal(Rejected, "Log in to the cluster again, or name another context."),
    403: _Refusal(
        Rejected, "Ask the cluster's owner for this permission. docs/how-to/kubernetes.md lists the ones needed."
    ),
    404: _Refusal(NotFound),
    405: _Refusal(Rejected),
    409: _Refusal(Conflict, "Read the object's current state, then try again."),
    410: _Refusal(Unavailable, "The requested version is too old by now. Read again from the beginning."),
    413: _Refusal(InputError, "The object is larger than the API server accepts. Make it smaller."),
    415: _Refusal(InputError),
    422: _Refusal(InputError),
    429: _Refusal(Overloaded, "The API server limits the rate of requests. Wait and try again.", passes=True),
    500: _Refusal(Unavailable, _RUN_AGAIN, passes=True, acted=True),
    502: _Refusal(Unavailable, _RUN_AGAIN, passes=True, acted=True),
    503: _Refusal(Unavailable, _RUN_AGAIN, passes=True, acted=True),
    504: _Refusal(Unavailable, _RUN_AGAIN, passes=True, acted=True),
}


def refusal(what: str, status: Status, *, retry_after: str | None = None) -> CloudEdgeError | Passing:
    """Return the error to raise for a refusal."""
    found = next((_BY_CAUSE[cause["reason"]] for cause in status.causes if cause["reason"] in _BY_CAUSE), None)
    unknown = _UNKNOWN_FIELD.findall(status.message)
    if unknown:
        found = _Refusal(
            InputError, "Check the spelling, and whether this cluster's version of the kind has the field."
        )
    found = found or _BY_REASON.get(status.reason) or _BY_STATUS.get(status.code)
    if found is None:
        found = _Refusal(Unavailable, _RUN_AGAIN) if status.code >= 500 else _Refusal(Rejected)  # noqa: PLR2004
    facts: dict[str, Any] = {"status": status.code, "reason": status.reason}
    fields = [cause["field"] for cause in status.causes if cause["field"]] or ["".join(each) for each in unknown]
    if fields:
        facts["fields"] = fields
    after_s = float(retry_after) if retry_after and retry_after.isdecimal() else None
    if after_s is not None:
        facts["retry_after_s"] = after_s
    message = status.message or status.reason or "no reason given"
    error = found.kind(f"{what}: {status.code}: {message}", hint=found.hint, **facts)
    return Passing(error, acted=found.acted, after_s=after_s) if found.passes else error


@contextmanager
def translated(what: str, host: str) -> Iterator[None]:
    """Turn errors of urllib3 and the system into ours."""
    try:
        yield
    except (urllib3.exceptions.HTTPError, OSError) as error:
        root = _root(error)
        if isinstance(root, (ssl.SSLError, ssl.CertificateError)) and not isinstance(root, ssl.SSLEOFError):
            raise Rejected(
                f"{what}: TLS with {host} failed: {_printable(str(root))}",
                hint="The kubeconfig's certificate authority is not this server's. Get a new kubeconfig.",
            ) from error
        if isinstance(root, socket.gaierror):
            gone = f"{what}: the host {host} does not exist"
            raise Unavailable(gone, hint="Check the server's address in the kubeconfig.") from error
        if isinstance(error, urllib3.exceptions.NewConnectionError) or isinstance(root, ConnectionRefusedError):
            refused = Unavailable(f"{what}: {host} refuses the connection", hint="Check that the API server is up.")
            raise Passing(refused, acted=False) from error
        how = "no answer in time" if _is_time_out(error, root) else f"the connection broke: {type(root).__name__}"
        raise Passing(
            Unavailable(f"{what} at {host}: {how}", hint=_RUN_AGAIN), acted=not _is_connecting(error)
        ) from error


def _is_time_out(*errors: BaseException) -> bool:
    return any(isinstance(error, (TimeoutError, urllib3.exceptions.TimeoutError)) for error in errors)


def _is_connecting(error: BaseException) -> bool:
    return isinstance(error, urllib3.exceptions.ConnectTimeoutError)


def _root(error: BaseException) -> BaseException:
    """Return the system's own error inside the library's wrappers."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, (ConnectionError, TimeoutError, socket.gaierror, ssl.SSLError)):
            return cause
        cause = (
            getattr(cause, "reason", None)
            if isinstance(getattr(cause, "reason", None), BaseException)
            else (cause.__cause__ or cause.__context__)
        )
    return error


def _printable(text: str) -> str:
    return re.sub(r"[^\x20-\x7e\n]", "?", text)
