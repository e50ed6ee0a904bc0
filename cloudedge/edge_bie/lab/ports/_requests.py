"""Requests and answers of the lab's three ports, on the HTTP server that serving has too."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from cloudedge.http1 import ConnectionLimits, Handler, HttpAnswer, HttpCall
from cloudedge.io import json_parts

__all__ = ["CRASHED", "JSON", "LIMITS", "Request", "RequestHandler", "on_calls"]

JSON = "application/json; charset=utf-8"
CRASHED = HttpAnswer(500, b'{"code":"UnknownError","message":"internal","requestId":""}', JSON)
LIMITS = ConnectionLimits(
    max_body_bytes=8 << 20,
    max_answer_bytes=1 << 30,
    max_connections=8192,
    idle_timeout_s=120.0,
    body_timeout_s=120.0,
    write_timeout_s=60.0,
)
_MAX_PARTS = 1 << 20
"""Values, lists, keys and texts of a body: a few bytes of JSON each, which take a hundred once they are parsed."""
_TOO_MANY_PARTS = HttpAnswer(
    413,
    b'{"code":"ErrRequestParamInvalid","message":"the body has more than %d values","requestId":""}' % _MAX_PARTS,
    JSON,
)


@dataclass(slots=True)
class Request:
    """One request."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    peer: str
    path: str = field(init=False)
    query: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.target)
        self.path = unquote(parts.path)
        self.query = dict(parse_qsl(parts.query, keep_blank_values=True)) if parts.query else {}


RequestHandler = Callable[[Request], "HttpAnswer | Coroutine[Any, Any, HttpAnswer]"]


def on_calls(handler: RequestHandler) -> Handler:
    """Return the handler for the HTTP server of one for requests."""

    def handle(call: HttpCall) -> HttpAnswer | Coroutine[Any, Any, HttpAnswer]:
        if len(call.body) > _MAX_PARTS and json_parts(call.body) > _MAX_PARTS:
            return _TOO_MANY_PARTS
        return handler(Request(call.method, call.path, call.headers, call.body, call.peer))

    return handle
