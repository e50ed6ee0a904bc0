"""The switching proxy of a service: one stable address while the servers behind it are replaced.

It runs on an edge node, or inside a container of the service's own image, as a single file that needs only Python 3.9
and its standard library. It forwards HTTP/1.1 request by request: each goes, whole, to the server that the target file
names when the request arrives. So a client's open connection moves to the new server between two requests, and a
request under way ends where it began. The server may have closed a connection that was kept open: a request that finds
it closed, and got no answer, is sent again on a fresh one. Connections that speak HTTP/2 or baidu_std are forwarded
as they are, and stay with the server they began with. Those of HTTP/2, which is gRPC, go to the server in the file of
the same name with `.grpc` at its end, if there is one. SIGHUP makes it read the targets again.

    python front.py PORT TARGET_FILE [ADDRESS]
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from pathlib import Path

__all__ = ["Front", "main"]

MAX_HEAD = 32 * 1024
MAX_CONNECTIONS = 1000
"""Of clients at once; then the one that has waited longest with a request of its own gives way to the next."""
CHUNK = 256 * 1024
MAX_DIGITS = 18
"""Of a body's length: more do not fit into 63 bits, and Python refuses to read more than 4,300."""
MAX_INTERIM = 16
"""Answers with a status below 200 before the final one."""
MAX_AGAIN = 1024 * 1024
"""Bytes of a request: longer ones are not kept to be sent again."""
CONNECT_S = 5.0
ANSWER_S = 300.0
IDLE_S = 300.0
HTTP2, BAIDU_STD = b"PRI ", b"PRPC"
"""The first bytes of connections that stay with the server they began with."""
TUNNEL_IDLE_S = 3600.0


class Broken(Exception):
    """One side does not speak HTTP/1.1 as expected, or went away."""


class NoServer(Exception):
    """The target does not accept connections; nothing was answered."""


class Message:
    """The head of a request or an answer, and the length of its body."""

    def __init__(self, head: bytes) -> None:
        self.head = head
        self.start, *lines = head[:-4].split(b"\r\n")
        if self.start.count(b" ") < 2 - self.start.startswith(b"HTTP/1.1 "):  # an answer may leave its words out
            raise Broken("a first line is not one")
        self.fields: dict[bytes, bytes] = {}
        for line in lines:
            name, colon, value = line.partition(b":")
            name, value = name.lower(), value.strip()
            # Two readings of one message are how requests are smuggled past a proxy.
            if (
                not colon
                or name.strip() != name
                or (name == b"content-length" and self.fields.get(name, value) != value)
            ):
                raise Broken("a header line is not one")
            self.fields[name] = value
        self.chunked = self.fields.get(b"transfer-encoding", b"").lower() == b"chunked"
        length = self.fields.get(b"content-length")
        if (length is not None and not (length.isdigit() and len(length) <= MAX_DIGITS)) or (
            b"transfer-encoding" in self.fields and (length is not None or not self.chunked)
        ):
            raise Broken("the length of a body is not clear")
        self.length = None if length is None else int(length)

    @property
    def status(self) -> bytes:
        return self.start.split(b" ", 2)[1]

    @property
    def closes(self) -> bool:
        return self.fields.get(b"connection", b"").lower() == b"close" or self.start.endswith(b"HTTP/1.0")


class Front:
    """Forwards requests to the target."""

    def __init__(self, target_file: Path) -> None:
        self.target_file = target_file
        self.connections = 0
        self.waiting: dict[asyncio.StreamWriter, None] = {}
        """The clients without a whole request, the oldest first."""
        self.read_target()

    def read_target(self) -> None:
        """Read the target from its file."""
        self.target = self.grpc_target = address_in(self.target_file)
        with contextlib.suppress(FileNotFoundError):
            self.grpc_target = address_in(self.target_file.with_name(f"{self.target_file.name}.grpc"))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client until it disconnects."""
        self.connections += 1
        try:
            if not self.has_room():
                writer.write(answer(503, b'{"err_no":9000,"err_msg":"too many connections"}'))
                return
            self.waiting[writer] = None
            start = await begin(reader)
            if start in {HTTP2, BAIDU_STD}:
                self.waiting.pop(writer, None)
                target = self.grpc_target if start == HTTP2 else self.target
                await tunnel(target, start, reader, writer)
            else:
                await self.pass_on(start, reader, writer)
        except Broken:
            with contextlib.suppress(OSError):
                writer.write(answer(400, b""))
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError):
            pass  # one side disconnected; closing informs the other
        finally:
            self.connections -= 1
            self.waiting.pop(writer, None)
            writer.close()

    def has_room(self) -> bool:
        """Tell whether one more client fits, by closing one that waits if need be."""
        if self.connections <= MAX_CONNECTIONS:
            return True
        oldest = next(iter(self.waiting), None)
        if oldest is None:
            return False
        del self.waiting[oldest]
        oldest.transport.abort()
        return True

    async def pass_on(self, start: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward requests one by one, each to the current target."""
        upstream = Upstream(self)
        try:
            while True:
                self.waiting.setdefault(writer)
                request = await read_head(reader, IDLE_S, start)
                start = b""
                self.waiting.pop(writer, None)
                if request is None:
                    return
                await upstream.begin()
                if not await exchange(request, reader, writer, upstream):
                    return
        except NoServer:
            writer.write(answer(503, b'{"err_no":9000,"err_msg":"no server answers"}'))
        finally:
            upstream.close()


def address_in(file: Path) -> tuple[str, int]:
    host, _, port = file.read_text().strip().rpartition(":")
    return host, int(port)


async def tunnel(
    target: tuple[str, int], start: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Forward a connection as it is, until either side ends it."""
    up_reader, up_writer = await asyncio.wait_for(asyncio.open_connection(*target), CONNECT_S)
    try:
        up_writer.write(start)
        await asyncio.gather(pump(reader, up_writer), pump(up_reader, writer))
    finally:
        up_writer.close()


class Upstream:
    """The connection to the server, of one client: requests are written here, answers read from `reader`."""

    def __init__(self, front: Front) -> None:
        self.front = front
        self.bound: tuple[str, int] | None = None
        self.kept: bytearray | None = None
        """The bytes sent on a reused connection, until an answer shows that they were received."""

    async def begin(self) -> None:
        """Prepare for a request."""
        if self.bound == self.front.target and not self.reader.at_eof():
            self.kept = bytearray()
        else:
            await self.connect()

    async def connect(self) -> None:
        """Connect to the current target."""
        self.close()
        self.bound = self.kept = None
        target = self.front.target
        try:
            opening = asyncio.open_connection(*target, limit=MAX_HEAD)
            self.reader, self.writer = await asyncio.wait_for(opening, CONNECT_S)
        except (OSError, asyncio.TimeoutError) as error:  # two classes until Python 3.11
            raise NoServer from error
        self.bound = target

    def write(self, data: bytes) -> None:
        if self.kept is not None:
            self.kept += data
            if len(self.kept) > MAX_AGAIN:
                self.kept = None
        self.writer.write(data)

    async def drain(self) -> None:
        try:
            await self.writer.drain()
        except ConnectionError:
            if self.kept is None:
                raise

    async def first_head(self) -> Message:
        """Read the beginning of an answer; if the connection was closed instead, send the request again on another."""
        try:
            return await next_head(self.reader)
        except ConnectionError:
            if self.kept is None:
                raise
            said = bytes(self.kept)
            await self.connect()
            self.writer.write(said)
            return await next_head(self.reader)
        finally:
            self.kept = None

    def close(self) -> None:
        if self.bound is not None:
            self.writer.close()


async def begin(reader: asyncio.StreamReader) -> bytes:
    """Return the first four bytes of a connection, or as many as there are."""
    try:
        return await asyncio.wait_for(reader.readexactly(4), IDLE_S)
    except asyncio.IncompleteReadError as error:
        return error.partial


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Forward bytes to the end, and close for writing."""
    while True:
        data = await asyncio.wait_for(reader.read(CHUNK), TUNNEL_IDLE_S)
        if not data:
            break
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def exchange(
    request: Message, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, upstream: Upstream
) -> bool:
    """Forward one request and its answer; returns whether another may follow on both connections."""
    upstream.write(request.head)
    expects = request.fields.get(b"expect", b"").lower() == b"100-continue"
    if expects:  # the body comes only after the other side asks for it
        reply = await upstream.first_head()
        writer.write(reply.head)
        if reply.status != b"100":
            await copy_body(reply, upstream.reader, writer, is_answer=True, to_head=False)
            return False
    await copy_body(request, reader, upstream)
    reply = await upstream.first_head()
    interim = 0
    while reply.status.startswith(b"1"):
        interim += 1
        if interim > MAX_INTERIM:
            raise Broken("an answer does not come to its end")
        writer.write(reply.head)
        reply = await next_head(upstream.reader)
    writer.write(reply.head)
    to_head = request.start.startswith(b"HEAD ")
    whole = await copy_body(reply, upstream.reader, writer, is_answer=True, to_head=to_head)
    return whole and not request.closes and not reply.closes


async def next_head(reader: asyncio.StreamReader) -> Message:
    head = await read_head(reader, ANSWER_S)
    if head is None:
        raise ConnectionError
    return head


async def read_head(reader: asyncio.StreamReader, timeout_s: float, start: bytes = b"") -> Message | None:
    """Read a head, whose first bytes may have been read already; None when there is no more to come."""
    if b"\r\n" in start:  # the end of the head could be cut in two otherwise
        raise Broken("a first line is not one")
    try:
        return Message(start + await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), timeout_s))
    except asyncio.IncompleteReadError as error:
        if start or error.partial:
            raise
        return None
    except asyncio.LimitOverrunError as error:
        raise Broken("a head is too long") from error


async def copy_body(
    message: Message,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter | Upstream,
    *,
    is_answer: bool = False,
    to_head: bool = False,
) -> bool:
    """Forward a body; returns False when only the end of the connection ends it."""
    if is_answer and (to_head or message.status in {b"204", b"304"}):
        return True
    if message.chunked:
        size = 1
        while size:
            line = await read_line(reader)
            digits = line.split(b";", 1)[0].strip()
            if not 0 < len(digits) <= 8 or digits.strip(b"0123456789abcdefABCDEF"):  # noqa: PLR2004 - 4 GiB a chunk
                raise Broken("the size of a chunk is not one")
            size = int(digits, 16)
            writer.write(line)
            if size:
                await copy_bytes(reader, writer, size + 2)
        trailers = 0
        while line != b"\r\n":  # trailers, and the empty line after them
            line = await read_line(reader)
            trailers += len(line)
            if trailers > MAX_HEAD:
                raise Broken("the trailers are too long")
            writer.write(line)
        await writer.drain()
        return True
    if message.length is None and is_answer:
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
        return False
    await copy_bytes(reader, writer, message.length or 0)
    return True


async def read_line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await asyncio.wait_for(reader.readuntil(b"\r\n"), ANSWER_S)
    except asyncio.LimitOverrunError as error:
        raise Broken("a line is too long") from error


async def copy_bytes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter | Upstream, count: int) -> None:
    while count:
        data = await asyncio.wait_for(reader.read(min(count, CHUNK)), ANSWER_S)
        if not data:
            raise ConnectionError
        count -= len(data)
        writer.write(data)
        await writer.drain()


def answer(status: int, body: bytes) -> bytes:
    lines = (
        f"HTTP/1.1 {status} -",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
    )
    return "\r\n".join((*lines, "", "")).encode() + body


async def main(port: int, target_file: Path, address: str = "0.0.0.0") -> None:  # noqa: S104 - of its container
    """Serve until SIGTERM."""
    front = Front(target_file)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGHUP, front.read_target)
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    server = await asyncio.start_server(front.serve, address, port, limit=MAX_HEAD)
    async with server:
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:4]))
