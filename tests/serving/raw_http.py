"""A plain socket, for saying exactly what goes over the wire."""

from __future__ import annotations

import json
import socket
import ssl
from dataclasses import dataclass


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self):
        return json.loads(self.body)


class Http:
    """One connection."""

    def __init__(self, port: int, timeout: float = 20, *, tls: ssl.SSLContext | None = None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="127.0.0.1")
        self._file = self.socket.makefile("rb")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def request(self, method: str, path: str, body: bytes | dict = b"", headers: dict[str, str] | None = None) -> None:
        body = json.dumps(body).encode() if isinstance(body, dict) else body
        lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    def reply(self, *, has_body: bool = True) -> Reply:
        line = self._file.readline()
        if not line:
            raise ConnectionError("closed")
        headers = {}
        while (header := self._file.readline().strip()) != b"":
            name, _, value = header.decode().partition(": ")
            headers[name.lower()] = value
        length = int(headers.get("content-length", 0)) if has_body else 0
        return Reply(int(line.split()[1]), headers, self._file.read(length))

    def ask(self, method: str, path: str, body: bytes | dict = b"", headers: dict[str, str] | None = None) -> Reply:
        self.request(method, path, body, headers)
        return self.reply()

    def predict(self, x, **headers: str) -> Reply:
        return self.ask(
            "POST", "/v1/predict", {"inputs": {"x": x}}, {k.replace("_", "-"): v for k, v in headers.items()}
        )

    def is_closed(self) -> bool:
        try:
            return self._file.read(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
