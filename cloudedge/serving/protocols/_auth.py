"""Authentication of the data port, and the choice of a version by pin: the same over HTTP and gRPC."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloudedge.errors import Rejected
from cloudedge.serving.engine import Engine, RequestVersion

if TYPE_CHECKING:
    from cloudedge.serving.runtime import Runtime

__all__ = ["DataPortAuth", "Pinned"]


@dataclass(frozen=True)
class Pinned:
    """The runtime for a caller that chose a version by its pin."""

    runtime: Runtime
    pin: str

    def hold(self, tag: str | None = None) -> AbstractContextManager[RequestVersion]:
        """Hold that version for one request."""
        return self.runtime.hold(tag, pin=self.pin)


class DataPortAuth:
    """Reads `authorization` and `x-cloudedge-pin`: headers, or gRPC's metadata.

    Args:
        runtime: Answers predictions.
        token: Required of every caller as ``Authorization: Bearer TOKEN``; None requires nothing.
        admin_token: Allows its bearer to choose a version; it also counts as `token`.
        is_local: Only this machine can reach the port: then, without an admin token, every caller may choose.
    """

    def __init__(
        self, runtime: Runtime, *, token: str | None = None, admin_token: str | None = None, is_local: bool = True
    ) -> None:
        self._runtime = runtime
        self._token = token
        self._admin_token = admin_token
        self._every_caller_may_pin = admin_token is None and is_local

    def admits(self, headers: Mapping[str, str]) -> bool:
        """Return True if a caller may use the port at all."""
        return self._token is None or _has_token(headers, self._token, self._admin_token)

    def engine(self, headers: Mapping[str, str]) -> Engine:
        """Return the engine that answers a caller.

        Raises:
            Rejected: The caller chose a version without permission.
        """
        pin = headers.get("x-cloudedge-pin")
        if pin is None:
            return self._runtime
        if not self._every_caller_may_pin and not _has_token(headers, self._admin_token):
            raise Rejected("choosing a version needs the admin token", hint="Leave X-Cloudedge-Pin out.")
        return Pinned(self._runtime, pin)


def _has_token(headers: Mapping[str, str], *tokens: str | None) -> bool:
    given = headers.get("authorization", "").encode()
    return any(token is not None and hmac.compare_digest(given, f"Bearer {token}".encode()) for token in tokens)
