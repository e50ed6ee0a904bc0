"""The gRPC server: the Pipeline service and the GeneralModelService on one port."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from cloudedge.errors import CloudEdgeError, InputError, Overloaded, Unavailable
from cloudedge.http1 import HeldBytes
from cloudedge.io import join_address
from cloudedge.serving.engine import Answer, Engine, answer_headers
from cloudedge.serving.formats import GENERAL_SERVICE, PIPELINE_COST, PIPELINE_SERVICE, PipelineRequest, message_cost
from cloudedge.serving.protocols._access_log import Outcome, RequestObserver, RequestRecord
from cloudedge.serving.protocols._auth import DataPortAuth
from cloudedge.serving.protocols._faults import Fault, fault_of
from cloudedge.serving.protocols._general import (
    METHODS,
    PARSE,
    answer_general,
    fill_response,
    parse_request,
    request_cost,
)
from cloudedge.serving.protocols._intake import Intake
from cloudedge.serving.protocols._ops import Ops
from cloudedge.serving.protocols._pipeline import PipelineAnswer, pipeline_message
from cloudedge.serving.protocols._tls import Tls

__all__ = ["GrpcServer", "serve_grpc"]

MAX_MESSAGE = 64 << 20
FAULTS = frozenset({"DEADLINE_EXCEEDED", "INTERNAL", "UNAVAILABLE", "UNKNOWN"})  # the server's own, not the caller's

Context = Any  # grpc.aio.ServicerContext, whose stubs lack half of it
Handler = Callable[[Engine, bytes, Context], Coroutine[Any, Any, bytes]]


@dataclass(frozen=True)
class GrpcServer:
    """A running gRPC server."""

    port: int
    server: grpc.aio.Server

    async def stop(self, grace_s: float = 10) -> None:
        """Accept no more calls and let those under way finish."""
        await self.server.stop(grace_s)


async def serve_grpc(
    auth: DataPortAuth, *, service: str, ops: Ops | None = None, host: str = "127.0.0.1", port: int = 0,
    max_message_bytes: int = MAX_MESSAGE, max_answer_bytes: int = MAX_MESSAGE, max_connections: int | None = None,
    max_calls: int | None = None, held: HeldBytes | None = None, intake: Intake = PARSE,
    observer: RequestObserver | None = None, tls: Tls | None = None,
) -> GrpcServer:  # fmt: skip
    """Serve the Pipeline service and the GeneralModelService until stopped.

    Args:
        auth: Authenticates callers and chooses the version that answers.
        service: The Pipeline service's name; a request without a name is accepted too.
        ops: Hooks around Pipeline predictions.
        host: Address to listen on.
        port: Port to listen on; 0 takes any free one.
        max_message_bytes: Most bytes of a request.
        max_answer_bytes: Most bytes of an answer.
        max_connections: Most connections at once; further ones are closed.
        max_calls: Most calls at once; further ones are refused with RESOURCE_EXHAUSTED.
        held: Counts the bytes of requests under way; requests beyond its limit are refused with RESOURCE_EXHAUSTED.
        intake: Parses requests within its limits.
        observer: Logs and traces calls.
        tls: The certificate; None serves without TLS.

    Raises:
        Unavailable: The port is taken.
    """
    options = [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_answer_bytes),
        ("grpc.so_reuseport", 0),  # a taken port is an error, not a shared one
    ]
    if max_connections is not None:
        options.append(("grpc.max_allowed_incoming_connections", max_connections))
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=max_calls)
    held = held or HeldBytes(sys.maxsize)
    for name, handlers in (
        (PIPELINE_SERVICE, {"inference": _pipeline(service, ops, intake)}),
        (GENERAL_SERVICE, dict.fromkeys(METHODS, _general(intake))),
    ):
        methods = {
            method: grpc.unary_unary_rpc_method_handler(
                _with_auth(_with_observer(handler, observer, name, method), auth, held)
            )
            for method, handler in handlers.items()
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, methods),))
    address = join_address(host, port)
    try:
        if tls is None:
            bound = server.add_insecure_port(address)
        else:
            bound = server.add_secure_port(address, grpc.ssl_server_credentials([tls.pem()]))
    except RuntimeError as error:
        raise Unavailable(
            f"cannot listen for gRPC on {address}", hint="Stop the program that uses the port, or choose another port."
        ) from error
    await server.start()
    return GrpcServer(bound, server)


def _with_auth(handler: Handler, auth: DataPortAuth, held: HeldBytes) -> Callable[[bytes, Context], Any]:
    async def authenticated(raw: bytes, context: Context) -> bytes:
        metadata = _metadata(context)
        if not auth.admits(metadata):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "a token is needed: authorization: Bearer ...")
        try:
            engine = auth.engine(metadata)
        except CloudEdgeError as error:
            await _abort(context, fault_of(error))
        try:
            if not held.take(len(raw)):
                await _abort(context, fault_of(Overloaded("too many bytes of requests are under way")))
            return await handler(engine, raw, context)
        finally:
            held.give(len(raw))

    return authenticated


def _with_observer(handler: Handler, observer: RequestObserver | None, service: str, method: str) -> Handler:
    if observer is None or observer.is_off:
        return handler
    attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method}

    async def observed(engine: Engine, raw: bytes, context: Context) -> bytes:
        def outcome(answer: bytes | None) -> Outcome:
            name = "OK" if answer is not None else _code(context)
            pin = dict(context.trailing_metadata() or ()).get("x-cloudedge-pin", "")
            return Outcome(name, pin, len(answer or b""), name in FAULTS)

        request = RequestRecord("gRPC", f"/{service}/{method}", len(raw), _metadata(context), attributes)
        return await observer.observe(request, handler(engine, raw, context), outcome)

    return observed


def _code(context: Context) -> str:
    """Return the status name of a call that ended with an exception."""
    number = context.code()
    return next((code.name for code in grpc.StatusCode if number in (code, code.value[0]) and number), "CANCELLED")


def _deadline(context: Context) -> float | None:
    left = context.time_remaining()
    # Without a deadline the C core returns hundreds of years.
    return None if left is None or left > 1e7 else time.monotonic() + left  # noqa: PLR2004


def _metadata(context: Context) -> dict[str, str]:
    return {name: value for name, value in context.invocation_metadata() or () if isinstance(value, str)}


def _set_trailers(context: Context, answer: PipelineAnswer | Answer) -> None:
    headers = answer_headers(answer.pin, answer.tag, answer.defaulted)
    context.set_trailing_metadata(tuple((name.lower(), value) for name, value in headers.items()))


def _pipeline(service: str, ops: Ops | None, intake: Intake) -> Handler:
    cost = partial(message_cost, fields=PIPELINE_COST)

    async def inference(engine: Engine, raw: bytes, context: Context) -> bytes:
        request, charge = await _parse(intake, cost, PipelineRequest.FromString, raw, context)
        metadata = _metadata(context)
        try:
            response, answer = await pipeline_message(
                engine,
                request,
                service=service,
                ops=ops,
                tag=metadata.get("x-cloudedge-tag"),
                deadline=_deadline(context),
                as_tensors=metadata.get("x-cloudedge-answer") == "tensors",
                size=len(raw),
            )
        finally:
            intake.give(charge)
        _set_trailers(context, answer)
        return bytes(response.SerializeToString())

    return inference


def _general(intake: Intake) -> Handler:
    async def inference(engine: Engine, raw: bytes, context: Context) -> bytes:
        wanted, charge = await _parse(intake, request_cost, parse_request, raw, context)
        try:
            with engine.hold(_metadata(context).get("x-cloudedge-tag")) as version:
                answer = await answer_general(version, wanted, deadline=_deadline(context))
            response = fill_response(version.signature, answer)
        except Exception as error:  # noqa: BLE001 - every failure has an answer
            await _abort(context, fault_of(error))
        finally:
            intake.give(charge)
        _set_trailers(context, answer)
        return bytes(response.SerializeToString())

    return inference


async def _parse(
    intake: Intake, cost: Callable[[bytes, int], int], read: Callable[[bytes], Any], raw: bytes, context: Context
) -> Any:
    try:
        return await intake.parse(raw, cost, read)
    except DecodeError:
        await _abort(context, fault_of(InputError("the request is not a Request message")))
    except CloudEdgeError as error:
        await _abort(context, fault_of(error))


async def _abort(context: Context, fault: Fault) -> None:
    await context.abort(grpc.StatusCode[fault.grpc], fault.message)
