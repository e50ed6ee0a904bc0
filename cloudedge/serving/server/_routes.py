"""The endpoints of the data port. To add one, write its function and its line in `_ENDPOINTS`.

A `Page` answers GET from the state of the server. A `Prediction` answers a request with a version: its caller may
choose the version by header, and it is logged and traced.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from cloudedge.errors import CloudEdgeError, InputError
from cloudedge.http1 import Connections, HttpAnswer, HttpCall
from cloudedge.serving.engine import Answer, Call, Engine, answer_headers
from cloudedge.serving.formats import GENERAL_SERVICE, json_cost, malformed, nested_array
from cloudedge.serving.protocols import (
    DataPortAuth,
    Intake,
    Ops,
    Outcome,
    RequestObserver,
    RequestRecord,
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


class Routes:
    """Answers requests by path.

    Args:
        runtime: Answers predictions.
        service: The Pipeline service's name.
        ops: Hooks around Pipeline predictions.
        auth: Authenticates callers and chooses the version that answers; admits every caller if left out.
        observer: Logs and traces predictions.
        intake: Parses bodies within its limits.
        is_draining: Returns True while the server stops.
        connections: Returns the open connections.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        service: str,
        ops: Ops | None = None,
        auth: DataPortAuth | None = None,
        observer: RequestObserver | None = None,
        intake: Intake | None = None,
        is_draining: Callable[[], bool] = lambda: False,
        connections: Callable[[], Connections | None] = lambda: None,
    ) -> None:
        self.runtime = runtime
        self.service = service
        self.ops = ops
        self._auth = auth or DataPortAuth(runtime)
        self._observer = observer or RequestObserver()
        self.intake = intake or Intake()
        self.is_draining = is_draining
        self.connections = connections

    def __call__(self, call: HttpCall) -> HttpAnswer | Coroutine[Any, Any, HttpAnswer]:
        path = call.path.partition("?")[0]
        endpoint = _ENDPOINTS.get(path) or _ENDPOINTS.get(path[: path.find("/", 1) + 1], _PIPELINE)
        if endpoint.needs_token and not self._auth.admits(call.headers):
            return HttpAnswer(401, b'{"error":"a token is needed"}', headers={"WWW-Authenticate": "Bearer"})
        if isinstance(endpoint, Page):
            return self._page(endpoint, call)
        try:
            answering = endpoint.answer(self, self._auth.engine(call.headers), call)
        except CloudEdgeError as error:
            return _failed(error)
        return (
            answering if self._observer.is_off else self._observer.observe(_record_of(call, path), answering, _outcome)
        )

    def _page(self, page: Page, call: HttpCall) -> HttpAnswer | Coroutine[Any, Any, HttpAnswer]:
        if call.method not in ("GET", "HEAD"):
            return HttpAnswer(405, b"Method Not Allowed\n", _TEXT, {"Allow": "GET, HEAD"})
        try:
            return page.answer(self)
        except CloudEdgeError as error:
            return _failed(error)


class Page(NamedTuple):
    """An endpoint that answers GET."""

    answer: Callable[[Routes], HttpAnswer | Coroutine[Any, Any, HttpAnswer]]
    needs_token: bool = True


class Prediction(NamedTuple):
    """An endpoint that answers with a version; its function checks the method."""

    answer: Callable[[Routes, Engine, HttpCall], Coroutine[Any, Any, HttpAnswer]]
    needs_token: bool = True


def _general(routes: Routes, engine: Engine, call: HttpCall) -> Coroutine[Any, Any, HttpAnswer]:
    return general_http(engine, call, intake=routes.intake)


def _predict(routes: Routes, engine: Engine, call: HttpCall) -> Coroutine[Any, Any, HttpAnswer]:
    return predict_http(engine, call, intake=routes.intake)


def _pipeline(routes: Routes, engine: Engine, call: HttpCall) -> Coroutine[Any, Any, HttpAnswer]:
    answering = pipeline_http(engine, call, service=routes.service, ops=routes.ops, intake=routes.intake)
    # Hooks are the user's code, which may need a task around it.
    return answering if routes.ops is None else _in_task(answering)


async def _in_task(answering: Coroutine[Any, Any, HttpAnswer]) -> HttpAnswer:
    return await asyncio.get_running_loop().create_task(answering)


async def _readyz(routes: Routes) -> HttpAnswer:
    if routes.is_draining():
        return HttpAnswer(503, b"draining\n", _TEXT)
    is_ready = await asyncio.get_running_loop().run_in_executor(None, routes.runtime.is_ready)
    return HttpAnswer(200, b"ready\n", _TEXT) if is_ready else HttpAnswer(503, b"not ready\n", _TEXT)


def _metrics(routes: Routes) -> HttpAnswer:
    text = prometheus(routes.runtime, routes.connections())
    return HttpAnswer(200, text.encode(), "text/plain; version=0.0.4")


def _stats(routes: Routes) -> HttpAnswer:
    content = stats(routes.runtime, routes.connections())
    return HttpAnswer(200, orjson.dumps(content, option=orjson.OPT_INDENT_2))


def _openapi(routes: Routes) -> HttpAnswer:
    return HttpAnswer(200, orjson.dumps(openapi(routes.runtime.signature, routes.service)))


def _docs(routes: Routes) -> HttpAnswer:
    page = docs_page(routes.runtime.signature, routes.service)
    return HttpAnswer(200, page.encode(), "text/html; charset=utf-8")


def _record_of(call: HttpCall, path: str) -> RequestRecord:
    attributes = {"http.request.method": call.method, "url.path": path[:200]}
    return RequestRecord(call.method, path, len(call.body), call.headers, attributes)


def _outcome(answer: HttpAnswer | None) -> Outcome:
    if answer is None:
        return Outcome(500, has_failed=True, attribute=_STATUS)
    pin = answer.headers.get("X-Cloudedge-Pin", "")
    return Outcome(answer.status, pin, len(answer.body), answer.status >= 500, _STATUS)  # noqa: PLR2004 - our fault


# -- plain JSON --------------------------------------------------------------------------------------------------------


async def predict_http(engine: Engine, call: HttpCall, *, intake: Intake | None = None) -> HttpAnswer:
    """Answer `POST /v1/predict`."""
    intake = intake or Intake()
    charge = 0
    if call.method != "POST":
        return HttpAnswer(405, b"Method Not Allowed\n", _TEXT, {"Allow": "POST"})
    try:
        timeout_s = timeout_of(call.headers.get("grpc-timeout"))
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        (feed, outputs), charge = await intake.parse(call.body, json_cost, _read)
        with engine.hold(call.headers.get("x-cloudedge-tag")) as version:
            answer = await version.predict(Call(feed, outputs, deadline=deadline))
    except orjson.JSONDecodeError as error:
        return HttpAnswer(400, orjson.dumps({"error": f"the body is not JSON: {error}", "kind": "InputError"}))
    except Exception as error:  # noqa: BLE001 - every failure has an answer
        return _failed(error)
    finally:
        intake.give(charge)
    return HttpAnswer(200, answer_json(answer), headers=answer_headers(answer.pin, answer.tag, answer.defaulted))


async def predict_json(engine: Engine, body: Any) -> Answer:
    """Answer a parsed body of `/v1/predict`."""
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
    """Encode an answer of `/v1/predict`."""
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


# -- the table ---------------------------------------------------------------------------------------------------------

_ENDPOINTS: dict[str, Page | Prediction] = {
    # A path that ends with a slash covers every path below it.
    "/GeneralModelService/": Prediction(_general),  # Paddle Serving's general service
    f"/{GENERAL_SERVICE}/": Prediction(_general),
    "/v1/predict": Prediction(_predict),  # plain JSON
    "/openapi.json": Page(_openapi),  # describes /v1/predict
    "/docs": Page(_docs),
    "/healthz": Page(lambda _: HttpAnswer(200, b"ok\n", _TEXT), needs_token=False),  # the process lives
    "/readyz": Page(_readyz, needs_token=False),  # the active version answers its probes
    "/metrics": Page(_metrics),  # for Prometheus
    "/stats": Page(_stats),  # for people
}
_PIPELINE = Prediction(_pipeline)
"""Every other path: `POST /{service}/{method}` of Paddle Serving's Pipeline service."""
