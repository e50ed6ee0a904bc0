"""Client transports over gRPC, for both services, and over baidu_std."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from typing import Any

import grpc
import numpy as np

from cloudedge.errors import (
    CloudEdgeError,
    DeadlineExceeded,
    InputError,
    NotFound,
    Overloaded,
    Rejected,
    Unavailable,
)
from cloudedge.io import join_address
from cloudedge.serving.client._transport import (
    ANSWER_LIMITS,
    MAX_ANSWER,
    Question,
    Reply,
    answer_facts,
    arrays_of_texts,
    error_of_err_no,
    general_arrays,
    general_request,
    select_outputs,
)
from cloudedge.serving.formats import (
    GENERAL_SERVICE,
    PIPELINE,
    PIPELINE_SERVICE,
    Malformed,
    PipelineRequest,
    PipelineResponse,
    RpcMeta,
    from_message,
    tensor_fields,
)
from cloudedge.serving.protocols import Frame, FrameReader, pack_frame

__all__ = ["BaiduStd", "GeneralGrpc", "PipelineGrpc"]


class _Grpc:
    """A channel to one server; gRPC reconnects on its own."""

    method = ""

    def __init__(self, address: str, *, secure: bool, token: str | None) -> None:
        options = [("grpc.max_receive_message_length", MAX_ANSWER), ("grpc.max_send_message_length", MAX_ANSWER)]
        self._where = f"grpc://{address}"
        self._channel = (
            grpc.secure_channel(address, grpc.ssl_channel_credentials(), options)
            if secure
            else grpc.insecure_channel(address, options)
        )
        self._call = self._channel.unary_unary(self.method, None, None)
        self._metadata = [("authorization", f"Bearer {token}")] if token else []

    def forget(self) -> None:
        """See `Transport`: a channel has one connection, and watches it."""

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def _send(self, question: Question, body: bytes, **more: str) -> tuple[bytes, dict[str, str]]:
        metadata = [*self._metadata, *(("x-cloudedge-" + name, value) for name, value in more.items())]
        if question.tag:
            metadata.append(("x-cloudedge-tag", question.tag))
        try:
            raw, call = self._call.with_call(body, timeout=question.timeout_s, metadata=tuple(metadata))
        except grpc.RpcError as error:
            raise _error_of(error, self._where) from error
        return raw, {name: str(value) for name, value in call.trailing_metadata() or ()}


CODES: dict[grpc.StatusCode, type[CloudEdgeError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InputError,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.UNIMPLEMENTED: NotFound,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.INTERNAL: Unavailable,
    grpc.StatusCode.UNKNOWN: Unavailable,
}


def _error_of(error: Any, where: str) -> CloudEdgeError:
    kind = CODES.get(error.code(), Rejected)
    return kind(f"{where} answered {error.code().name}: {str(error.details())[:500]}", code=error.code().name)


class GeneralGrpc(_Grpc):
    """The GeneralModelService over gRPC."""

    method = f"/{GENERAL_SERVICE}/inference"

    def ask(self, question: Question) -> Reply:
        """Ask with a `Request` message."""
        raw, trailing = self._send(question, general_request(question))
        outputs = general_arrays(self._where, raw)
        return Reply(outputs, *answer_facts(trailing))


class PipelineGrpc(_Grpc):
    """The Pipeline service over gRPC."""

    method = f"/{PIPELINE_SERVICE}/inference"

    def __init__(self, address: str, *, secure: bool, token: str | None, service: str = "") -> None:
        super().__init__(address, secure=secure, token=token)
        self._service = service

    def ask(self, question: Question) -> Reply:
        """Ask for tensors; accept texts too, which upstream answers."""
        request = PipelineRequest(name=self._service, method="prediction", logid=question.log_id)
        for name, array in question.inputs.items():
            if array.dtype.kind == "U":
                request.key.append(name)
                request.value.append("".join(array.reshape(-1).tolist()))
                continue
            tensor = request.tensors.add(name=name, shape=array.shape)
            tensor.elem_type, field, data = tensor_fields(array)
            getattr(tensor, field).extend(np.ascontiguousarray(data).tolist())
        raw, trailing = self._send(question, request.SerializeToString(), answer="tensors")
        response = PipelineResponse.FromString(raw)
        if response.err_no:
            raise error_of_err_no(response.err_no, self._where, response.err_msg)
        try:
            outputs = arrays_of_texts(response.key, response.value)
            outputs |= {t.name: t.array() for t in (from_message(tensor, PIPELINE) for tensor in response.tensors)}
        except Malformed as error:
            raise Unavailable(f"{self._where} answered something that is no Response") from error
        return Reply(select_outputs(outputs, question), *answer_facts(trailing))


RPC_CODES: dict[int, type[CloudEdgeError]] = {
    1001: NotFound,
    1002: NotFound,
    1003: InputError,
    1008: DeadlineExceeded,
    1011: Overloaded,
    2001: Unavailable,
    2003: Unavailable,
    2004: Overloaded,
    -5000: Unavailable,
    -5100: InputError,
}


class BaiduStd:
    """The GeneralModelService over baidu_std; each call has its own connection, and connections are reused."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._where = f"brpc://{join_address(host, port)}"
        self._idle: list[socket.socket] = []
        self._lock = threading.Lock()
        self._ids = itertools.count(1)

    def forget(self) -> None:
        """See `Transport`."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def close(self) -> None:
        """Close the idle connections."""
        self.forget()

    def ask(self, question: Question) -> Reply:
        """Ask with a `Request` in a frame."""
        if question.tag:
            raise InputError("baidu_std cannot ask for a variant of the server", hint="Use `grpc://` or `http://`.")
        meta = RpcMeta(correlation_id=next(self._ids))
        meta.request.service_name, meta.request.method_name = GENERAL_SERVICE, "inference"
        deadline = time.monotonic() + question.timeout_s
        try:
            frame = self._exchange(pack_frame(meta, general_request(question)), meta.correlation_id, deadline)
            plain = frame.plain(ANSWER_LIMITS)
        except TimeoutError as error:
            raise DeadlineExceeded(f"{self._where} did not answer in {question.timeout_s:.3g} s") from error
        except OSError as error:
            raise Unavailable(f"{self._where} could not be asked: {error.strerror or error}") from error
        except InputError as error:
            raise Unavailable(f"{self._where} answered something that is no frame: {error.message}") from error
        code = frame.meta.response.error_code
        if code:
            kind = RPC_CODES.get(code, Rejected)
            raise kind(f"{self._where} answered error {code}: {frame.meta.response.error_text[:500]}", code=code)
        return Reply(general_arrays(self._where, plain), frame.meta.pin, defaulted=frame.meta.defaulted)

    def _exchange(self, data: bytes, correlation_id: int, deadline: float) -> Frame:
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        if connection is not None:
            try:
                return self._use(connection, data, correlation_id, deadline)
            except TimeoutError:
                raise
            except OSError:
                pass  # the server closed the idle connection; a new one shows if the server is reachable
        connection = socket.create_connection(self._address, timeout=max(0.001, deadline - time.monotonic()))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._use(connection, data, correlation_id, deadline)

    def _use(self, connection: socket.socket, data: bytes, correlation_id: int, deadline: float) -> Frame:
        try:
            frame = _send_and_receive(connection, data, correlation_id, deadline)
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._idle.append(connection)
        return frame


def _send_and_receive(connection: socket.socket, data: bytes, correlation_id: int, deadline: float) -> Frame:
    reader = FrameReader(MAX_ANSWER)
    frames: list[Frame] = []
    connection.settimeout(max(0.001, deadline - time.monotonic()))
    connection.sendall(data)
    while not frames:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        received = connection.recv(1 << 18)
        if not received:
            raise ConnectionResetError("the connection was closed")
        frames = reader.feed(received)
    if frames[0].meta.correlation_id != correlation_id:
        raise InputError("it belongs to another call")
    return frames[0]
