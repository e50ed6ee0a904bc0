"""The request pipeline of every port: tokens, faults, errors, commits, and a log of requests."""

from __future__ import annotations

import asyncio
import functools
import hmac
import os
import re
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from typing import Any

import orjson

from cloudedge.edge_bie.lab.ports._control import Control
from cloudedge.edge_bie.lab.ports._faults import Chance
from cloudedge.edge_bie.lab.ports._objects import ObjectFiles
from cloudedge.edge_bie.lab.ports._requests import JSON, Request, RequestHandler
from cloudedge.edge_bie.lab.state import ApiError, LabState
from cloudedge.errors import CloudEdgeError
from cloudedge.http1 import HangUp, HttpAnswer

__all__ = ["Front"]

_TRACE = "x-bce-request-id"
_LOG_LENGTH = 10_000
_NODE = re.compile(r"/v1/nodes/([^/]+)")
Meaning = Callable[[LabState, Request], Any]


class Front:
    """Answers the requests of all ports."""

    def __init__(self, world: LabState, files: ObjectFiles, token: str | None) -> None:
        self.world = world
        self.files = files
        self.chance: Chance | None = None
        self.requests: deque[dict[str, Any]] = deque(maxlen=_LOG_LENGTH)
        self.counts: Counter[str] = Counter()
        self._token = token
        self._control = Control(self)

    def port(self, name: str, meaning: Meaning) -> RequestHandler:
        """Return the handler of a port whose requests read or change the lab's state."""

        def handle(request: Request) -> HttpAnswer | Coroutine[Any, Any, HttpAnswer]:
            if request.path == "/health":
                return HttpAnswer(200, b'{"success":true}', JSON)
            if not self._is_allowed(request):
                return self._note(name, request, _failure(request, _denied()))
            if name == "admin" and request.path.startswith("/_lab/"):
                return self._control(request)
            if self.chance is not None:
                return self._answer_with_faults(name, request, meaning, self.chance)
            answer = self._answer(request, meaning)
            if self.world.store.is_dirty:
                return self._committed(name, request, answer)
            return self._note(name, request, answer)

        return handle

    def serve_file(self, request: Request) -> HttpAnswer | Coroutine[Any, Any, HttpAnswer]:
        """Answer a request of the objects port."""
        if not self._is_allowed(request):
            return self._note("objects", request, HttpAnswer(401, b"a token is needed\n", "text/plain"))
        if self.chance is None:
            return self._note("objects", request, self.files(request))
        return self._answer_with_faults("objects", request, None, self.chance)

    def _is_allowed(self, request: Request) -> bool:
        given = request.headers.get("authorization", "")
        return self._token is None or hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode())

    async def _committed(self, name: str, request: Request, answer: HttpAnswer) -> HttpAnswer:
        try:
            await self.world.store.commit()
        except CloudEdgeError as error:
            answer = _failure(request, ApiError("UnknownError", error.message))
        return self._note(name, request, answer)

    async def _answer_with_faults(
        self, name: str, request: Request, meaning: Meaning | None, chance: Chance
    ) -> HttpAnswer:
        if chance.happens("delay"):
            await asyncio.sleep(chance.delay_s())
        if chance.happens("drop"):
            return self._note(name, request, HangUp(0))
        if chance.happens("error"):
            return self._note(name, request, _failure(request, ApiError("UnknownError", "a fault, as ordered")))
        if meaning is None:
            return self._note(name, request, self.files(request))
        is_write = name == "admin" and request.method in {"PUT", "POST", "DELETE"}
        if is_write and chance.happens("duplicate"):
            self._answer(request, meaning)
        if is_write and chance.happens("lost_write"):
            self.world.store.begin()
            answer = self._answer(request, meaning)
            self.world.store.undo()
        elif request.method == "PUT" and (node := _NODE.fullmatch(request.path)) and chance.happens("lost_desire"):
            desire = self.world.store.get("desire", node[1])
            answer = self._answer(request, meaning)
            if desire is not None:
                self.world.store.put("desire", node[1], desire)
        else:
            answer = self._answer(request, meaning)
        await self.world.store.commit()
        if chance.happens("lost_answer"):
            answer = HangUp(answer.status)
        return self._note(name, request, answer)

    def _answer(self, request: Request, meaning: Meaning) -> HttpAnswer:
        try:
            answer = HttpAnswer(200, orjson.dumps(meaning(self.world, request)), JSON)
        except ApiError as error:
            answer = _failure(request, error)
        answer.own_headers = {_TRACE: request.headers.get(_TRACE) or os.urandom(16).hex()}
        return answer

    def _note(self, name: str, request: Request, answer: HttpAnswer) -> HttpAnswer:
        self.counts[f"{name} {request.method} {_route(request.path)}"] += 1
        self.requests.append(
            {
                "port": name, "method": request.method, "target": request.target, "status": answer.status,
                "dropped": isinstance(answer, HangUp), "requestId": request.headers.get(_TRACE, ""),
                "node": request.headers.get("common-name", "").partition(".")[2],
            }
        )  # fmt: skip
        return answer


def _denied() -> ApiError:
    return ApiError("ErrRequestAccessDenied", "访问已被拒绝。\nThe request access is denied. (a token is needed)")


def _failure(request: Request, error: ApiError) -> HttpAnswer:
    # The body repeats only the id that the client sent, although the header has another one.
    body = {"code": error.code, "message": error.message, "requestId": request.headers.get(_TRACE, "")}
    return HttpAnswer(error.status, orjson.dumps(body), JSON)


@functools.lru_cache
def _route(path: str) -> str:
    """Replace names in an address, so that there are few to count."""
    parts = path.strip("/").split("/")
    if parts[0] == "v1" and len(parts) > 2 and parts[1] != "sync":  # noqa: PLR2004 - v1, a kind, a name
        parts[2] = "NAME"
    return "/" + "/".join(parts) if parts[0] in {"v1", "v2"} else "/..."
