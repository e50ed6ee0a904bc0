"""Paddle Serving's Pipeline service: `POST /{service}/{method}` with JSON, and the same messages over gRPC.

Without hooks a value is the text of an array, as JSON or as numpy prints it, and so are the answers. With hooks
(`_ops.py`) the hooks interpret the values. HTTP goes from JSON to arrays and back without protobuf between.

Wrong calls are answered with status 200 and an `err_no`, as clients of Paddle Serving expect; calls that could not be
answered have a real HTTP status as well.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import unquote

import orjson
from numpy.typing import NDArray

from cloudedge.bundle import Signature
from cloudedge.errors import InputError, Overloaded
from cloudedge.serving.engine import Call, Engine, HttpAnswer, HttpCall, answer_headers
from cloudedge.serving.formats import (
    PIPELINE,
    Malformed,
    TooLarge,
    WireTensor,
    from_json,
    from_message,
    json_cost,
    json_numbers,
    json_text,
    plan_of,
    string_array,
    tensor_fields,
)
from cloudedge.serving.protocols._faults import Fault, fault_of, timeout_of
from cloudedge.serving.protocols._general import PARSE
from cloudedge.serving.protocols._intake import Intake
from cloudedge.serving.protocols._offload import offload
from cloudedge.serving.protocols._ops import OpFault, Ops, Results

__all__ = ["PipelineAnswer", "PipelineCall", "answer_pipeline", "pipeline_http", "pipeline_message"]

Array = NDArray[Any]

PROFILE_KEY = "pipeline.profile"  # PipelineClient sends it among the feeds to ask for a timeline
NO_SERVICE, PACKAGE, INPUT = 3002, 8000, 5000
GATEWAY = {"Grpc-Metadata-Content-Type": "application/grpc"}  # upstream's answers come through a gRPC gateway
INT64 = range(-(1 << 63), 1 << 63)


class PipelineCall(NamedTuple):  # and not a frozen dataclass, which takes five times as long to make
    """A parsed request of the Pipeline service."""

    values: Mapping[str, str]
    tensors: Sequence[WireTensor] = ()
    log_id: int = 0
    tag: str | None = None
    deadline: float | None = None
    """On the monotonic clock."""
    as_tensors: bool = False
    """Answer in tensors, which upstream defines but never sends."""


class PipelineAnswer(NamedTuple):
    """An answer of the Pipeline service, before it is JSON or protobuf."""

    results: Results = MappingProxyType({})
    """Arrays, or texts of hooks."""
    pin: str = ""
    tag: str = ""
    err_no: int = 0
    err_msg: str = ""
    status: int = 200
    defaulted: float = 0.0


MORE_KEYS = PipelineAnswer(err_no=PACKAGE, err_msg="rpc package error: more keys than values")


def _no_service(name: str) -> PipelineAnswer:
    return PipelineAnswer(err_no=NO_SERVICE, err_msg=f"there is no service {name[:100]!r} here")


async def answer_pipeline(engine: Engine, request: PipelineCall, ops: Ops | None = None) -> PipelineAnswer:
    """Answer one request of any transport; raises nothing but cancellation."""
    try:
        inputs, lods = _unpack(request)
    except Malformed as error:
        return PipelineAnswer(err_no=PACKAGE, err_msg=f"rpc package error: {error.message}")
    try:
        if ops is not None:
            call = Call({}, (), None, request.tag, request.deadline, request.log_id)
            results, pin, tag, defaulted = await ops.run(engine, inputs, lods, call)
            return PipelineAnswer(results, pin, tag, defaulted=defaulted)
        with engine.hold(request.tag) as version:
            feed = await offload(sum(map(len, request.values.values())), _feed, version.signature, inputs, lods)
            answer = await version.predict(Call(feed, (), None, None, request.deadline, request.log_id))
        return PipelineAnswer(answer.outputs, answer.pin, answer.tag, defaulted=answer.defaulted)
    except OpFault as error:
        return PipelineAnswer(err_no=error.err_no, err_msg=error.err_msg)
    except Exception as error:  # noqa: BLE001 - every failure has an answer
        return _fault_answer(fault_of(error))


def _fault_answer(fault: Fault) -> PipelineAnswer:
    # The call was parsed without error: its content is wrong, not its package.
    err_no = INPUT if fault.err_no == PACKAGE else fault.err_no
    return PipelineAnswer(err_no=err_no, err_msg=fault.message, status=fault.status if fault.is_transport else 200)


def _unpack(request: PipelineCall) -> tuple[dict[str, str | Array], dict[str, Sequence[int]]]:
    inputs: dict[str, str | Array] = dict(request.values)
    inputs.pop(PROFILE_KEY, None)
    lods: dict[str, Sequence[int]] = {}
    for sent in request.tensors:
        if sent.elem_type == PIPELINE.string_type:
            inputs[sent.name] = "".join(sent.strings)
        else:
            inputs[sent.name] = sent.array()
        if len(sent.lod) % 2:
            raise Malformed(f"variable {sent.name!r}: LoD of {len(sent.lod)} numbers, an even count is wanted")
        if len(sent.lod):
            lods[sent.name] = sent.lod
    return inputs, lods


def _feed(
    signature: Signature, inputs: Mapping[str, str | Array], lods: Mapping[str, Sequence[int]]
) -> dict[str, Array]:
    plan = plan_of(signature)
    feed: dict[str, Array] = {}
    for name, value in inputs.items():
        if isinstance(value, str):
            known = plan.feeds.get(name)
            if known is None:
                raise plan.unknown("feed", name, plan.feeds)
            feed[known.alias] = known.from_text(value)
        else:
            alias, feed[alias] = plan.feed(name, value, lods.get(name, ()))
    return feed


# -- HTTP ------------------------------------------------------------------------------------------------------------


async def pipeline_http(
    engine: Engine, call: HttpCall, *, service: str, ops: Ops | None = None, intake: Intake = PARSE
) -> HttpAnswer:
    """Answer `POST /{service}/{method}`.

    Args:
        engine: Answers predictions.
        call: The request. Header `grpc-timeout` limits it, `x-cloudedge-tag` chooses a variant, and
            `x-cloudedge-answer: tensors` asks for numbers instead of texts.
        service: The name of this service.
        ops: Hooks around the prediction.
        intake: Parses the body within its limits.
    """
    segments = call.path.partition("?")[0].split("/")
    if len(segments) != 3 or segments[0] or not segments[1] or not segments[2]:  # noqa: PLR2004 - /name/method
        return HttpAnswer(404, b"Not Found\n", "text/plain; charset=utf-8")
    if call.method != "POST":
        return HttpAnswer(405, b"Method Not Allowed\n", "text/plain; charset=utf-8", {"Allow": "POST"})
    try:
        request, charge = await intake.parse(call.body, json_cost, partial(_parse_body, call.headers))
    except (TooLarge, Overloaded) as error:
        fault = fault_of(error)
        return _bad_request(fault.message, fault.status)
    except (ValueError, TypeError, InputError) as error:
        return _bad_request(error.message if isinstance(error, InputError) else str(error))
    try:
        return await _answer_http(engine, segments[1], service, request, ops)
    finally:
        intake.give(charge)


async def _answer_http(
    engine: Engine, called: str, service: str, request: PipelineCall | None, ops: Ops | None
) -> HttpAnswer:
    if request is None:
        answer, as_tensors = MORE_KEYS, False
    elif unquote(called) != service:
        answer, as_tensors = _no_service(unquote(called)), False
    else:
        answer, as_tensors = await answer_pipeline(engine, request, ops), request.as_tensors
    try:
        return _encode_http(answer, as_tensors=as_tensors)
    except Exception as error:  # noqa: BLE001 - an output of a type, or text of hooks, that cannot be written
        return _encode_http(_fault_answer(fault_of(error)))


def _parse_body(headers: Mapping[str, str], body: bytes) -> PipelineCall | None:
    """Parse the body; None if it has more keys than values, which has its own answer."""
    message = orjson.loads(body or b"{}")  # upstream's gateway accepts an empty body as an empty request
    if type(message) is not dict:
        raise TypeError("the body is not a JSON object")
    keys, values, tensors = (
        [] if (given := message.get(name)) is None else given for name in ("key", "value", "tensors")
    )
    if not (type(keys) is type(values) is type(tensors) is list):
        raise TypeError("key, value and tensors are lists")
    if not (set(map(type, keys)) <= {str} and set(map(type, values)) <= {str}):
        raise TypeError("key and value hold strings")
    timeout = timeout_of(headers.get("grpc-timeout"))
    return (
        None
        if len(keys) > len(values)
        else PipelineCall(
            dict(zip(keys, values, strict=False)),
            [from_json(tensor, PIPELINE) for tensor in tensors] if tensors else (),
            _log_id(message.get("logid")),
            headers.get("x-cloudedge-tag"),
            None if timeout is None else time.monotonic() + timeout,
            headers.get("x-cloudedge-answer") == "tensors",
        )
    )


def _log_id(value: Any) -> int:
    if value is None:
        return 0
    if type(value) is str and value.lstrip("-").isdecimal() and len(value) <= 20:  # noqa: PLR2004 - digits of an int64
        value = int(value)
    if type(value) is not int or value not in INT64:
        raise TypeError("logid is not a 64-bit integer")
    return value


def _bad_request(message: str, status: int = 400) -> HttpAnswer:
    body = {"error": message, "code": 3, "message": message, "details": []}
    return HttpAnswer(status, orjson.dumps(body))


def _encode_http(answer: PipelineAnswer, *, as_tensors: bool = False) -> HttpAnswer:
    texts, tensors = b"", b""
    keys: Iterable[str] = answer.results
    if answer.results and as_tensors:
        tensors = b",".join(_json_tensor(name, value) for name, value in answer.results.items())
        keys = ()
    elif answer.results:
        texts = b",".join(_json_string(value) for value in answer.results.values())
    body = b'{"err_no":%d,"err_msg":%b,"key":%b,"value":[%b],"tensors":[%b]}' % (
        answer.err_no,
        orjson.dumps(answer.err_msg),
        orjson.dumps(list(keys)),
        texts,
        tensors,
    )
    return HttpAnswer(answer.status, body, headers=GATEWAY | answer_headers(answer.pin, answer.tag, answer.defaulted))


def _json_string(value: str | Array) -> bytes:
    if isinstance(value, str):
        return orjson.dumps(value)
    text = json_text(value)
    # Numbers, brackets and commas need no escaping.
    return orjson.dumps(text.decode()) if value.dtype.kind == "U" else b'"%b"' % text


def _json_tensor(name: str, value: str | Array) -> bytes:
    if isinstance(value, str):
        value = string_array(name, [value])
    if value.dtype.kind == "U":
        elem_type, kind, data = PIPELINE.string_type, PIPELINE.strings, value.reshape(-1)
    else:
        elem_type, kind, data = tensor_fields(value)
    return b'{"name":%b,"elem_type":%d,"shape":%b,"%b":%b}' % (
        orjson.dumps(name),
        elem_type,
        orjson.dumps(value.shape),
        kind.encode(),
        json_numbers(data),
    )


# -- messages --------------------------------------------------------------------------------------------------------


async def pipeline_message(
    engine: Engine, request: Any, *, service: str, ops: Ops | None = None, tag: str | None = None,
    deadline: float | None = None, as_tensors: bool = False, size: int = 0,
) -> tuple[Any, PipelineAnswer]:  # fmt: skip
    """Answer a Pipeline `Request` of `size` bytes with a `Response`."""
    if request.name and request.name != service:
        answer = _no_service(request.name)
    elif len(request.key) > len(request.value):
        answer = MORE_KEYS
    else:
        values = dict(zip(request.key, request.value, strict=False))
        tensors = await offload(size, _parse_tensors, request) if request.tensors else ()
        answer = await answer_pipeline(engine, PipelineCall(values, tensors, request.logid, tag, deadline), ops)
    try:
        return _encode_message(answer, as_tensors=as_tensors), answer
    except Exception as error:  # noqa: BLE001 - as above
        answer = _fault_answer(fault_of(error))
        return _encode_message(answer, as_tensors=False), answer


def _parse_tensors(request: Any) -> list[WireTensor]:
    return [from_message(tensor, PIPELINE) for tensor in request.tensors]


def _encode_message(answer: PipelineAnswer, *, as_tensors: bool) -> Any:
    from cloudedge.serving.formats import PipelineResponse  # noqa: PLC0415 - HTTP does without protobuf

    response = PipelineResponse(err_no=answer.err_no, err_msg=answer.err_msg)
    for name, value in answer.results.items():
        if not as_tensors:
            response.key.append(name)
            response.value.append(value if isinstance(value, str) else json_text(value).decode())
            continue
        array = string_array(name, [value]) if isinstance(value, str) else value
        tensor = response.tensors.add(name=name, shape=array.shape)
        if array.dtype.kind == "U":
            tensor.elem_type = PIPELINE.string_type
            tensor.str_data.extend(array.reshape(-1).tolist())
        else:
            tensor.elem_type, kind, data = tensor_fields(array)
            getattr(tensor, kind).extend(data.tolist())
    return response
