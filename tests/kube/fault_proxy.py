"""A server between us and an API server, or instead of one, that fails in the ways networks and servers do."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import urllib3
import yaml

HANG_S = 5.0


def status(code, reason="", message="said so", *, causes=(), headers=None):
    """Answer with a refusal as an API server writes it."""
    details = {"causes": list(causes)}
    body = {"kind": "Status", "code": code, "reason": reason, "message": message, "details": details}
    return lambda handler: handler.answer(code, json.dumps(body).encode(), headers or {})


def says(value):
    """Answer with JSON."""
    return lambda handler: handler.answer(200, json.dumps(value).encode(), {})


def lines(*values, then="end"):
    """Answer with a watch: some events, then the end, or none."""

    def act(handler):
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for value in values:
            data = value if isinstance(value, bytes) else json.dumps(value).encode() + b"\n"
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        if then == "cut":
            handler.close_connection = True
        else:
            handler.wfile.write(b"0\r\n\r\n")

    return act


def reset(handler):
    """Drop the connection with a reset, after the request was read."""
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.close_connection = True
    handler.connection.close()
    raise ConnectionAbortedError


def hang(handler):
    """Say nothing for longer than anybody waits."""
    handler.server.stopping.wait(HANG_S)
    handler.close_connection = True


def forward(handler):
    """Let the real server answer."""
    handler.forward()


def forward_then_reset(handler):
    """Let the real server do it, and lose its answer."""
    handler.forward(answer=False)
    reset(handler)


class Faults(ThreadingHTTPServer):
    """Does what `script` says, request by request, then what `otherwise` says.

    `choose` may decide by method and path instead.
    """

    daemon_threads = True

    def __init__(self, upstream=None, token=""):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script: list[Callable] = []
        self.otherwise: Callable = forward if upstream else status(404, "NotFound")
        self.choose: Callable | None = None
        self.seen: list[tuple[str, str]] = []
        self.stopping = threading.Event()
        self.upstream, self.token = upstream, token
        self.open: set[socket.socket] = set()
        self.pool = urllib3.PoolManager(cert_reqs="CERT_NONE", retries=False, timeout=30)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request, client_address):
        pass  # broken connections are what it is for

    def cut(self):
        """Drop every connection that is open now."""
        for connection in list(self.open):
            with_reset = struct.pack("ii", 1, 0)
            try:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, with_reset)
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def kubeconfig(self, path: Path, *, token="a-secret-token", namespace="default") -> Path:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": self.url}}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": namespace}}],
            "current-context": "x",
        }
        path.write_text(yaml.safe_dump(config))
        return path


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Faults

    def log_message(self, *arguments):
        pass

    def setup(self):
        super().setup()
        self.server.open.add(self.connection)

    def finish(self):
        self.server.open.discard(self.connection)
        super().finish()

    def _do(self):
        length = int(self.headers.get("Content-Length") or 0)
        self.body = self.rfile.read(length) if length else None
        self.server.seen.append((self.command, self.path))
        chosen = self.server.choose(self.command, self.path) if self.server.choose else None
        if chosen is None:
            chosen = self.server.script.pop(0) if self.server.script else self.server.otherwise
        chosen(self)

    do_GET = do_POST = do_PATCH = do_DELETE = _do  # noqa: N815

    def answer(self, code, body, headers):
        self.send_response(code)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def forward(self, *, answer=True):
        headers = {key: self.headers[key] for key in ("Content-Type", "Accept") if self.headers.get(key)}
        headers["Authorization"] = f"Bearer {self.server.token}"
        found = self.server.pool.request(
            self.command, self.server.upstream + self.path, body=self.body, headers=headers, preload_content=False
        )
        try:
            if not answer:
                found.read()
                return
            self.send_response(found.status)
            self.send_header("Content-Type", found.headers.get("Content-Type", "application/json"))
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            chunks = found.read_chunked() if found.chunked else found.stream(65536)
            for chunk in chunks:
                if chunk:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                    self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
        finally:
            found.close()


@contextmanager
def faults(kubeconfig: str | None = None):
    """Run one; with a kubeconfig, in front of that cluster."""
    upstream, token = None, ""
    if kubeconfig:
        config = yaml.safe_load(Path(kubeconfig).read_text())
        upstream = config["clusters"][0]["cluster"]["server"]
        token = config["users"][0]["user"]["token"]
    server = Faults(upstream, token)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stopping.set()
        server.cut()
        server.shutdown()
        server.server_close()
        thread.join()
        server.pool.clear()


def settled(condition, *, within_s=20.0):
    """Wait for something another thread does."""
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
