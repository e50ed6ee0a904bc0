"""The server side of every admin API: JSON over HTTP on a port of its own, with a token.

Paths other than ``/health`` and ``/ready`` need the token, on loopback too (`_tokens`). A request without it is neither
kept nor parsed, and neither is one that a page in a browser made: bodies are JSON or pieces of files, no request has an
``Origin``, and on loopback ``Host`` names loopback. Requests with the token are bounded; ``/health`` and ``/ready`` are
answered beside them. Each API lists its requests in `AdminHttp.routes`; one whose answers have another form implements
`AdminHttp.answer`. Errors become a status and ``{"error", "hint", "kind"}`` (`_wire_errors`). Nothing is logged: the
answers report what happened, and a token may be in a request.

A release numbers its orders (`ordered`), and every request then carries its order's number. A server obeys orders one
after the other and refuses one that is older than the last it obeyed. So the late requests of a process that was killed
change nothing once its successor has made a call. Where the server keeps the number in a file, this holds after a kill
of the server too. Requests without a number are obeyed as they come.

Where an API accepts files, a piece of one comes as ``application/octet-stream``, and a header states its offset.
"""

from __future__ import annotations

import hmac
import json
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from cloudedge.admin._orders import OFFSET, ORDER, PIECE, parse_number
from cloudedge.admin._states import DRAINING
from cloudedge.admin._tokens import OwnToken
from cloudedge.admin._wire_errors import error_fields, status_of
from cloudedge.errors import CloudEdgeError, ConfigError, Conflict, InputError, NotFound
from cloudedge.http1 import ThreadedHandler, ThreadedServer, is_loopback

__all__ = ["AdminHttp", "Reply"]

Reply = tuple[HTTPStatus, Any]
"""A status and its content; text stays text, everything else becomes JSON."""

_MAX_REQUESTS = 128
"""Requests with the token that are answered at once; one more is refused with status 503."""
_MAX_IGNORED = 64 * 1024
"""Bytes of an unwanted body that are read all the same, so that its sender gets to see the answer."""
_SLOWEST = 100_000
"""Bytes per second at which the body of a client with the token arrives, at least."""
_OPEN = {"/health", "/ready"}
_JSON = "application/json"
_DRAIN_S, _LONGEST_DRAIN_S = 10.0, 24 * 3600
_Admin = TypeVar("_Admin", bound="AdminHttp")


class AdminHttp:
    """Serves an admin API until closed.

    Args:
        name: The name of the thread, and of the server in answers: ``cloudedge-NAME``.
        host: The address to listen on; loopback by default.
        port: 0 takes any free one.
        token: What clients must send as ``Authorization: Bearer TOKEN``; required unless `host` is loopback, where the
            server makes one that clients of the same user find.
        orders: File for the number of the last order that was obeyed; forgotten with the process if left out.
    """

    max_body_bytes = 64 * 1024
    max_piece_bytes = 0
    """The most bytes of a piece of a file, which `answer` gets as ``{"offset", "content"}``; 0: no files."""
    needs_token_on_loopback = True
    """False for an API that changes nothing and whose clients on loopback know no token."""

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
                hint="Set a token, or listen on 127.0.0.1.",
            )
        self.name = name
        self.listens_on_loopback = is_loopback(host)
        self._own_token = OwnToken() if self.needs_token_on_loopback and not token else None
        self._token = self._own_token.text if self._own_token else token or ""
        self._draining = threading.Lock()
        self._obeying = threading.Lock()
        self._orders = orders
        self._obeyed = _read_mark(orders)
        self._http = _Http(self, host, port)

    def drain(
        self, body: Mapping[str, Any], drain: Callable[[float], object], then: Callable[[], None] | None
    ) -> Reply:
        """Begin to drain in the background, for as long as the body states; `then` is called at the end.

        Raises:
            Conflict: a drain is under way already.
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
        return HTTPStatus.ACCEPTED, {"state": DRAINING}

    @property
    def has_begun_to_drain(self) -> bool:
        """True from the answer of `drain` on, though the server may only be about to begin."""
        return self._draining.locked()

    def routes(self, body: dict[str, Any]) -> Mapping[str, Callable[..., Reply]]:  # noqa: ARG002 - subclasses use it
        """List the functions of this API by method and path, for a request with this body.

        Names in the path, as in ``GET /versions/NAME``, are a function's arguments.
        """
        return {}

    def answer(self, method: str, path: str, body: dict[str, Any]) -> Reply:
        """Answer a request by its function in `routes`; text stays text, everything else becomes JSON.

        Raises:
            NotFound: no route matches.
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
        routes = self.routes(body)
        if found not in routes:
            raise NotFound(f"no {found} in the admin API")
        return routes[found](*arguments)

    def obey(self, order: str, method: str, path: str, body: dict[str, Any]) -> Reply:
        """Answer a request, in its order if it has one."""
        if not order:
            return self.answer(method, path, body)
        number = parse_number(ORDER, order)
        with self._obeying:
            if number < self._obeyed:
                raise Conflict(
                    f"order {order} comes after order {self._obeyed} was obeyed",
                    hint="Another process works on this server, or the journal that numbers orders was lost. In that "
                    "case, run `cloudedge journal rebuild TARGET`.",
                )
            if number > self._obeyed:
                self._obeyed = number
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
        # is no room for a number, there will be none for the ordered work either, and that reports it.
        with suppress(OSError):
            unfinished = self._orders.with_name(f".{self._orders.name}")
            unfinished.write_text(str(self._obeyed), encoding="ascii")
            unfinished.replace(self._orders)

    def listen(self) -> None:
        """Begin to answer; called once `answer` has everything it needs."""
        if self._own_token is not None:
            self._own_token.keep(self.port)
        self._http.start()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._http.port

    def authorised(self, header: str) -> bool:
        """Tell whether a request carries the token."""
        return not self._token or hmac.compare_digest(header.encode(), f"Bearer {self._token}".encode())

    @property
    def token_file(self) -> Path | None:
        """The file in which clients of the same user find the token, if this server made it."""
        return self._own_token.path if self._own_token else None

    @property
    def token(self) -> str:
        """The token that clients must send; empty if they need none."""
        return self._token

    def close(self) -> None:
        """Stop listening."""
        if self._own_token is not None:
            self._own_token.remove()
        self._http.close()

    def __enter__(self: _Admin) -> _Admin:  # noqa: PYI019 - typing.Self is not in 3.10
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _read_mark(path: Path | None) -> int:
    try:
        return parse_number(ORDER, path.read_text(encoding="ascii")) if path is not None else 0
    except (OSError, UnicodeDecodeError, InputError):
        return 0


class _Http(ThreadedServer):
    def __init__(self, admin: AdminHttp, host: str, port: int) -> None:
        self.admin = admin
        name = f"{admin.name}-admin"
        super().__init__(
            host,
            port,
            _Handler,
            name=name,
            max_requests=_MAX_REQUESTS,
            title="the admin API",
        )


class _Handler(ThreadedHandler):
    server: _Http
    timeout = 10  # for a client that does not finish its request, or does not read the answer

    def version_string(self) -> str:
        return f"cloudedge-{self.server.admin.name}"

    def _do(self) -> None:
        path = self.path.partition("?")[0]
        admin = self.server.admin
        refusal = None if path in _OPEN else self._refusal()
        if refusal is not None:
            self.close_connection = self.has_body
            self._send(*refusal)
            self._ignore_body()
            return
        try:
            if path in _OPEN:
                self._ignore_body()
                reply = admin.answer(self.command, path, {})
            else:
                reply = admin.obey(self.headers.get(ORDER, ""), self.command, path, self._body())
        except CloudEdgeError as error:
            reply = status_of(error), error_fields(error)
        self._send(*reply)

    def _refusal(self) -> Reply | None:
        """The answer to a request that is not accepted."""
        admin = self.server.admin
        if not admin.authorised(self.headers.get("Authorization", "")):
            return HTTPStatus.UNAUTHORIZED, {"error": "the admin API needs its token"}
        if "Origin" in self.headers:
            return HTTPStatus.FORBIDDEN, {"error": "the admin API does not answer pages in a browser"}
        host = self.headers.get("Host", "localhost")
        if admin.listens_on_loopback and not is_loopback(urlsplit(f"//{host}").hostname or ""):
            return HTTPStatus.FORBIDDEN, {"error": "the Host header names another machine than this one"}
        content_type = self.headers.get_content_type()
        if self.has_body and content_type not in (_JSON, PIECE):
            return HTTPStatus.UNSUPPORTED_MEDIA_TYPE, {"error": f"a body here is {_JSON} or {PIECE}"}
        if not self.accept(self.timeout + (self.body_length or 0) / _SLOWEST):
            return HTTPStatus.SERVICE_UNAVAILABLE, {"error": "too many requests at once"}
        return None

    def _ignore_body(self) -> None:
        """Read enough of an unwanted body for the answer to arrive; the rest ends the connection."""
        if not self.has_body:
            return
        self.close_connection = True
        self.rfile.read(min(self.body_length or 0, _MAX_IGNORED))

    do_GET = do_POST = do_PUT = do_DELETE = _do  # noqa: N815 - the names BaseHTTPRequestHandler calls

    def _body(self) -> dict[str, Any]:
        length = self.body_length
        is_piece = self.headers.get_content_type() == PIECE
        limit = self.server.admin.max_piece_bytes if is_piece else self.server.admin.max_body_bytes
        if length is None or length > limit:
            self.close_connection = True
            raise InputError(f"a body of at most {limit} bytes, with its Content-Length, is taken here")
        content = self.rfile.read(length)
        if len(content) != length:
            self.close_connection = True
            raise InputError(f"the body ended after {len(content)} of {length} bytes")
        if is_piece:
            return {"offset": parse_number(OFFSET, self.headers.get(OFFSET, "")), "content": content}
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
        headers = {"Content-Type": "text/plain" if isinstance(content, str) else "application/json"}
        if status == HTTPStatus.UNAUTHORIZED:
            headers["WWW-Authenticate"] = "Bearer"
        self.send_head(status, len(data), headers)
        self.wfile.write(data)
