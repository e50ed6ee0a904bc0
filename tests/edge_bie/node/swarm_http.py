"""A small HTTP/1.1 client for many simulated nodes in one process: connections are kept and shared, answers bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from urllib.parse import urlsplit

from cloudedge.errors import ConfigError, Unavailable

__all__ = ["Http"]

_HEAD_LIMIT = 64 * 1024
_BODY_LIMIT = 64 << 20
_TIMEOUT_S = 60.0

_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Http:
    """Calls plain HTTP servers.

    Args:
        connections: How many to one server, at most.
    """

    def __init__(self, connections: int = 64) -> None:
        self._limit = connections
        self._idle: dict[tuple[str, int], list[_Connection]] = {}
        self._slots: dict[tuple[str, int], asyncio.Semaphore] = {}
        self.requests = 0
        self.received = 0

    async def call(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> tuple[int, bytes]:
        """Send a request that may be sent twice; returns the status and the body.

        Raises:
            Unavailable: no answer came.
        """
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname is None:
            raise ConfigError(f"only http:// is spoken here, not {url!r}")
        place = (parts.hostname, parts.port or 80)
        lines = [
            f"{method} {parts.path or '/'}{f'?{parts.query}' if parts.query else ''} HTTP/1.1",
            f"Host: {parts.netloc}",
            *(f"{name}: {value}" for name, value in (headers or {}).items()),
            f"Content-Length: {len(body)}",
        ]
        message = "\r\n".join((*lines, "", "")).encode() + body
        async with self._slots.setdefault(place, asyncio.Semaphore(self._limit)):
            self.requests += 1
            try:
                return await asyncio.wait_for(self._send(place, message), _TIMEOUT_S)
            except (OSError, EOFError, ValueError, asyncio.TimeoutError, asyncio.LimitOverrunError) as error:
                raise Unavailable(f"cannot {method} {url.partition('?')[0]}: {type(error).__name__}") from error

    async def _send(self, place: tuple[str, int], message: bytes) -> tuple[int, bytes]:
        idle = self._idle.setdefault(place, [])
        while idle:
            connection = idle.pop()
            try:
                return await self._exchange(place, connection, message)
            except (OSError, EOFError):
                connection[1].close()  # the server hung up while nobody looked
        return await self._exchange(place, await asyncio.open_connection(*place, limit=_HEAD_LIMIT), message)

    async def _exchange(self, place: tuple[str, int], connection: _Connection, message: bytes) -> tuple[int, bytes]:
        reader, writer = connection
        keep = False
        try:
            writer.write(message)
            await writer.drain()
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
            length = int(fields["content-length"]) if "content-length" in fields else -1
            if not 0 <= length <= _BODY_LIMIT:
                raise ValueError("the length of an answer is not clear")
            body = await reader.readexactly(length)
            keep = fields.get("connection", "").lower() != "close"
            self.received += len(head) + length
            return int(head[0].split(" ", 2)[1]), body
        except KeyError as error:
            raise ValueError from error
        finally:
            if keep:
                self._idle[place].append(connection)
            else:
                writer.close()

    def close(self) -> None:
        """Hang up."""
        for connections in self._idle.values():
            for _, writer in connections:
                writer.close()
        self._idle.clear()
