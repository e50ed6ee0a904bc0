"""An HTTP/1.1 server with a thread per connection: for admin APIs and files, which are asked rarely and may block.

Connections at once are bounded. One too many is refused with status 503, or waits in the listener's queue; before that,
the oldest connection without an accepted request gives way. A whole request has a deadline, not each of its reads:
clients that send a byte now and then cannot keep others out. Nothing is logged, because a token may be in a request;
only a fault of the program itself reaches standard error.
"""

from __future__ import annotations

import io
import ipaddress
import socket
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cloudedge.errors import Conflict
from cloudedge.io import parse_length

__all__ = ["ThreadedHandler", "ThreadedServer", "is_loopback"]

_FULL = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_POLL_S = 0.05
"""Seconds between two checks of the listener whether it was closed."""
_GRACE_S = 0.5
"""Seconds for which a connection without an accepted request keeps its slot when all are taken."""


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach a host name or address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass
class _Claim:
    """The slot of a connection."""

    slots: threading.BoundedSemaphore
    since: float = field(default_factory=time.monotonic)
    """Since when it has waited for a request to be accepted; 0 while there is one."""


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

    def extend(self, within_s: float) -> None:
        """Wait for the rest of the request so long."""
        self._deadline = time.monotonic() + within_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request was not complete in time")
        self._connection.settimeout(left)
        try:
            count = self._connection.recv_into(buffer)
        finally:
            self._connection.settimeout(self._timeout_s)  # for the answer
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
        max_connections: Served at once.
        wait: Let further connections wait in the listener's queue, instead of refusing them.
        reserve: Further connections that are served all the same, with `ThreadedHandler.is_in_reserve` true.
        title: The listener's name in the message of a failure.

    Raises:
        Conflict: the address is in use, or not of this machine.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        host: str,
        port: int,
        handler: type[ThreadedHandler],
        *,
        name: str,
        max_connections: int,
        wait: bool = False,
        reserve: int = 0,
        title: str = "the server",
    ) -> None:
        self._slots = threading.BoundedSemaphore(max_connections)
        self._reserve = threading.BoundedSemaphore(reserve) if reserve else None
        self._wait = wait
        self._closing = False
        self._lock = threading.Lock()
        self._connections: dict[Any, _Claim] = {}
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
        """Serve a connection in a thread, where there is room."""
        slots = self._find_slot()
        if slots is None:
            if not self._wait:
                with suppress(OSError):
                    request.sendall(_FULL)
            self.shutdown_request(request)
            return
        with self._lock:
            self._connections[request] = _Claim(slots)
        super().process_request(request, client_address)

    def _find_slot(self) -> threading.BoundedSemaphore | None:
        """Take a slot, by making room if need be; None when there is none, or the server closes."""
        if self._slots.acquire(blocking=False):
            return self._slots
        while not self._closing:
            is_hopeful = self._make_room() or self._wait
            if self._slots.acquire(timeout=_POLL_S if is_hopeful else 0):
                return self._slots
            if not is_hopeful:
                return self._reserve if self._reserve is not None and self._reserve.acquire(blocking=False) else None
        return None

    def _make_room(self) -> bool:
        """Break the oldest connection without an accepted request; true if there is one, or will be in a moment."""
        now = time.monotonic()
        with self._lock:
            waiting = [
                (claim.since, id(request), request) for request, claim in self._connections.items() if claim.since
            ]
        if not waiting:
            return False
        since, _, oldest = min(waiting)
        if now - since >= _GRACE_S:
            with suppress(OSError):  # its thread ends, and gives the slot back
                oldest.shutdown(socket.SHUT_RDWR)
        return True

    def note(self, request: Any, *, accepted: bool) -> None:
        """Note that a connection waits for a request, or that its request was accepted."""
        with self._lock:
            claim = self._connections.get(request)
            if claim is not None:
                claim.since = 0.0 if accepted else time.monotonic()

    def is_in_reserve(self, request: Any) -> bool:
        """Tell whether a connection was served though there was no room."""
        with self._lock:
            return self._connections[request].slots is self._reserve

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection to its end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                claim = self._connections.pop(request)
            claim.slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a connection that broke; report anything else."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class ThreadedHandler(BaseHTTPRequestHandler):
    """Answers the requests of one connection of a `ThreadedServer`.

    A handler that knows its client calls `accept`; until then the connection gives way to others when all are taken.
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
        self.server.note(self.connection, accepted=False)
        self._reader.expect(self.timeout)
        super().handle_one_request()

    def accept(self, within_s: float) -> None:
        """Keep the connection whatever comes, and give its client so much time for the rest of the request."""
        self.server.note(self.connection, accepted=True)
        self._reader.extend(within_s)

    @property
    def is_in_reserve(self) -> bool:
        """True if the connection is served though there was no room for it."""
        return self.server.is_in_reserve(self.connection)

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
