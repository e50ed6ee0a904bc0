"""An HTTP/1.1 server with a thread per connection: for admin APIs and files, which are asked rarely and may block.

Connections at once are bounded. One too many is refused with status 503, or waits in the listener's queue. Nothing is
logged, because a token may be in a request; only a fault of the program itself reaches standard error.
"""

from __future__ import annotations

import ipaddress
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cloudedge.errors import Conflict
from cloudedge.io import parse_length

__all__ = ["ThreadedHandler", "ThreadedServer", "is_loopback"]

_FULL = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_POLL_S = 0.05
"""Seconds between two checks of the listener whether it was closed."""


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach a host name or address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class ThreadedServer(ThreadingHTTPServer):
    """Listens on construction, and answers from `start` until closed.

    Args:
        host: The address to listen on.
        port: 0 takes any free one.
        handler: Answers requests.
        name: Of the listener's thread.
        max_connections: Served at once.
        wait: Let further connections wait in the listener's queue, instead of refusing them.
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
        title: str = "the server",
    ) -> None:
        self._slots = threading.BoundedSemaphore(max_connections)
        self._wait = wait
        self._closing = False
        self._connections: set[Any] = set()
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
        for request in list(self._connections) if break_off else ():
            self.shutdown_request(request)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread, where there is room."""
        while not self._slots.acquire(blocking=self._wait, timeout=_POLL_S if self._wait else None):
            if self._closing or not self._wait:
                if not self._wait:
                    with suppress(OSError):
                        request.sendall(_FULL)
                self.shutdown_request(request)
                return
        self._connections.add(request)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection to its end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.discard(request)
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a connection that broke; report anything else."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class ThreadedHandler(BaseHTTPRequestHandler):
    """Answers the requests of one connection of a `ThreadedServer`."""

    protocol_version = "HTTP/1.1"
    server_version = "cloudedge"
    sys_version = ""
    timeout = 30  # for a client that neither asks nor reads
    disable_nagle_algorithm = True

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
