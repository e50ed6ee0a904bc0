"""What is behind each path of the data port.

POST /{service}/{method}              Paddle Serving's Pipeline service
POST /GeneralModelService/inference   Paddle Serving's general service
POST /v1/predict                      plain JSON
GET  /openapi.json, /docs             what /v1/predict takes
GET  /healthz, /readyz                is the process there, does the active version answer its probes
GET  /metrics, /stats                 for Prometheus, for people
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from cloudedge.errors import CloudEdgeError, InputError
from cloudedge.http1 import Connections, HttpAnswer, HttpCall
from cloudedge.serving.engine import Answer, Call, Engine, answer_headers
from cloudedge.serving.formats import GENERAL_SERVICE, malformed, nested_array
from cloudedge.serving.protocols import (
    MAX_INFLATED,
    Asked,
    DataPortAuth,
    Ops,
    Outcome,
    Watch,
    aside,
    fault_of,
    general_http,
    pipeline_http,
    timeout_of,
)
from cloudedge.serving.runtime import Runtime
from cloudedge.serving.server._openapi import docs_page, openapi
from cloudedge.serving.server._report import prometheus, stats

__all__ = ["Routes", "answer_json", "predict_json"]

_STATUS = "http.response.status_code"
_TEXT = "text/plain; charset=utf-8"
_OPEN = {"/healthz", "/readyz"}
_GENERAL = ("/GeneralModelService/", f"/{GENERAL_SERVICE}/")

Page = Callable[[], "HttpAnswer | Coroutine[Any, Any, HttpAnswer]"]


class Routes:
    """Finds out what a request wants and answers it.

    Args:
        runtime: Answers predictions.
        service: The Pipeline service's name.
        ops: Hooks around Pipeline predictions.
        gate: Who may ask, and who may choose a version; everybody if left out.
        watch: Logs predictions and makes spans of them.
        max_body_bytes: Of a request whose body came compressed.
        is_draining: Tells whether the server is about to stop.
        connections: What is connected.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        service: str,
        ops: Ops | None = None,
        gate: DataPortAuth | None = None,
        watch: Watch | None = None,
        max_body_bytes: int = MAX_INFLATED,
        is_draining: Callable[[], bool] = lambda: False,
        connections: Callable[[], Connections | None] = lambda: None,
    ) -> None:
        self._runtime = runtime
        self._service = service
        self._ops = ops
        self._gate = gate or DataPortAuth(runtime)
        self._watch = watch or Watch()
        self._max_body_bytes = max_body_bytes
        self._is_draining = is_draining
        self._pages: dict[str, Page] = {
            "/healthz": lambda: HttpAnswer(200, b"ok\n", _TEXT),
            "/readyz": self._ready,
            "/metrics": lambda: HttpAnswer(
                200, prometheus(runtime, connections()).encode(), "text/plain; version=0.0.4"
            ),
            "/stats": lambda: HttpAnswer(200, orjson.dumps(stats(runtime, connections()), option=orjson.OPT_INDENT_2)),
            "/openapi.json": lambda: HttpAnswer(200, orjson.dumps(openapi(runtime.signature, service))),
            "/docs": lambda: HttpAnswer(
                200, docs_page(runtime.signature, service).encode(), "text/html; charset=utf-8"
            ),
        }

    def __call__(self, call: HttpCall) -> HttpAnswer | Coroutine[Any, Any, HttpAnswer]:
        path = call.path.partition("?")[0]
        if path not in _OPEN and not self._gate.admits(call.headers):
            return HttpAnswer(401, b'{"error":"a token is needed"}', headers={"WWW-Authenticate": "Bearer"})
        page = self._pages.get(path)
        if page is not None:
            return self._page(page, call)
        try:
            answering = self._predict(self._gate.engine(call.headers), call, path)
        except CloudEdgeError as error:
            return _failed(error)
        return answering if self._watch.is_off else self._watch.around(_asked(call, path), answering, _outcome)

    def _page(self, page: Page, call: HttpCall) -> HttpAnswer | Coroutine[Any, Any, HttpAnswer]:
        if call.method not in ("GET", "HEAD"):
            return HttpAnswer(405, b"Method Not Allowed\n", _TEXT, {"Allow": "GET, HEAD"})
        try:
            return page()
        except CloudEdgeError as error:
            return _failed(error)

    def _predict(self, engine: Engine, call: HttpCall, path: str) -> Coroutine[Any, Any, HttpAnswer]:
        if path == "/v1/predict":
            return predict_http(engine, call)
        if path.startswith(_GENERAL):
            return general_http(engine, call, max_inflated=self._max_body_bytes)
        answering = pipeline_http(engine, call, service=self._service, ops=self._ops)
        # Hooks are somebody else's code, which may want a task around it.
        return answering if self._ops is None else _in_task(answering)

    async def _ready(self) -> HttpAnswer:
        if self._is_draining():
            return HttpAnswer(503, b"draining\n", _TEXT)
        is_ready = await asyncio.get_running_loop().run_in_executor(None, self._runtime.is_ready)
        return HttpAnswer(200, b"ready\n", _TEXT) if is_ready else HttpAnswer(503, b"not ready\n", _TEXT)


async def _in_task(answering: Coroutine[Any, Any, HttpAnswer]) -> HttpAnswer:
    return await asyncio.get_running_loop().create_task(answering)


def _asked(call: HttpCall, path: str) -> Asked:
    attributes = {"http.request.method": call.method, "url.path": path[:200]}
    return Asked(call.method, path, len(call.body), call.headers, attributes)


def _outcome(answer: HttpAnswer | None) -> Outcome:
    if answer is None:
        return Outcome(500, has_failed=True, attribute=_STATUS)
    pin = answer.headers.get("X-Cloudedge-Pin", "")
    return Outcome(answer.status, pin, len(answer.body), answer.status >= 500, _STATUS)  # noqa: PLR2004 - our fault


# -- plain JSON --------------------------------------------------------------------------------------------------------


async def predict_http(engine: Engine, call: HttpCall) -> HttpAnswer:
    """Answer `POST /v1/predict`."""
    if call.method != "POST":
        return HttpAnswer(405, b"Method Not Allowed\n", _TEXT, {"Allow": "POST"})
    try:
        timeout_s = timeout_of(call.headers.get("grpc-timeout"))
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        feed, outputs = await aside(len(call.body), _read, call.body)
        with engine.hold(call.headers.get("x-cloudedge-tag")) as version:
            answer = await version.predict(Call(feed, outputs, deadline=deadline))
    except orjson.JSONDecodeError as error:
        return HttpAnswer(400, orjson.dumps({"error": f"the body is not JSON: {error}", "kind": "InputError"}))
    except Exception as error:  # noqa: BLE001 - every failure has an answer
        return _failed(error)
    return HttpAnswer(200, answer_json(answer), headers=answer_headers(answer.pin, answer.tag, answer.defaulted))


async def predict_json(engine: Engine, body: Any) -> Answer:
    """Answer what a body of `/v1/predict` asks for."""
    feed, outputs = _checked(body)
    with engine.hold() as version:
        return await version.predict(Call(feed, outputs))


def _read(body: bytes) -> tuple[dict[str, NDArray[Any]], list[str]]:
    return _checked(orjson.loads(body))


def _checked(body: Any) -> tuple[dict[str, NDArray[Any]], list[str]]:
    if not isinstance(body, dict) or not isinstance(body.get("inputs"), dict):
        raise InputError('the body is {"inputs": {name: nested list, ...}, "outputs": [name, ...]}')
    outputs = body.get("outputs", [])
    if not isinstance(outputs, list) or not all(isinstance(name, str) for name in outputs):
        raise InputError("outputs is a list of names")
    return {name: _array(name, value) for name, value in body["inputs"].items()}, outputs


def answer_json(answer: Answer) -> bytes:
    """Write an answer as `/v1/predict` does."""
    outputs = {name: np.ascontiguousarray(array) for name, array in answer.outputs.items()}
    content: dict[str, Any] = {"outputs": outputs, "pin": answer.pin}
    if answer.tag:
        content["tag"] = answer.tag
    if answer.defaulted:
        content["defaulted"] = answer.defaulted
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


def _array(name: str, value: Any) -> NDArray[Any]:
    array = nested_array(name, value)
    if array.dtype.kind == "U":
        raise malformed(name, "holds text where numbers are wanted")
    return array


def _failed(error: Exception) -> HttpAnswer:
    fault = fault_of(error)
    content = {"error": fault.message, "kind": type(error).__name__}
    if isinstance(error, CloudEdgeError) and error.hint and fault.message == error.message:
        content["hint"] = error.hint
    return HttpAnswer(fault.status, orjson.dumps(content))
