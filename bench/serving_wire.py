"""What reading a request and writing its answer costs, without the model: processor time per call.

    python bench/serving_wire.py [--json] [--calls 20000]

The model is a constant, so that everything measured is the wire format's own. One row of 13 numbers, then a batch of
64 rows, through every codec, from bytes to bytes. Every answer is read back, outside the time measured, and has to be
that constant: an error is no answer, and ends the run. Times are the best of five rounds of `process_time`, which does
not count waiting but does suffer from neighbours that take cache and clock.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np

from cloudedge.bundle import Signature
from cloudedge.serving.engine import Answer, Call, HttpCall
from cloudedge.serving.formats._messages import (
    GENERAL_SERVICE,
    GeneralRequest,
    GeneralResponse,
    PipelineRequest,
    PipelineResponse,
    RpcMeta,
)
from cloudedge.serving.protocols._baidu_std import FrameReader, answer_frame, pack_frame
from cloudedge.serving.protocols._general import add_tensor, general_http
from cloudedge.serving.protocols._pipeline import pipeline_http, pipeline_message

SIGNATURE = Signature.model_validate(
    {"feed": [{"name": "x", "shape": [13]}], "fetch": [{"name": "price", "shape": [1]}]}
)


PRICE, PIN = 0.1895, "sha256:" + "ab" * 32


class Constant:
    """Holds one version, itself, whose model is done at once."""

    signature = SIGNATURE

    def __init__(self, rows: int) -> None:
        self.answer = Answer({"price": np.full((rows, 1), PRICE, np.float32)}, PIN)

    def hold(self, tag: str | None = None) -> AbstractContextManager[Constant]:  # noqa: ARG002 - the interface's
        """Hold the only version there is."""
        return nullcontext(self)

    async def predict(self, call: Call) -> Answer:
        """Answer what it always does."""
        assert call.feed["x"].shape == (len(self.answer.outputs["price"]), 13)
        return self.answer


class Way(NamedTuple):
    """One codec: a call from bytes to bytes, and how a client reads those."""

    call: Callable[[], Awaitable[bytes]]
    read: Callable[[bytes], Any]
    """Returns the prices in an answer; raises for one that is none."""


def ways(rows: int) -> dict[str, Way]:
    """Every codec, each ready to be called with the same rows."""
    engine = Constant(rows)
    x = np.random.default_rng(1).random((rows, 13), np.float32)
    message = GeneralRequest(fetch_var_names=["price"])
    add_tensor(message.tensor, "x", "x", x)
    meta = RpcMeta(correlation_id=1)
    meta.request.service_name, meta.request.method_name = GENERAL_SERVICE, "inference"
    tensor = {"elem_type": 1, "shape": list(x.shape), "name": "x", "float_data": x.reshape(-1).tolist()}
    pairs = json.dumps({"key": ["x"], "value": [json.dumps(x.tolist())], "logid": 1}).encode()
    tensors = json.dumps({"tensors": [tensor]}).encode()
    general = json.dumps({"tensor": [tensor], "fetch_var_names": ["price"]}).encode()
    proto = message.SerializeToString()
    frame = pack_frame(meta, proto)
    grpc = PipelineRequest(key=["x"], value=[repr(x)]).SerializeToString()

    async def by_pipeline(body: bytes) -> bytes:
        return (await pipeline_http(engine, HttpCall("POST", "/uci/p", {}, body), service="uci")).body

    async def by_general(body: bytes, **headers: str) -> bytes:
        return (await general_http(engine, HttpCall("POST", "/GeneralModelService/inference", headers, body))).body

    async def by_grpc() -> bytes:
        response, _ = await pipeline_message(engine, PipelineRequest.FromString(grpc), service="uci")
        return bytes(response.SerializeToString())

    async def by_frame() -> bytes:
        return pack_frame(*await answer_frame(engine, FrameReader().feed(frame)[0]))

    return {
        "pipeline json, text": Way(lambda: by_pipeline(pairs), read_pipeline),
        "pipeline json, tensors": Way(lambda: by_pipeline(tensors), read_pipeline),
        "pipeline grpc, as numpy prints": Way(by_grpc, read_grpc),
        "general json": Way(lambda: by_general(general), read_general),
        "general proto": Way(lambda: by_general(proto, **{"content-type": "application/proto"}), read_proto),
        "general baidu_std": Way(by_frame, read_frame),
    }


def read_pipeline(body: bytes) -> Any:
    found = json.loads(body)
    assert (found["err_no"], found["key"]) == (0, ["price"]), found
    return json.loads(found["value"][0])


def read_grpc(body: bytes) -> Any:
    found = PipelineResponse.FromString(body)
    assert (found.err_no, list(found.key)) == (0, ["price"]), found
    return json.loads(found.value[0])


def read_general(body: bytes) -> Any:
    (tensor,) = json.loads(body)["outputs"][0]["tensor"]
    return np.reshape(tensor["float_data"], tensor["shape"])


def read_proto(body: bytes) -> Any:
    found = GeneralResponse.FromString(body)
    assert found.err_no == 0, found
    (tensor,) = found.outputs[0].tensor
    return np.reshape(tensor.float_data, tensor.shape)


def read_frame(body: bytes) -> Any:
    (found,) = FrameReader().feed(body)
    assert (found.meta.response.error_code, found.meta.pin) == (0, PIN), found.meta
    return read_proto(found.payload)


async def measure(way: Way, rows: int, calls: int) -> float:
    """Time calls, the best of five rounds; every answer is one that reads as the price, or the run ends."""
    best = float("inf")
    for _ in range(5):
        begin = time.process_time()
        answers = [await way.call() for _ in range(calls)]
        best = min(best, (time.process_time() - begin) / calls)
        for answer in set(answers):
            np.testing.assert_allclose(way.read(answer), np.full((rows, 1), PRICE), rtol=1e-6)
    return best * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--calls", type=int, default=20_000, help="of one row; batches get a tenth of them")
    options = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    for rows, calls in ((1, options.calls), (64, max(1, options.calls // 10))):
        for name, way in ways(rows).items():
            found.setdefault(name, {})[f"us_per_call_{rows}"] = round(asyncio.run(measure(way, rows, calls)), 1)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(f"{'codec':32}{'1 row, us':>12}{'64 rows, us':>14}")
    for name, row in found.items():
        print(f"{name:32}{row['us_per_call_1']:12.1f}{row['us_per_call_64']:14.1f}")


if __name__ == "__main__":
    main()
