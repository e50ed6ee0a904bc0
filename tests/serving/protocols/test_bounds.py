"""A small body takes little memory, whatever it says."""

import json
import tracemalloc

import pytest

from cloudedge.serving.protocols._general import general_http
from cloudedge.serving.protocols._pipeline import pipeline_http
from cloudedge.serving.server._routes import predict_http
from tests.serving.protocols.engine import TinyEngine, post, run

pytestmark = pytest.mark.rules

LONG = ["a" * 100_000, *["b"] * 2000]  # numpy gives every string the room of the longest: 800 MB
BODIES = {
    "plain": ("/v1/predict", {"inputs": {"x": LONG}}),
    "pipeline": ("/uci/prediction", {"key": ["x"], "value": [json.dumps(LONG)]}),
    "general": ("/GeneralModelService/inference", {"tensor": [{"alias_name": "x", "elem_type": 20, "data": LONG}]}),
}


@pytest.mark.parametrize(("path", "body"), BODIES.values(), ids=BODIES)
def test_one_long_text_does_not_widen_the_others(path, body):
    call = post(path, json.dumps(body))

    async def ask():
        if path == "/v1/predict":
            return await predict_http(TinyEngine(), call)
        if path.startswith("/General"):
            return await general_http(TinyEngine(), call)
        return await pipeline_http(TinyEngine(), call, service="uci")

    tracemalloc.start()
    try:
        answer = run(ask())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    told = json.loads(answer.body)
    assert answer.status == 400 or told["err_no"] == 5000
    assert "2001 strings of up to 100000 characters" in json.dumps(told)
    assert peak < 32 << 20
