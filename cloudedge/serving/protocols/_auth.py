"""Who may ask, and which version answers whom: the same over HTTP and over gRPC."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloudedge.errors import Rejected
from cloudedge.serving.engine import Engine, Held

if TYPE_CHECKING:
    from cloudedge.serving.runtime import Runtime

__all__ = ["DataPortAuth", "Pinned"]


@dataclass(frozen=True)
class Pinned:
    """The runtime as one caller sees it, who chose a version."""

    runtime: Runtime
    pin: str

    def hold(self, tag: str | None = None) -> AbstractContextManager[Held]:
        """Give a request to that version."""
        return self.runtime.hold(tag, pin=self.pin)


class DataPortAuth:
    """Reads `authorization` and `x-cloudedge-pin`: headers, or gRPC's metadata.

    Args:
        runtime: Answers predictions.
        token: What every caller must send as ``Authorization: Bearer TOKEN``; None asks for nothing.
        admin_token: What allows to choose a version, and does for the other too.
        is_local: Only this machine can ask: then, without an admin token, everybody may choose.
    """

    def __init__(
        self, runtime: Runtime, *, token: str | None = None, admin_token: str | None = None, is_local: bool = True
    ) -> None:
        self._runtime = runtime
        self._token = token
        self._admin_token = admin_token
        self._anybody_chooses = admin_token is None and is_local

    def admits(self, headers: Mapping[str, str]) -> bool:
        """Tell whether a caller may ask at all."""
        return self._token is None or _brings(headers, self._token, self._admin_token)

    def engine(self, headers: Mapping[str, str]) -> Engine:
        """Return what answers a caller.

        Raises:
            Rejected: they chose a version and may not.
        """
        pin = headers.get("x-cloudedge-pin")
        if pin is None:
            return self._runtime
        if not self._anybody_chooses and not _brings(headers, self._admin_token):
            raise Rejected("choosing a version needs the admin token", hint="leave X-Cloudedge-Pin out")
        return Pinned(self._runtime, pin)


def _brings(headers: Mapping[str, str], *tokens: str | None) -> bool:
    given = headers.get("authorization", "").encode()
    return any(token is not None and hmac.compare_digest(given, f"Bearer {token}".encode()) for token in tokens)
