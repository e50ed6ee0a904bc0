"""Client transports over HTTP: plain JSON, the Pipeline service, the GeneralModelService."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
import urllib3
from numpy.typing import NDArray

from cloudedge.errors import CloudEdgeError, DeadlineExceeded, InputError, Rejected, Unavailable
from cloudedge.serving.client._transport import (
    MAX_ANSWER,
    Question,
    Reply,
    answer_facts,
    arrays_of_texts,
    error_of_err_no,
    error_of_status,
    general_arrays,
    general_request,
    select_outputs,
)
from cloudedge.serving.formats import PIPELINE, Malformed, from_json, json_numbers, nested_array, tensor_fields

__all__ = ["GeneralHttp", "PipelineHttp", "PlainHttp"]

Array = NDArray[Any]

CONNECTIONS = 32
JSON = "application/json"


class _Http:
    """A pool of connections to one server."""

    def __init__(self, base: str, path: str, token: str | None) -> None:
        self._base = base
        self._pool = self._open()
        self._path = path
        self._where = f"{base}{path}"
        self._headers = {"authorization": f"Bearer {token}"} if token else {}

    def _open(self) -> urllib3.HTTPConnectionPool:
        # urllib3 verifies certificates by default.
        return urllib3.connection_from_url(self._base, maxsize=CONNECTIONS, block=False, retries=False)

    def forget(self) -> None:
        """See `Transport`: calls under way keep the old pool, and close their connections when they end."""
        old, self._pool = self._pool, self._open()
        old.close()

    def close(self) -> None:
        """Close the idle connections."""
        self._pool.close()

    def _post(
        self, question: Question, body: bytes, content_type: str = JSON, **more: str
    ) -> tuple[int, Mapping[str, str], bytes]:
        headers = self._headers | more | {"content-type": content_type}
        headers["grpc-timeout"] = f"{min(99_999_999, max(1, int(question.timeout_s * 1000)))}m"
        if question.tag:
            headers["x-cloudedge-tag"] = question.tag
        try:
            response = self._pool.request(
                "POST", self._path, body=body, headers=headers, preload_content=False, redirect=False,
                timeout=urllib3.Timeout(total=question.timeout_s),
            )  # fmt: skip
            try:
                raw = response.read(MAX_ANSWER + 1)
            finally:
                response.release_conn()
        except urllib3.exceptions.NewConnectionError as error:
            raise Unavailable(f"{self._where} could not be reached: {error.__cause__ or error}") from error
        except urllib3.exceptions.ConnectTimeoutError as error:
            raise Unavailable(f"{self._where} could not be reached in time") from error
        except urllib3.exceptions.TimeoutError as error:
            raise DeadlineExceeded(f"{self._where} did not answer in {question.timeout_s:.3g} s") from error
        except urllib3.exceptions.SSLError as error:
            raise Rejected(f"{self._where}: its certificate was not accepted: {error}") from error
        except urllib3.exceptions.HTTPError as error:
            raise Unavailable(f"{self._where} could not be asked: {error}") from error
        if len(raw) > MAX_ANSWER:
            raise Rejected(f"{self._where} answered more than {MAX_ANSWER} bytes")
        return response.status, response.headers, raw

    def _json(self, raw: bytes) -> dict[str, Any]:
        try:
            value = orjson.loads(raw)
        except orjson.JSONDecodeError:
            value = None
        if not isinstance(value, dict):
            raise Unavailable(f"{self._where} answered something that is no JSON object")
        return value

    def _refusal_of(self, status: int, raw: bytes) -> CloudEdgeError:
        try:
            body = self._json(raw)
        except Unavailable:
            body = {}
        text = next((str(body[key]) for key in ("err_msg", "error", "message") if body.get(key)), "")
        return error_of_status(status, self._where, text or raw[:200].decode(errors="replace"))


class PlainHttp(_Http):
    """`POST /v1/predict`."""

    def __init__(self, base: str, path: str, token: str | None) -> None:
        super().__init__(base, path.rstrip("/") or "/v1/predict", token)

    def ask(self, question: Question) -> Reply:
        """Ask with JSON; integers come back as int64 and others as float64, as JSON names no types."""
        inputs = {name: np.ascontiguousarray(array) for name, array in question.inputs.items()}
        for name, array in inputs.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise InputError(f"input {name!r} holds NaN or infinity, which JSON cannot express", variable=name)
        content = {"inputs": {n: a if a.dtype.kind in "biuf" and a.ndim else a.tolist() for n, a in inputs.items()}}
        body = orjson.dumps(content | {"outputs": list(question.outputs)}, option=orjson.OPT_SERIALIZE_NUMPY)
        status, headers, raw = self._post(question, body)
        if status != 200:  # noqa: PLR2004
            raise self._refusal_of(status, raw)
        answer = self._json(raw)
        try:
            outputs = {name: nested_array(name, value) for name, value in answer["outputs"].items()}
            pin = str(answer.get("pin", headers.get("x-cloudedge-pin", "")))
            return Reply(outputs, pin, str(answer.get("tag", "")), float(answer.get("defaulted", 0.0)))
        except (KeyError, AttributeError, TypeError, ValueError, Malformed) as error:
            raise Unavailable(f"{self._where} answered something that is no prediction") from error


class PipelineHttp(_Http):
    """`POST /{service}/{method}`: arrays go as tensors, text as key and value."""

    def __init__(self, base: str, path: str, token: str | None) -> None:
        parts = [part for part in path.split("/") if part]
        if not 1 <= len(parts) <= 2:  # noqa: PLR2004
            raise InputError(f"{base}{path} does not name a service", hint="Write `pipeline+http://host:port/service`.")
        super().__init__(base, "/" + "/".join([*parts, "prediction"][:2]), token)

    def ask(self, question: Question) -> Reply:
        """Ask for tensors; accept texts too, which upstream answers."""
        texts = {name: array for name, array in question.inputs.items() if array.dtype.kind == "U"}
        tensors = [_tensor(n, a) for n, a in question.inputs.items() if n not in texts]
        body = b'{"key":%b,"value":%b,"tensors":[%b],"logid":%d}' % (
            orjson.dumps(list(texts)),
            orjson.dumps(["".join(array.reshape(-1).tolist()) for array in texts.values()]),
            b",".join(tensors),
            question.log_id,
        )
        status, headers, raw = self._post(question, body, **{"x-cloudedge-answer": "tensors"})
        if status != 200:  # noqa: PLR2004
            raise self._refusal_of(status, raw)
        answer = self._json(raw)
        try:
            if answer["err_no"]:
                raise error_of_err_no(int(answer["err_no"]), self._where, str(answer["err_msg"]))
            outputs = arrays_of_texts(answer["key"], answer["value"])
            outputs |= {t.name: t.array() for t in (from_json(tensor, PIPELINE) for tensor in answer["tensors"])}
        except (KeyError, TypeError, ValueError, Malformed) as error:
            raise Unavailable(f"{self._where} answered something that is no Response") from error
        return Reply(select_outputs(outputs, question), *answer_facts(headers))


def _tensor(name: str, array: Array) -> bytes:
    elem_type, field, data = tensor_fields(array)
    return b'{"name":%b,"elem_type":%d,"shape":%b,"%b":%b}' % (
        orjson.dumps(name),
        elem_type,
        orjson.dumps(array.shape),
        field.encode(),
        json_numbers(np.ascontiguousarray(data)),
    )


class GeneralHttp(_Http):
    """`POST /GeneralModelService/inference` with protobuf bodies."""

    def __init__(self, base: str, path: str, token: str | None) -> None:
        super().__init__(base, path.rstrip("/") or "/GeneralModelService/inference", token)

    def ask(self, question: Question) -> Reply:
        """Ask with a `Request` message."""
        status, headers, raw = self._post(question, general_request(question), "application/proto")
        if status != 200:  # noqa: PLR2004
            raise self._refusal_of(status, raw)
        outputs = general_arrays(self._where, raw)
        return Reply(outputs, *answer_facts(headers))

    def _refusal_of(self, status: int, raw: bytes) -> CloudEdgeError:
        from google.protobuf.message import DecodeError  # noqa: PLC0415

        from cloudedge.serving.formats import GeneralResponse  # noqa: PLC0415

        try:
            text = GeneralResponse.FromString(raw).err_msg
        except DecodeError:
            return super()._refusal_of(status, raw)
        return error_of_status(status, self._where, text)
