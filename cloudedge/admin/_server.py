"""What admin APIs share: JSON over HTTP on a port of its own, with a token.

Paths other than ``/health`` and ``/ready`` need the token, and nothing that a client sends without it is kept or
parsed; so many connections are served at once and no more. What a request means is the API's own: it implements
`AdminHttp.answer`. Errors become a status and ``{"error", "hint", "kind"}``. Nothing is logged: what was asked is in
the answers, and a token may be in what was asked.

Whoever releases numbers its orders (`ordered`), and every request then carries its order's number. A server obeys
orders one after the other and refuses one that is older than what it has obeyed: the last words of a process that was
killed change nothing once its successor has spoken, and not after the server was killed either where it keeps its mark
in a file. Requests without a number are obeyed as they come.

Where an API takes files, a piece of one comes as ``application/octet-stream`` and says in a header where it belongs.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from cloudedge.errors import CloudEdgeError, ConfigError, Conflict, InputError, NotFound, Unavailable

__all__ = ["AdminHttp", "Reply", "is_loopback", "order_header", "ordered", "piece_header"]

Reply = tuple[HTTPStatus, Any]
"""A status and its content; text stays text, everything else becomes JSON."""

_STATUS = {
    InputError: HTTPStatus.BAD_REQUEST,
    NotFound: HTTPStatus.NOT_FOUND,
    Conflict: HTTPStatus.CONFLICT,
    Unavailable: HTTPStatus.SERVICE_UNAVAILABLE,
}
_MAX_CONNECTIONS = 128
"""Served at once, each by a thread; a client that is one too many is told to come back."""
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_MAX_IGNORED = 64 * 1024
"""Bytes of a body nobody wants that are read all the same, so that its sender gets to see the answer."""
_POLL_S = 0.05
"""How often the listener looks whether it was closed."""
_OPEN = {"/health", "/ready"}
_DRAIN_S, _LONGEST_DRAIN_S = 10.0, 24 * 3600
_Admin = TypeVar("_Admin", bound="AdminHttp")
_ORDER, _OFFSET, _DIGITS = "Cloudedge-Order", "Cloudedge-Offset", 19
_PIECE = "application/octet-stream"
_order: ContextVar[int | None] = ContextVar("order", default=None)


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach a host name or address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextmanager
def ordered(number: int) -> Iterator[None]:
    """Let what this thread asks of admin APIs carry an order's number until the block ends."""
    token = _order.set(number)
    try:
        yield
    finally:
        _order.reset(token)


def order_header() -> dict[str, str]:
    """Return the header that a client of an admin API sends along."""
    number = _order.get()
    return {} if number is None else {_ORDER: str(number)}


def piece_header(offset: int) -> dict[str, str]:
    """Return the headers that go with a piece of a file."""
    return {"Content-Type": _PIECE, _OFFSET: str(offset)}


class AdminHttp(ABC):
    """Serves an admin API until closed.

    Args:
        name: Of the thread, and what answers call themselves: ``cloudedge-NAME``.
        host: Where to listen; loopback unless told otherwise.
        port: 0 takes any free one.
        token: What clients must send as ``Authorization: Bearer TOKEN``; required unless `host` is loopback.
        orders: File for the number of the last order that was obeyed; forgotten with the process if left out.
    """

    max_body_bytes = 64 * 1024
    max_piece_bytes = 0
    """Of a piece of a file, which `answer` gets as ``{"offset", "content"}``; 0: this API takes no files."""

    def __init__(
        self,
        name: str,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        orders: Path | None = None,
    ) -> None:
        if not token and not is_loopback(host):
            raise ConfigError(
                f"the admin API would listen on {host} without a token",
                hint="set a token, or listen on 127.0.0.1",
            )
        self.name = name
        self._token = token
        self._draining = threading.Lock()
        self._obeying = threading.Lock()
        self._orders = orders
        self._obeyed = _read_mark(orders)
        try:
            self._http = _Http((host, port), self)
        except OSError as error:
            raise Conflict(f"the admin API cannot listen on {host}:{port}: {error.strerror}") from error
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(_POLL_S,), name=f"{name}-admin", daemon=True
        )

    def route(self, method: str, path: str, routes: Mapping[str, Callable[..., Reply]]) -> Reply:
        """Do what `routes` has for a request; names in the path, as in ``/versions/NAME``, are its arguments.

        Raises:
            NotFound: there is nothing.
        """
        match path.strip("/").split("/"):
            case ["versions", name]:
                found, arguments = f"{method} /versions/NAME", [unquote(name)]
            case ["versions", name, action]:
                found, arguments = f"{method} /versions/NAME/{action}", [unquote(name)]
            case ["staged", name, file]:
                found, arguments = f"{method} /staged/NAME/FILE", [unquote(name), unquote(file)]
            case parts:
                found, arguments = f"{method} /{'/'.join(parts)}", []
        if found not in routes:
            raise NotFound(f"no {found} in the admin API")
        return routes[found](*arguments)

    def drain(
        self, body: Mapping[str, Any], drain: Callable[[float], object], then: Callable[[], None] | None
    ) -> Reply:
        """Begin to drain in the background, for as long as the body says; `then` is called when that has ended.

        Raises:
            Conflict: that is under way already.
        """
        within_s = body.get("within_s", _DRAIN_S)
        if isinstance(within_s, bool) or not isinstance(within_s, int | float) or not 0 <= within_s <= _LONGEST_DRAIN_S:
            raise InputError(f"within_s is a number of seconds, not {within_s!r}")
        if not self._draining.acquire(blocking=False):
            raise Conflict("the server is draining already")

        def run() -> None:
            drain(within_s)
            if then is not None:
                then()

        threading.Thread(target=run, name=f"{self.name}-drain", daemon=True).start()
        return HTTPStatus.ACCEPTED, {"state": "draining"}

    @property
    def is_told_to_drain(self) -> bool:
        """Whether `drain` was called: true from its answer on, though the server may only be about to begin."""
        return self._draining.locked()

    @abstractmethod
    def answer(self, method: str, path: str, body: dict[str, Any]) -> Reply:
        """Do what a request asks for."""

    def obey(self, order: str, method: str, path: str, body: dict[str, Any]) -> Reply:
        """Answer a request, in its order if it has one."""
        if not order:
            return self.answer(method, path, body)
        if not order.isdecimal() or len(order) > _DIGITS:
            raise InputError(f"{_ORDER} is a number, not {order[:_DIGITS]!r}")
        with self._obeying:
            if int(order) < self._obeyed:
                raise Conflict(
                    f"order {order} comes after order {self._obeyed} was obeyed",
                    hint="Somebody else works on this server. If the journal was lost that numbers orders, "
                    + (f"remove {self._orders} and restart it." if self._orders else "restart it."),
                )
            if int(order) > self._obeyed:
                self._obeyed = int(order)
                self._keep_mark()
            return self.answer(method, path, body)

    @property
    def obeyed(self) -> int:
        """The number of the last order; 0 if there was none."""
        return self._obeyed

    def _keep_mark(self) -> None:
        if self._orders is None:
            return
        # Not synced: it has to outlive the process, and a machine that went down has no late calls left. Where there
        # is no room for a number, there will be none for what was ordered, and that says so.
        with suppress(OSError):
            unfinished = self._orders.with_name(f".{self._orders.name}")
            unfinished.write_text(str(self._obeyed), encoding="ascii")
            unfinished.replace(self._orders)

    def listen(self) -> None:
        """Begin to answer; called once everything that `answer` needs is there."""
        self._thread.start()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._http.server_address[1])

    def authorised(self, header: str) -> bool:
        """Tell whether a request may do more than ask for health."""
        return self._token is None or hmac.compare_digest(header.encode(), f"Bearer {self._token}".encode())

    def close(self) -> None:
        """Stop listening."""
        if self._thread.is_alive():
            self._http.shutdown()
            self._thread.join()
        self._http.server_close()

    def __enter__(self: _Admin) -> _Admin:  # noqa: PYI019 - typing.Self is not in 3.10
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _read_mark(path: Path | None) -> int:
    try:
        text = path.read_text(encoding="ascii") if path is not None else ""
    except (OSError, UnicodeDecodeError):
        return 0
    return int(text) if text.isdecimal() and len(text) <= _DIGITS else 0


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > _DIGITS:
        raise InputError(f"{_OFFSET} is a number, not {text[:_DIGITS]!r}")
    return int(text)


class _Http(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], admin: AdminHttp) -> None:
        super().__init__(address, _Handler)
        self.admin = admin
        self._room = threading.BoundedSemaphore(_MAX_CONNECTIONS)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
            return
        with suppress(OSError):
            request.sendall(_FULL)
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()


class _Handler(BaseHTTPRequestHandler):
    server: _Http
    protocol_version = "HTTP/1.1"
    timeout = 10  # for a client that does not finish its request
    disable_nagle_algorithm = True

    def version_string(self) -> str:
        return f"cloudedge-{self.server.admin.name}"

    def _do(self) -> None:
        path = urlsplit(self.path).path
        admin = self.server.admin
        if path not in _OPEN and not admin.authorised(self.headers.get("Authorization", "")):
            self._ignore_body()
            self._send(HTTPStatus.UNAUTHORIZED, {"error": "the admin API needs its token"})
            return
        try:
            if path in _OPEN:
                self._ignore_body()
                reply = admin.answer(self.command, path, {})
            else:
                reply = admin.obey(self.headers.get(_ORDER, ""), self.command, path, self._body())
        except CloudEdgeError as error:
            status = next((s for kind, s in _STATUS.items() if isinstance(error, kind)), None)
            found = {"error": error.message, "hint": error.hint, "kind": type(error).__name__}
            reply = status or HTTPStatus.INTERNAL_SERVER_ERROR, found
        self._send(*reply)

    def _ignore_body(self) -> None:
        """Read no further than it takes for the answer to arrive; what is left of the body ends the connection."""
        length = self.headers.get("Content-Length", "0")
        if length == "0" and "Transfer-Encoding" not in self.headers:
            return
        self.close_connection = True
        self.rfile.read(min(int(length), _MAX_IGNORED) if length.isdecimal() else 0)

    do_GET = do_POST = do_PUT = do_DELETE = _do  # noqa: N815 - the names BaseHTTPRequestHandler calls

    def _body(self) -> dict[str, Any]:
        length = self.headers.get("Content-Length", "0")
        is_piece = self.headers.get("Content-Type") == _PIECE
        limit = self.server.admin.max_piece_bytes if is_piece else self.server.admin.max_body_bytes
        if not length.isdecimal() or int(length) > limit or "Transfer-Encoding" in self.headers:
            self.close_connection = True
            raise InputError(f"a body of at most {limit} bytes, with its Content-Length, is taken here")
        content = self.rfile.read(int(length))
        if len(content) != int(length):
            self.close_connection = True
            raise InputError(f"the body ended after {len(content)} of {length} bytes")
        if is_piece:
            return {"offset": _number(self.headers.get(_OFFSET, "")), "content": content}
        try:
            body = json.loads(content or b"{}")
        except (ValueError, RecursionError) as error:
            raise InputError(f"the body is not JSON: {error}") from error
        if not isinstance(body, dict):
            raise InputError("the body is not a JSON object")
        return body

    def _send(self, status: HTTPStatus, content: Any) -> None:
        text = content if isinstance(content, str) else json.dumps(content, indent=2) + "\n"
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain" if isinstance(content, str) else "application/json")
        self.send_header("Content-Length", str(len(data)))
        if status == HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the parent's name
        """Keep quiet."""
