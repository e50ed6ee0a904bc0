"""A TCP relay in front of a server whose network can be taken away: bytes dropped, or connections reset."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct


class Relay:
    """Forwards bytes both ways while `fault` is empty.

    `drop` swallows the bytes of every connection, new ones included; `reset` ends every connection with a reset.
    """

    def __init__(self, port: int) -> None:
        self.port = 0
        self.fault = ""
        self._to = port
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> asyncio.Server:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def reset(self) -> None:
        """Reset all connections, and those that come."""
        self.fault = "reset"
        for writer in list(self._writers):
            _reset(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.fault == "reset":
            _reset(writer)
            return
        with contextlib.suppress(OSError):
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._to)
            self._writers |= {writer, up_writer}
            await asyncio.gather(self._pump(reader, up_writer), self._pump(up_reader, writer))
        writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if self.fault != "drop":
                    writer.write(data)
            writer.close()
        self._writers.discard(writer)


def _reset(writer: asyncio.StreamWriter) -> None:
    peer = writer.get_extra_info("socket")
    if peer is not None:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
