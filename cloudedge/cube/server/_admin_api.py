"""The admin API of a cube server: JSON over HTTP on a port of its own.

    GET    /health                      the process is there                        (no token)
    GET    /ready                       a version is active, the wanted one where a file names one, and the server
                                        is not stopping                             (no token)
    GET    /metrics                     Prometheus
    GET    /stats                       the counters as JSON
    GET    /versions                    the loaded versions, and the state of loads
    POST   /versions                    {"path"?, "name", "base"?, "activate"?}: load in the background, 202; without a
                                        path, the version that was staged under that name
    POST   /staged                      {"name", "artifact", "sources", "deadline_s"?}: fetch in the background, 202;
                                        without sources the files are sent here: 200 with the bytes that each has
    PUT    /staged/NAME/FILE            the next piece of such a file, from the offset in a header
    GET    /versions/NAME               one version
    POST   /versions/NAME/activate      move the pointer
    DELETE /active                      take the pointer away: reads without a pin get nothing
    DELETE /versions/NAME               unload, and remove what was staged; {"previous": true}: also if it is the one
                                        that was active before
    POST   /drain                       {"within_s"?}: stop accepting, finish, close, 202

The API decides and answers no lookup, so it is Python: a request that moves the pointer takes a millisecond, and no
lookup waits for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

from cloudedge.admin import AdminHttp, Reply, states, with_free_memory, with_pin
from cloudedge.cube.formats import Artifact, Source, is_version_name
from cloudedge.cube.server._file_server import FileServer
from cloudedge.cube.server._load_jobs import Jobs, Load, Stage
from cloudedge.cube.server._metrics import prometheus
from cloudedge.cube.server._server import Server
from cloudedge.cube.server._version_store import VersionStore
from cloudedge.errors import InputError, NotFound
from cloudedge.io import free_memory_bytes

__all__ = ["AdminServer"]

_MAX_SOURCES = 64
_MAX_DEADLINE_S = 86_400
_MAX_WANTED = 4096


class AdminServer(AdminHttp):
    """Serves the admin API of a server until closed.

    Args:
        server: The server that it administers.
        host: The address to listen on; loopback by default.
        port: 0 takes any free one.
        token: What clients must send as ``Authorization: Bearer TOKEN``; required unless `host` is loopback.
        on_drained: Called once a drain that was asked for has ended.
        holdings: The store of versions, for a server that keeps them; other replicas fetch from there, from a port
            of its own, with the same token.
        wanted: File with the version that shall be active, ``{"order", "pin"}``; it may appear later, or be replaced.
            A replica that was away when the others were switched comes back with the version before, and is then not
            ready. A switch with a higher order than the file's overrides the file, which may be late.
    """

    max_body_bytes = 1 << 20  # an artifact lists its files, a thousand of them where a part is a terabyte
    max_piece_bytes = 8 << 20

    def __init__(
        self,
        server: Server,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        on_drained: Callable[[], None] | None = None,
        holdings: VersionStore | None = None,
        wanted: Path | None = None,
    ) -> None:
        orders = None if holdings is None else holdings.directory / "order"
        super().__init__("cube", host=host, port=port, token=token, orders=orders)
        self.server = server
        self._store = holdings
        self._jobs = Jobs(server, holdings)
        self._files = None if holdings is None else FileServer(holdings.versions, host, token=token)
        self._on_drained = on_drained
        self._wanted = wanted
        self._switched = 0
        self.listen()

    def close(self) -> None:
        """Stop listening; a load under way ends first, a fetch breaks off."""
        if self._store is not None:
            self._store.close()
        super().close()
        self._jobs.close()
        if self._files is not None:
            self._files.close()

    def routes(self, body: dict[str, Any]) -> dict[str, Callable[..., Reply]]:
        """List the requests of this API."""
        return {
            "GET /health": lambda: (HTTPStatus.OK, "ok\n"),
            "GET /ready": self._ready,
            "GET /metrics": lambda: (HTTPStatus.OK, prometheus(self.server)),
            "GET /stats": lambda: (HTTPStatus.OK, self.server.stats()),
            "GET /versions": lambda: (HTTPStatus.OK, self._list()),
            "POST /versions": lambda: self._load(body),
            "POST /staged": lambda: self._stage(body),
            "PUT /staged/NAME/FILE": lambda name, file: self._receive(name, file, body),
            "GET /versions/NAME": self._find,
            "DELETE /versions/NAME": lambda name: self._unload(name, body),
            "POST /versions/NAME/activate": self._activate,
            "DELETE /active": self._deactivate,
            "POST /drain": lambda: self.drain(body, self.server.drain, self._on_drained),
        }

    def _ready(self) -> Reply:
        order, pin = _read_wanted(self._wanted)
        is_wanted = pin in ("", self.server.active) or self._switched > order
        is_ready = self.server.is_ready and is_wanted
        return (HTTPStatus.OK, "ready\n") if is_ready else (HTTPStatus.SERVICE_UNAVAILABLE, "not ready\n")

    def _list(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "versions": [with_pin(each) for each in self._jobs.list()],
            "order": self.obeyed,
            "active": self.server.active,
        }
        if self._store is not None and self._files is not None:
            found["previous"] = self._store.previous
            found["free_disk_bytes"] = self._store.staging.free_disk_bytes()
            found["files_port"] = self._files.port
        return with_free_memory({**found, "free_memory_bytes": free_memory_bytes()})

    def _load(self, body: dict[str, Any]) -> Reply:
        load = _parse_load(body)
        self._jobs.load(load)
        return HTTPStatus.ACCEPTED, {"name": load.name, "state": load.state}

    def _stage(self, body: dict[str, Any]) -> Reply:
        stage = _parse_stage(body)
        if not stage.sources and stage.artifact is not None:
            self._jobs.require_idle(stage.name)
            there = self._keeping.staging.expect(stage.name, stage.artifact)
            state = states.STAGED if there is None else states.PARTIAL
            return HTTPStatus.OK, {"name": stage.name, "state": state, "there": there or {}}
        self._jobs.stage(stage)
        return HTTPStatus.ACCEPTED, {"name": stage.name, "state": stage.state}

    def _receive(self, name: str, file: str, body: dict[str, Any]) -> Reply:
        if not isinstance(body.get("content"), bytes):
            raise InputError("a piece of a file comes as application/octet-stream")
        there = self._keeping.staging.receive(name, file, body["offset"], body["content"])
        return HTTPStatus.OK, {"name": name, "file": file, "there": there}

    @property
    def _keeping(self) -> VersionStore:
        if self._store is None:
            raise InputError("this server keeps no versions of its own", hint="Start it with `--state DIR`.")
        return self._store

    def _unload(self, name: str, body: dict[str, Any]) -> Reply:
        previous = body.get("previous", False)
        if body.keys() - {"previous"} or not isinstance(previous, bool):
            raise InputError('an unload has the body {"previous": true}, or none')
        self._jobs.forget(name)
        if self._store is not None:
            self._store.unload(name, previous=previous)
        else:
            self.server.unload(name)
        return HTTPStatus.OK, {"name": name, "state": states.UNLOADED}

    def _activate(self, name: str) -> Reply:
        (self._store or self.server).activate(name)
        self._switched = self.obeyed
        return HTTPStatus.OK, {"active": name}

    def _deactivate(self) -> Reply:
        (self._store or self.server).deactivate()
        return HTTPStatus.OK, {"active": None}

    def _find(self, name: str) -> Reply:
        kept = [] if self._store is None else self._store.kept()
        for version in [*self._jobs.list(), *kept]:
            if version["name"] == name:
                return HTTPStatus.OK, with_pin(version)
        raise NotFound(f"version {name!r} is neither loaded nor on its way")


def _read_wanted(path: Path | None) -> tuple[int, str]:
    """Read the wanted order and version from a file; (0, "") where it is absent or holds none."""
    try:
        found = json.loads(path.read_bytes()[:_MAX_WANTED]) if path is not None else {}
        return int(found.get("order", 0)), str(found.get("pin", ""))
    except (OSError, ValueError, TypeError, AttributeError):
        return 0, ""  # not written yet, or not for us: then any version is fine


def _parse_load(body: dict[str, Any]) -> Load:
    for field, required in (("path", False), ("name", True), ("base", False)):
        value = body.get(field)
        if (required or value is not None) and not (isinstance(value, str) and value and value.isprintable()):
            raise InputError(f"{field} is a non-empty string, not {value!r}")
    unknown = body.keys() - {"path", "name", "base", "activate"}
    if unknown or not isinstance(body.get("activate", False), bool):
        raise InputError('a load is {"path": "...", "name": "...", "base": "...", "activate": true}')
    return Load(body["name"], path=body.get("path", ""), base=body.get("base"), activate=body.get("activate", False))


def _parse_stage(body: dict[str, Any]) -> Stage:
    name, deadline_s, sources = body.get("name"), body.get("deadline_s", 600.0), body.get("sources")
    if not is_version_name(name):
        raise InputError(f"name is letters, digits, '_', '.' and '-', not {name!r}")
    if isinstance(deadline_s, bool) or not isinstance(deadline_s, int | float) or not 0 < deadline_s < _MAX_DEADLINE_S:
        raise InputError(f"deadline_s is a number of seconds above 0, not {deadline_s!r}")
    if not isinstance(sources, list) or len(sources) > _MAX_SOURCES:
        raise InputError('sources is a list of {"url": "...", "token": "..."}')
    return Stage(
        str(name),
        artifact=Artifact.from_json(body.get("artifact")),
        sources=tuple(_parse_source(each) for each in sources),
        deadline_s=float(deadline_s),
    )


def _parse_source(found: Any) -> Source:
    known = isinstance(found, dict) and found.keys() <= {"url", "token"}
    url, token = (found.get("url"), found.get("token", "")) if known else (None, None)
    if not isinstance(url, str) or not url.startswith(("http://", "https://")) or not isinstance(token, str):
        raise InputError('a source is {"url": "http://...", "token": "..."}')
    return Source(url, token)
