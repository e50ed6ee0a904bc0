"""The port of an upstream server: baidu_std frames and HTTP in any order on one connection, as brpc takes them."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from typing import TYPE_CHECKING, Any

from cloudedge.testing.upstream_cube._wire import (
    HEADER,
    error_frame,
    frame_parts,
    read_seek,
    seek_frame,
    seek_message,
    write_seek,
)

if TYPE_CHECKING:
    from cloudedge.testing.upstream_cube._server import UpstreamServer

__all__ = ["Listener"]

_SEEKS = {"rec.mcube.DictService.seek", "DictService.seek"}


class Listener(socketserver.ThreadingTCPServer):
    """Accepts connections for a server until ended."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, cube: UpstreamServer) -> None:
        self.cube = cube
        self._open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", port), _Connection)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: clients come and go."""

    def end(self) -> None:
        """Break all connections."""
        self.shutdown()
        self.server_close()
        for request in list(self._open):
            with contextlib.suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)
        self._thread.join()


class _Connection(socketserver.StreamRequestHandler):
    server: Listener
    disable_nagle_algorithm = True
    timeout = 60

    def handle(self) -> None:
        with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
            while head := self.rfile.peek(1)[:1]:  # type: ignore[attr-defined]
                if head == b"P" and self._is_frame():
                    self._frame()
                elif not self._http():
                    return

    def _is_frame(self) -> bool:
        self._begin = self.rfile.read(4)
        return self._begin == b"PRPC"

    def _frame(self) -> None:
        head = self._begin + self.rfile.read(HEADER - 4)
        self._begin = b""
        correlation, method, payload = read_seek(head, self.rfile.read(frame_parts(head)))
        if method not in _SEEKS:
            self.wfile.write(error_frame(correlation, 1002, f"[E1002]Fail to find method={method}"))
            return
        wanted = seek_message(payload)
        values, version = self.server.cube.seek(wanted.keys)
        self.wfile.write(seek_frame(correlation, write_seek(values, version if wanted.wants_version else None)))

    def _http(self) -> bool:
        line = (getattr(self, "_begin", b"") + self.rfile.readline(65536)).decode("latin-1").split()
        self._begin = b""
        headers: dict[str, str] = {}
        while text := self.rfile.readline(65536).strip():
            name, _, value = text.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        body = self.rfile.read(int(headers.get("content-length", "0")))
        kind = headers.get("content-type", "")
        status, answer = self.server.cube.http(line[0], line[1].partition("?")[0], kind, body)
        lines = [
            f"HTTP/1.1 {status} x",
            f"Content-Length: {len(answer)}",
            f"Content-Type: {kind or 'application/json'}",
        ]
        self.wfile.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + answer)
        return headers.get("connection", "").lower() != "close"
