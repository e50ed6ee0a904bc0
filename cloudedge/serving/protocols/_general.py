"""Paddle Serving's GeneralModelService: tensors in, tensors out, as JSON or protobuf.

Where upstream would answer wrongly, this refuses: an output that does not exist (upstream: the first one), a tensor of
an unreadable type (upstream: skipped, and the next one takes its place), ids without LoD.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import orjson
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from cloudedge.bundle import Signature
from cloudedge.errors import InputError
from cloudedge.serving.engine import Answer, Call, Engine, HttpAnswer, HttpCall, RequestVersion, answer_headers
from cloudedge.serving.formats import (
    GENERAL,
    GENERAL_COST,
    GENERAL_SERVICE,
    GZIP,
    GeneralRequest,
    GeneralResponse,
    WireTensor,
    deflate,
    from_json,
    from_message,
    json_cost,
    json_numbers,
    message_cost,
    plan_of,
    tensor_fields,
)
from cloudedge.serving.protocols._faults import fault_of, timeout_of
from cloudedge.serving.protocols._intake import Intake

__all__ = ["ParsedRequest", "add_tensor", "answer_general", "fill_response", "general_http", "parse_request"]

Array = NDArray[Any]

ENGINE_NAME = "GeneralInferOp_0"
METHODS = frozenset({"inference", "debug"})
PROTO_TYPES = frozenset({"application/proto", "application/protobuf", "application/x-protobuf"})
AS_CONTENT = frozenset({5, 7, 8})  # types that an answer sends as raw bytes
WORTH_COMPRESSING = 512
PARSE = Intake()
"""Without limits over all requests: for callers without a server."""


class ParsedRequest(NamedTuple):
    """A parsed request of the GeneralModelService."""

    tensors: Sequence[WireTensor]
    fetch: Sequence[str]
    log_id: int = 0


async def answer_general(version: RequestVersion, wanted: ParsedRequest, *, deadline: float | None = None) -> Answer:
    """Answer one request, of any transport, with the version held for it.

    Raises:
        InputError: A tensor or a name is wrong; names it. Otherwise as `RequestVersion.predict`.
    """
    plan = plan_of(version.signature)
    feed: dict[str, Array] = {}
    for sent in wanted.tensors:
        name = sent.alias if sent.alias in plan.feeds or not sent.name else sent.name
        alias, array = plan.feed(name, sent.array(), sent.lod)
        # Look-ups of the same ids in two tables come as two tensors, each under the name of its table's rows.
        if alias in feed and not (feed[alias].shape == array.shape and (feed[alias] == array).all()):
            raise InputError(f"variable {alias!r} was sent twice, with different values", variable=alias)
        feed[alias] = array
    return await version.predict(Call(feed, plan.fetch(wanted.fetch), None, None, deadline, wanted.log_id))


# -- messages --------------------------------------------------------------------------------------------------------


request_cost = partial(message_cost, fields=GENERAL_COST)
"""Estimates the memory of a `Request` message once it is parsed."""


def parse_request(raw: bytes) -> ParsedRequest:
    """Parse a `Request` message.

    Raises:
        DecodeError: The bytes are no such message.
    """
    request = GeneralRequest.FromString(raw)
    tensors = [from_message(tensor, GENERAL) for tensor in request.tensor]
    return ParsedRequest(tensors, request.fetch_var_names, request.log_id)


def fill_response(signature: Signature, answer: Answer) -> Any:
    """Make the `Response` message of an answer."""
    names = plan_of(signature).names
    response = GeneralResponse()
    output = response.outputs.add(engine_name=ENGINE_NAME)
    for alias, array in answer.outputs.items():
        add_tensor(output.tensor, names.get(alias, alias), alias, array)
    return response


def add_tensor(tensors: Any, name: str, alias: str, array: Array) -> None:
    """Add an array to a message's tensors."""
    tensor = tensors.add(shape=array.shape, name=name, alias_name=alias)
    tensor.elem_type, kind, data = _fields(array)
    if kind == GENERAL.content:
        tensor.tensor_content = data.tobytes()
    else:
        getattr(tensor, kind).extend(data.tolist())


def _fields(array: Array) -> tuple[int, str, Array]:
    if array.dtype.kind == "U":
        return GENERAL.string_type, GENERAL.strings, array.reshape(-1)
    elem_type, kind, data = tensor_fields(array)
    if elem_type in AS_CONTENT:
        return elem_type, GENERAL.content, array.astype(array.dtype.newbyteorder("<"), copy=False)
    return elem_type, kind, data


# -- HTTP ------------------------------------------------------------------------------------------------------------


async def general_http(engine: Engine, call: HttpCall, *, intake: Intake = PARSE) -> HttpAnswer:
    """Answer `POST /GeneralModelService/inference`, JSON or `application/proto`, gzipped or not.

    Args:
        engine: Answers predictions.
        call: The request. Header `grpc-timeout` limits it, `x-cloudedge-tag` chooses a variant.
        intake: Parses the body within its limits.
    """
    service, _, method = call.path.partition("?")[0].strip("/").partition("/")
    if service not in (GENERAL_SERVICE, "GeneralModelService") or method not in METHODS:
        return HttpAnswer(404, b"Not Found\n", "text/plain; charset=utf-8")
    if call.method != "POST":
        return HttpAnswer(405, b"Method Not Allowed\n", "text/plain; charset=utf-8", {"Allow": "POST"})
    as_proto = call.headers.get("content-type", "").partition(";")[0].strip().lower() in PROTO_TYPES
    headers: dict[str, str] = {}
    charge = 0
    try:
        timeout = timeout_of(call.headers.get("grpc-timeout"))
        deadline = None if timeout is None else time.monotonic() + timeout
        cost, read = (request_cost, _read_proto) if as_proto else (json_cost, _read_json)
        wanted, charge = await intake.parse(call.body, cost, read, _wrapper(call))
        with engine.hold(call.headers.get("x-cloudedge-tag")) as version:
            answer = await answer_general(version, wanted, deadline=deadline)
        write = _proto if as_proto else _json
        body = write(version.signature, answer)
        status = 200
        headers |= answer_headers(answer.pin, answer.tag, answer.defaulted)
    except Exception as error:  # noqa: BLE001 - every failure has an answer
        status, body = _failed(error, as_proto=as_proto)
    finally:
        intake.give(charge)
    if len(body) >= WORTH_COMPRESSING and "gzip" in call.headers.get("accept-encoding", ""):
        body, headers["Content-Encoding"] = deflate(body), "gzip"
    return HttpAnswer(status, body, "application/proto" if as_proto else "application/json", headers)


def _failed(error: Exception, *, as_proto: bool) -> tuple[int, bytes]:
    fault = fault_of(error)
    if as_proto:
        return fault.status, GeneralResponse(err_no=fault.rpc, err_msg=fault.message).SerializeToString()
    return fault.status, orjson.dumps({"outputs": [], "err_no": fault.rpc, "err_msg": fault.message})


def _wrapper(call: HttpCall) -> int | None:
    encoding = call.headers.get("content-encoding", "identity").lower()
    if encoding == "identity":
        return None
    if encoding not in ("gzip", "x-gzip"):
        raise InputError(f"content encoding {encoding[:20]!r} is not known", hint="Send gzip or identity.")
    return GZIP


def _read_proto(body: bytes) -> ParsedRequest:
    try:
        return parse_request(body)
    except DecodeError as error:
        raise InputError("the body is not a Request message") from error


def _read_json(body: bytes) -> ParsedRequest:
    try:
        return _json_request(body)
    except (ValueError, TypeError) as error:
        raise InputError(f"the body is not a Request in JSON: {error}") from error


def _json_request(body: bytes) -> ParsedRequest:
    message = orjson.loads(body)
    if type(message) is not dict:
        raise TypeError("it is not an object")
    tensors, fetch = message.get("tensor", []), message.get("fetch_var_names", message.get("fetchVarNames", []))
    if not (type(tensors) is type(fetch) is list and set(map(type, fetch)) <= {str}):
        raise TypeError("tensor is a list, and fetch_var_names a list of strings")
    log_id = message.get("log_id", message.get("logId", 0))
    if type(log_id) is str and log_id.isdecimal() and len(log_id) <= 20:  # noqa: PLR2004 - digits of a uint64
        log_id = int(log_id)
    if type(log_id) is not int or not 0 <= log_id < 1 << 64:
        raise TypeError("log_id is not a 64-bit unsigned integer")
    return ParsedRequest([from_json(tensor, GENERAL) for tensor in tensors], fetch, log_id)


def _json(signature: Signature, answer: Answer) -> bytes:
    names = plan_of(signature).names
    return b'{"outputs":[{"tensor":[%b],"engine_name":"%b"}]}' % (
        b",".join(_json_tensor(names.get(alias, alias), alias, array) for alias, array in answer.outputs.items()),
        ENGINE_NAME.encode(),
    )


def _proto(signature: Signature, answer: Answer) -> bytes:
    return bytes(fill_response(signature, answer).SerializeToString())


def _json_tensor(name: str, alias: str, array: Array) -> bytes:
    elem_type, kind, data = _fields(array)
    content = kind == GENERAL.content
    return b'{"%b":%b,"elem_type":%d,"shape":%b,"name":%b,"alias_name":%b}' % (
        kind.encode(),
        b'"%b"' % base64.b64encode(data.tobytes()) if content else json_numbers(data),
        elem_type,
        orjson.dumps(array.shape),
        orjson.dumps(name),
        orjson.dumps(alias),
    )
