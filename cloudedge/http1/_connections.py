"""The connections of one listener with their shared state: limits, time-outs, the bytes they hold.

One sweep for all connections enforces the time-outs: a request needs no timer of its own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from cloudedge.http1._connection import Connection, Handler, OtherProtocol
from cloudedge.http1._limits import ConnectionLimits, HeldBytes
from cloudedge.http1._messages import HttpAnswer

__all__ = ["Connections"]

_SWEEP_S, _POLL_S = 0.25, 0.01
_FAREWELL_S = 0.2


def _too_long(size: int, limit: int) -> HttpAnswer:
    why = f"the answer has {size} bytes, {limit} are sent at most"
    return HttpAnswer(HTTPStatus.BAD_REQUEST, json.dumps({"error": why}).encode())


class Connections:
    """All connections of a listener with their shared state: the protocol factory of ``loop.create_server``.

    Args:
        handler: Answers requests: with an answer, or with a coroutine of one.
        limits: The limits of clients.
        loop: The event loop it runs on.
        other: Another protocol on the same port.
        held: The count of bytes held for requests, where other servers share it.
        crashed: The answer to a request whose handler failed.
        too_long: Makes the answer that replaces one above the limit, from its bytes and the limit.
    """

    def __init__(
        self,
        handler: Handler,
        limits: ConnectionLimits,
        loop: asyncio.AbstractEventLoop,
        other: OtherProtocol | None = None,
        held: HeldBytes | None = None,
        *,
        crashed: HttpAnswer | None = None,
        too_long: Callable[[int, int], HttpAnswer] = _too_long,
    ) -> None:
        self.handler = handler
        self.limits = limits
        self.loop = loop
        self.other = other
        self.crashed = crashed or HttpAnswer(500, b'{"error":"internal"}')
        self.too_long = too_long
        self.open: set[Connection] = set()
        self.parting: set[Connection] = set()
        """Closed for writing; their clients have a moment to read the rest."""
        self.now = loop.time()
        """Refreshed by the sweep: time-outs need no better clock."""
        self.held = held or HeldBytes(limits.max_held_bytes)
        self.draining = False
        self.refused = 0
        self.timed_out = 0
        self.heads: dict[Any, bytes] = {}
        self._timer: asyncio.TimerHandle | None = loop.call_later(_SWEEP_S, self._sweep)

    def __call__(self) -> Connection:
        return Connection(self)

    def _sweep(self) -> None:
        self.now = self.loop.time()
        for connection in [*self.open, *self.parting]:
            connection.check_time(self.now)
        self._timer = self.loop.call_later(_SWEEP_S, self._sweep)

    @property
    def busy(self) -> int:
        """Connections with a request under way, or an answer that is not read yet."""
        return sum(connection.is_busy for connection in self.open) + sum(each.is_sending for each in self.parting)

    async def hang_up(self) -> None:
        """End all connections for writing, and give clients a moment to read what was sent.

        Closing them at once would reset those with bytes on their way, and take from clients what was sent before.
        """
        for connection in list(self.open):
            connection.part()
        end = self.loop.time() + _FAREWELL_S
        while self.parting and self.loop.time() < end:  # noqa: ASYNC110 - no event for all
            await asyncio.sleep(_POLL_S)

    def close(self) -> None:
        """Close all, now."""
        if self._timer is not None:
            self._timer.cancel()
        for connection in [*self.open, *self.parting]:
            connection.abort()

    def head(self, answer: HttpAnswer, *, keep_alive: bool) -> bytes:
        """Write the lines before the length; the same few are written again and again."""
        key = (answer.status, answer.content_type, keep_alive, *answer.headers.items())
        found = self.heads.get(key)
        if found is None:
            if len(self.heads) > 256:  # noqa: PLR2004 - pins come and go
                self.heads.clear()
            lines = [f"HTTP/1.1 {answer.status} {_phrase(answer.status)}", f"Content-Type: {answer.content_type}"]
            if not keep_alive:
                lines.append("Connection: close")
            found = self.heads[key] = "\r\n".join([*lines, _header_lines(answer.headers)]).encode("latin-1")
        return found + _header_lines(answer.own_headers).encode("latin-1") if answer.own_headers else found


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


def _header_lines(headers: Mapping[str, str]) -> str:
    return "".join([f"{name}: {_header_value(value)}\r\n" for name, value in headers.items()])


def _header_value(value: str) -> str:
    if value.isascii() and value.isprintable():
        return value
    return "".join(c if " " <= c <= "~" else "?" for c in value)
