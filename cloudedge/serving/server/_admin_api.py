"""The admin API of a serving replica: JSON over HTTP on a port of its own.

    GET    /health                   is the process there                                       (no token)
    GET    /ready                    does the active version answer its probes, and no stop under way (no token)
    GET    /metrics                  Prometheus
    GET    /stats                    the same for people
    GET    /versions                 what is loaded, what became of loads, who answers, and what memory is free
    POST   /versions                 {"bundle", "name"?, "tables"?}: load in the background, 202; 200 if it is there
                                     already; "tables" says what cube.conf calls each table, if not by its name
    GET    /versions/PIN             one of them
    POST   /versions/PIN/probe       answer its probes again
    POST   /versions/PIN/predict     {"inputs", "outputs"?}: ask this one, active or not
    POST   /versions/PIN/activate    move the pointer
    DELETE /active                   take the pointer away: no version answers, as before the first
    DELETE /versions/PIN             unload it once its last request is done
    PUT    /weights                  {"variants": [{"pin", "weight", "tag"?}]}: share the traffic; none: stop sharing
    PUT    /shadow                   {"pin", "share"?, "tolerance"?}: mirror requests; {}: stop
    GET    /desired                  where it follows a document (`cloudedge serve --follow`): how far it is
    PUT    /desired                  the document itself: have these versions, answer in these shares, 202
    POST   /drain                    {"within_s"?}: stop accepting, finish, close, 202

Every operation can be repeated: what is so already is answered as if it had just been done. A replica that follows a
document takes no other orders about versions.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict
from http import HTTPStatus
from pathlib import Path
from typing import Any

from cloudedge.admin import AdminHttp, Reply, states, with_free_memory
from cloudedge.errors import Conflict, InputError
from cloudedge.io import free_memory_bytes
from cloudedge.serving.control import Desired, Shadow, Variant
from cloudedge.serving.protocols import Pinned
from cloudedge.serving.runtime import Follower, Runtime
from cloudedge.serving.server._report import prometheus, stats
from cloudedge.serving.server._routes import answer_json, predict_json
from cloudedge.serving.server._server import Server

__all__ = ["AdminServer"]

_ORDERS = (
    "POST /versions", "POST /versions/NAME/activate", "DELETE /active", "DELETE /versions/NAME", "PUT /weights",
)  # fmt: skip
"""What a replica that follows a document does by itself."""


class AdminServer(AdminHttp):
    """Serves the admin API of a server until closed.

    Args:
        server: What it administers.
        host: The address to listen on; loopback by default.
        port: 0 takes any free one.
        token: What clients must send as ``Authorization: Bearer TOKEN``; required unless `host` is loopback.
        on_drained: Called once a drain that was asked for has ended.
        orders: File for the number of the last order that was obeyed; forgotten with the process if left out.
        follower: Who brings the runtime to what a document says, if it follows one.
    """

    max_body_bytes = 1 << 20  # a document has a cube.conf in it, and that names every shard

    def __init__(
        self,
        server: Server,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        on_drained: Callable[[], None] | None = None,
        orders: Path | None = None,
        follower: Follower | None = None,
    ) -> None:
        super().__init__("serving", host=host, port=port, token=token, orders=orders)
        self._server = server
        self._runtime: Runtime = server.runtime
        self._on_drained = on_drained
        self._follower = follower
        self.listen()

    def routes(self, body: dict[str, Any]) -> dict[str, Callable[..., Reply]]:
        """List the requests of this API."""
        runtime = self._runtime
        routes: dict[str, Callable[..., Reply]] = {
            "GET /health": lambda: (HTTPStatus.OK, "ok\n"),
            "GET /ready": self._ready,
            "GET /metrics": lambda: (HTTPStatus.OK, prometheus(runtime, self._server.connections)),
            "GET /stats": lambda: (HTTPStatus.OK, stats(runtime, self._server.connections)),
            "GET /versions": lambda: (HTTPStatus.OK, self._versions()),
            "POST /versions": lambda: self._load(body),
            "GET /versions/NAME": lambda pin: (HTTPStatus.OK, asdict(runtime.version(pin))),
            "POST /versions/NAME/probe": self._probe,
            "POST /versions/NAME/predict": lambda pin: self._predict(pin, body),
            "POST /versions/NAME/activate": self._activate,
            "DELETE /active": self._deactivate,
            "DELETE /versions/NAME": self._unload,
            "PUT /weights": lambda: self._weights(body),
            "PUT /shadow": lambda: self._shadow(body),
            "POST /drain": lambda: self.drain(body, self._server.drain, self._on_drained),
        }
        follower = self._follower
        if follower is not None:
            routes |= dict.fromkeys(_ORDERS, _refuse)
            routes["GET /desired"] = lambda: (HTTPStatus.OK, follower.status())
            routes["PUT /desired"] = lambda: self._take(follower, body)
        return routes

    def _take(self, follower: Follower, body: dict[str, Any]) -> Reply:
        follower.take(Desired.parse(json.dumps(body)))
        return HTTPStatus.ACCEPTED, follower.status()

    def _ready(self) -> Reply:
        has_arrived = self._follower is None or self._follower.has_arrived
        is_leaving = self.has_begun_to_drain or self._server.is_draining
        if has_arrived and not is_leaving and self._runtime.is_ready():
            return HTTPStatus.OK, "ready\n"
        return HTTPStatus.SERVICE_UNAVAILABLE, "not ready\n"

    def _versions(self) -> dict[str, Any]:
        routing = asdict(self._runtime.routing)
        versions = [asdict(version) for version in self._runtime.versions()]
        return with_free_memory(
            {"versions": versions, **routing, "order": self.obeyed, "free_memory_bytes": free_memory_bytes()}
        )

    def _load(self, body: dict[str, Any]) -> Reply:
        _require(body, {"bundle": str, "name": str, "tables": dict}, "bundle")
        tables = body.get("tables", {})
        if not all(isinstance(name, str) for name in tables.values()):
            raise InputError("tables maps the names of tables to names", field="tables")
        pin = self._runtime.start_load(body["bundle"], name=body.get("name", ""), tables=tables)
        found = asdict(self._runtime.version(pin))
        return (HTTPStatus.OK if found["state"] == states.READY else HTTPStatus.ACCEPTED), found

    def _probe(self, pin: str) -> Reply:
        probed = self._runtime.probe(pin)
        return HTTPStatus.OK, {"pin": pin, "asked": probed.asked, "failures": probed.failures, "passed": probed.passed}

    def _predict(self, pin: str, body: dict[str, Any]) -> Reply:
        answer = asyncio.run(predict_json(Pinned(self._runtime, pin), body))
        return HTTPStatus.OK, json.loads(answer_json(answer))

    def _activate(self, pin: str) -> Reply:
        self._runtime.activate(pin)
        return HTTPStatus.OK, {"active": pin}

    def _deactivate(self) -> Reply:
        self._runtime.deactivate()
        return HTTPStatus.OK, {"active": None}

    def _unload(self, pin: str) -> Reply:
        self._runtime.unload(pin)
        return HTTPStatus.OK, {"pin": pin, "state": states.UNLOADED}

    def _weights(self, body: dict[str, Any]) -> Reply:
        _require(body, {"variants": list}, "variants")
        variants = []
        for given in body["variants"]:
            if not isinstance(given, dict):
                raise InputError('a variant is {"pin": "...", "weight": 10, "tag": "..."}')
            _require(given, {"pin": str, "weight": (int, float), "tag": str}, "pin", "weight")
            variants.append(Variant(**given))
        self._runtime.set_weights(variants)
        return HTTPStatus.OK, self._versions()

    def _shadow(self, body: dict[str, Any]) -> Reply:
        _require(body, {"pin": str, "share": (int, float), "tolerance": (int, float)}, *(["pin"] if body else []))
        self._runtime.set_shadow(Shadow(**body) if body else None)
        return HTTPStatus.OK, self._versions()


def _refuse(*_: str) -> Reply:
    raise Conflict(
        "this replica follows a document and takes no other orders", hint="Send the document with `PUT /desired`."
    )


def _require(body: dict[str, Any], fields: dict[str, Any], *required: str) -> None:
    for name in required:
        if name not in body:
            raise InputError(f"{name} is missing", field=name)
    for name, value in body.items():
        if name not in fields:
            raise InputError(f"{name!r} is unknown here", hint=f"Use one of: {', '.join(sorted(fields))}.", field=name)
        if not isinstance(value, fields[name]) or isinstance(value, bool):
            raise InputError(f"{name} is not what it should be: {value!r}", field=name)
