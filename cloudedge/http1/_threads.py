"""An HTTP/1.1 server with a thread per connection: for admin APIs and files, which are asked rarely and may block.

Requests at once are bounded, and so are connections without one. A request counts once its handler has accepted it,
because it carries the token: one too many is refused, or waits. Of the other connections the oldest gives way. A whole
request has a deadline, not each of its reads. So clients that send a byte now and then cannot keep others out. Nothing
is logged, because a token may be in a request; only a fault of the program itself reaches standard error.
"""

from __future__ import annotations

import io
import ipaddress
import math
import socket
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cloudedge.errors import Conflict
from cloudedge.io import parse_length

__all__ = ["ThreadedHandler", "ThreadedServer", "is_loopback"]

_POLL_S = 0.05
"""Seconds between two checks of the listener whether it was closed."""
_MAX_UNKNOWN = 192 * 1024
"""Bytes of a request before it was accepted: its head, and a body that is not wanted."""
_MAX_WAITING = 256
"""Connections without an accepted request; each has a thread."""
_GRACE_S = 0.5
"""Seconds for which such a connection stays when there are so many."""


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach a host name or address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _TimedReader(io.RawIOBase):
    """Reads from a socket until a deadline: one for the first byte of a request, and one for all of it."""

    def __init__(self, connection: socket.socket, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self.expect(timeout_s)

    def expect(self, within_s: float) -> None:
        """Wait for a request so long."""
        self._deadline = time.monotonic() + within_s
        self._has_begun = False
        self._left = float(_MAX_UNKNOWN)

    def extend(self, within_s: float) -> None:
        """Wait for the rest of the request so long."""
        self._deadline = time.monotonic() + within_s

    def trust(self) -> None:
        """Read as many bytes of the request as its handler asks for."""
        self._left = math.inf

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._deadline - time.monotonic()
        if self._left <= 0:
            raise ConnectionAbortedError("the request is too long for a client without a token")
        if left <= 0:
            raise TimeoutError("the request was not complete in time")
        self._connection.settimeout(left)
        try:
            count = self._connection.recv_into(buffer)
        finally:
            self._connection.settimeout(self._timeout_s)  # for the answer
        self._left -= count
        if not self._has_begun:
            self._has_begun = True
            self.extend(self._timeout_s)
        return count


class ThreadedServer(ThreadingHTTPServer):
    """Listens on construction, and answers from `start` until closed.

    Args:
        host: The address to listen on.
        port: 0 takes any free one.
        handler: Answers requests.
        name: Of the listener's thread.
        max_requests: Accepted requests that are answered at once.
        wait: Let further requests wait, instead of refusing them.
        title: The listener's name in the message of a failure.

    Raises:
        Conflict: the address is in use, or not of this machine.
    """

    daemon_threads = True
    request_queue_size = 1024

    def __init__(
        self,
        host: str,
        port: int,
        handler: type[ThreadedHandler],
        *,
        name: str,
        max_requests: int,
        wait: bool = False,
        title: str = "the server",
    ) -> None:
        self._slots = threading.BoundedSemaphore(max_requests)
        self._wait = wait
        self._closing = False
        self._lock = threading.Lock()
        self._connections: dict[Any, float] = {}
        """Since when each waits for a request to be accepted; 0 while it has one."""
        self._listener = threading.Thread(target=self.serve_forever, args=(_POLL_S,), name=name, daemon=True)
        try:
            super().__init__((host, port), handler)
        except OSError as error:
            raise Conflict(
                f"{title} cannot listen on {host}:{port}: {error.strerror}",
                hint="Choose another port, or stop what listens there.",
            ) from error

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self.server_address[1])

    def start(self) -> None:
        """Begin to answer."""
        self._listener.start()

    def close(self, *, break_off: bool = False) -> None:
        """Stop listening.

        Args:
            break_off: Also break connections with requests under way.
        """
        self._closing = True
        if self._listener.is_alive():
            self.shutdown()
            self._listener.join()
        self.server_close()
        with self._lock:
            connections = list(self._connections) if break_off else []
        for request in connections:
            self.shutdown_request(request)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread; of too many, the oldest without an accepted request gives way."""
        while not self._make_room():
            if self._closing:
                self.shutdown_request(request)
                return
            time.sleep(_POLL_S)
        with self._lock:
            self._connections[request] = time.monotonic()
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no more threads: this client goes, and so does one that waits
            self._forget(request)
            self.shutdown_request(request)
            self._break_oldest()

    def _make_room(self) -> bool:
        """Tell whether there is room for one more connection; break the oldest without an accepted request if not."""
        with self._lock:
            waiting = sum(since > 0 for since in self._connections.values())
        if waiting < _MAX_WAITING:
            return True
        self._break_oldest()
        return False

    def _break_oldest(self) -> None:
        """Break the oldest connection without an accepted request, unless it has only begun; its thread ends then."""
        with self._lock:
            waiting = [(since, id(request), request) for request, since in self._connections.items() if since]
        if waiting:
            since, _, oldest = min(waiting)
            if time.monotonic() - since >= _GRACE_S:
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)

    def take_slot(self, request: Any) -> bool:
        """Take a slot for the request of a connection, or wait for one; false if there is none."""
        while not self._slots.acquire(blocking=self._wait, timeout=_POLL_S if self._wait else None):
            if self._closing or not self._wait:
                return False
        self._note(request, 0.0)
        return True

    def give_slot_back(self, request: Any) -> None:
        """Give back the slot of a request that was answered."""
        self._slots.release()
        self._note(request, time.monotonic())

    def _note(self, request: Any, since: float) -> None:
        with self._lock:
            if request in self._connections:
                self._connections[request] = since

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection to its end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._forget(request)

    def _forget(self, request: Any) -> None:
        with self._lock:
            self._connections.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a connection that broke; report anything else."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class ThreadedHandler(BaseHTTPRequestHandler):
    """Answers the requests of one connection of a `ThreadedServer`.

    A handler that knows its client calls `accept`; until then the connection gives way to others when there are many.
    """

    server: ThreadedServer
    protocol_version = "HTTP/1.1"
    server_version = "cloudedge"
    sys_version = ""
    timeout = 30  # for a client that does not ask, does not finish its request, or does not read the answer
    disable_nagle_algorithm = True

    def setup(self) -> None:
        """Prepare to read requests by a deadline."""
        super().setup()
        self.rfile.close()
        self._reader = _TimedReader(self.connection, float(self.timeout))
        self.rfile = io.BufferedReader(self._reader)

    def handle_one_request(self) -> None:
        """Read a request, and answer it."""
        self._is_accepted = False
        self._reader.expect(self.timeout)
        try:
            super().handle_one_request()
        finally:
            if self._is_accepted:
                self.server.give_slot_back(self.connection)

    def accept(self, within_s: float) -> bool:
        """Keep the connection whatever comes, and give its client so much time for the rest of the request.

        Returns:
            False if too many requests are answered already.
        """
        self._is_accepted = self.server.take_slot(self.connection)
        if self._is_accepted:
            self._reader.extend(within_s)
            self._reader.trust()
        return self._is_accepted

    @property
    def has_body(self) -> bool:
        """True if the request announces a body."""
        return self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers

    @property
    def body_length(self) -> int | None:
        """The announced length of the body; None if it is not clear."""
        if "Transfer-Encoding" in self.headers:
            return None
        return parse_length(self.headers.get("Content-Length", "0"))

    def send_head(self, status: HTTPStatus, length: int | None, headers: Mapping[str, str] | None = None) -> None:
        """Send everything before an answer's body; `length` is None for a status that has none."""
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the parent's name
        """Log nothing: a token may be in the request."""
