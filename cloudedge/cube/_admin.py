"""The admin API of a server: JSON over HTTP on a port of its own.

    GET    /health                      is the process there                        (no token)
    GET    /ready                       is a version active, and no stop under way  (no token)
    GET    /metrics                     Prometheus
    GET    /stats                       the counters as JSON
    GET    /versions                    what is loaded, and what became of loads
    POST   /versions                    {"path", "name", "base"?, "activate"?}: load in the background, 202
    GET    /versions/NAME               one of them
    POST   /versions/NAME/activate      move the pointer
    DELETE /versions/NAME               unload
    POST   /drain                       {"within_s"?}: stop accepting, finish, close, 202

It decides and does not serve, so it is Python: a request that moves the pointer takes a millisecond, and no lookup
waits for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

from cloudedge.adminhttp import AdminHttp, Reply
from cloudedge.cube._metrics import prometheus
from cloudedge.cube._server import Server
from cloudedge.errors import Conflict, InputError, NotFound

__all__ = ["AdminServer"]


@dataclass
class _Load:
    """A load that was asked for: ``queued``, ``loading``, then ``failed`` or gone from here into the versions."""

    name: str
    path: str
    base: str | None
    activate: bool
    state: str = "queued"
    error: str = ""


class _Loads:
    """Loads versions one after the other, in the background, and remembers those that failed."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="cube-load")
        self._lock = threading.Lock()
        self._loads: dict[str, _Load] = {}

    def start(self, load: _Load) -> None:
        with self._lock:
            before = self._loads.get(load.name)
            if before is not None and before.state != "failed":
                raise Conflict(f"version {load.name!r} is being loaded already")
            if any(version.name == load.name for version in self._server.versions()):
                raise Conflict(f"version {load.name!r} is loaded already, and a version does not change under its name")
            self._loads[load.name] = load
        self._worker.submit(self._run, load)

    def _run(self, load: _Load) -> None:
        load.state = "loading"
        try:
            self._server.load(load.path, load.name, base=load.base, activate=load.activate)
        except Exception as error:  # noqa: BLE001 - whatever it was, whoever asks for the state has to learn it
            load.error = str(error)
            load.state = "failed"
            return
        with self._lock:
            del self._loads[load.name]

    def list(self) -> list[dict[str, Any]]:
        with self._lock:
            waiting = [asdict(load) for load in self._loads.values()]
        loaded = [{**asdict(version), "state": "loaded"} for version in self._server.versions()]
        names = {version["name"] for version in loaded}
        return loaded + [load for load in waiting if load["name"] not in names]

    def close(self) -> None:
        self._worker.shutdown(cancel_futures=True)


class AdminServer(AdminHttp):
    """Serves the admin API of a server until closed.

    Args:
        server: What it administers.
        host: Where to listen; loopback unless told otherwise.
        port: 0 takes any free one.
        token: What clients must send as ``Authorization: Bearer TOKEN``; required unless `host` is loopback.
        on_drained: Called once a drain that was asked for has ended.
    """

    def __init__(
        self,
        server: Server,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        on_drained: Callable[[], None] | None = None,
    ) -> None:
        super().__init__("cube", host=host, port=port, token=token)
        self.server = server
        self._loads = _Loads(server)
        self._on_drained = on_drained
        self._draining = threading.Lock()
        self.listen()

    def close(self) -> None:
        """Stop listening; a load under way ends first."""
        super().close()
        self._loads.close()

    def answer(self, method: str, path: str, body: dict[str, Any]) -> Reply:
        """Do what a request asks for; text stays text, everything else becomes JSON."""
        match path.strip("/").split("/"):
            case ["versions", name]:
                route, arguments = f"{method} /versions/NAME", [unquote(name)]
            case ["versions", name, action]:
                route, arguments = f"{method} /versions/NAME/{action}", [unquote(name)]
            case parts:
                route, arguments = f"{method} /{'/'.join(parts)}", []
        routes: dict[str, Callable[..., Reply]] = {
            "GET /health": lambda: (HTTPStatus.OK, "ok\n"),
            "GET /ready": self._ready,
            "GET /metrics": lambda: (HTTPStatus.OK, prometheus(self.server)),
            "GET /stats": lambda: (HTTPStatus.OK, self.server.stats()),
            "GET /versions": lambda: (HTTPStatus.OK, {"versions": self._loads.list(), "active": self.server.active}),
            "POST /versions": lambda: self._load(body),
            "GET /versions/NAME": self._find,
            "DELETE /versions/NAME": self._unload,
            "POST /versions/NAME/activate": self._activate,
            "POST /drain": lambda: self._drain(body),
        }
        if route not in routes:
            raise NotFound(f"no {route} in the admin API")
        return routes[route](*arguments)

    def _ready(self) -> Reply:
        return (HTTPStatus.OK, "ready\n") if self.server.is_ready else (HTTPStatus.SERVICE_UNAVAILABLE, "not ready\n")

    def _load(self, body: dict[str, Any]) -> Reply:
        load = _parse_load(body)
        self._loads.start(load)
        return HTTPStatus.ACCEPTED, {"name": load.name, "state": load.state}

    def _unload(self, name: str) -> Reply:
        self.server.unload(name)
        return HTTPStatus.OK, {"name": name, "state": "unloaded"}

    def _activate(self, name: str) -> Reply:
        self.server.activate(name)
        return HTTPStatus.OK, {"active": name}

    def _find(self, name: str) -> Reply:
        for version in self._loads.list():
            if version["name"] == name:
                return HTTPStatus.OK, version
        raise NotFound(f"version {name!r} is neither loaded nor on its way")

    def _drain(self, body: dict[str, Any]) -> Reply:
        within_s = body.get("within_s", 10)
        if isinstance(within_s, bool) or not isinstance(within_s, int | float) or within_s < 0:
            raise InputError(f"within_s is a number of seconds, not {within_s!r}")
        if not self._draining.acquire(blocking=False):
            raise Conflict("the server is draining already")

        def run() -> None:
            self.server.drain(within_s)
            if self._on_drained is not None:
                self._on_drained()

        threading.Thread(target=run, name="cube-drain", daemon=True).start()
        return HTTPStatus.ACCEPTED, {"state": "draining"}


def _parse_load(body: dict[str, Any]) -> _Load:
    for field, required in (("path", True), ("name", True), ("base", False)):
        value = body.get(field)
        if (required or value is not None) and not (isinstance(value, str) and value and value.isprintable()):
            raise InputError(f"{field} is a non-empty string, not {value!r}")
    unknown = body.keys() - {"path", "name", "base", "activate"}
    if unknown or not isinstance(body.get("activate", False), bool):
        raise InputError('a load is {"path": "...", "name": "...", "base": "...", "activate": true}')
    return _Load(body["name"], body["path"], body.get("base"), body.get("activate", False))
