"""What reading a request and writing its answer costs, without the model: processor time per call.

    python bench/serving_wire.py [--json] [--calls 20000]

The model is a constant, so that everything measured is the wire format's own. One row of 13 numbers, then a batch of
64 rows, through every codec. Times are the best of five rounds of `process_time`, which does not count waiting but does
suffer from neighbours that take cache and clock.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from cloudedge.bundle import Signature
from cloudedge.serving._baidu_std import FrameReader, answer_frame, pack_frame
from cloudedge.serving._engine import Answer, Call, HttpCall
from cloudedge.serving._general import add_tensor, general_http
from cloudedge.serving._messages import GENERAL_SERVICE, GeneralRequest, PipelineRequest, RpcMeta
from cloudedge.serving._pipeline import pipeline_http, pipeline_message

SIGNATURE = Signature.model_validate(
    {"feed": [{"name": "x", "shape": [13]}], "fetch": [{"name": "price", "shape": [1]}]}
)


class Constant:
    """A model that is done at once."""

    signature = SIGNATURE

    def __init__(self, rows: int) -> None:
        self.answer = Answer({"price": np.full((rows, 1), 0.1895, np.float32)}, "sha256:" + "ab" * 32)

    async def predict(self, call: Call) -> Answer:
        """Answer what it always does."""
        assert call.feed["x"].shape == (len(self.answer.outputs["price"]), 13)
        return self.answer


def ways(rows: int) -> dict[str, Callable[[], Awaitable[Any]]]:
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

    def http(path: str, body: bytes, **headers: str) -> HttpCall:
        return HttpCall("POST", path, headers, body)

    path = "/GeneralModelService/inference"
    return {
        "pipeline json, text": lambda: pipeline_http(engine, http("/uci/p", pairs), service="uci"),
        "pipeline json, tensors": lambda: pipeline_http(engine, http("/uci/p", tensors), service="uci"),
        "pipeline grpc, as numpy prints": lambda: pipeline_message(
            engine, PipelineRequest.FromString(grpc), service="uci"
        ),
        "general json": lambda: general_http(engine, http(path, general)),
        "general proto": lambda: general_http(engine, http(path, proto, **{"content-type": "application/proto"})),
        "general baidu_std": lambda: answer_frame(engine, FrameReader().feed(frame)[0]),
    }


async def measure(way: Callable[[], Awaitable[Any]], calls: int) -> float:
    best = float("inf")
    for _ in range(5):
        begin = time.process_time()
        for _ in range(calls):
            await way()
        best = min(best, (time.process_time() - begin) / calls)
    return best * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--calls", type=int, default=20_000, help="of one row; batches get a tenth of them")
    options = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    for rows, calls in ((1, options.calls), (64, max(1, options.calls // 10))):
        for name, way in ways(rows).items():
            found.setdefault(name, {})[f"us_per_call_{rows}"] = round(asyncio.run(measure(way, calls)), 1)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(f"{'codec':32}{'1 row, us':>12}{'64 rows, us':>14}")
    for name, row in found.items():
        print(f"{name:32}{row['us_per_call_1']:12.1f}{row['us_per_call_64']:14.1f}")


if __name__ == "__main__":
    main()
