"""A large body that is being read holds up nobody else."""

import gzip
import json
import threading

import grpc
import numpy as np
import pytest

from cloudedge.serving import Client, Runtime, RuntimeConfig, Server, ServerConfig
from cloudedge.serving.formats import _feeds
from cloudedge.serving.formats._messages import GENERAL_SERVICE, PIPELINE_SERVICE, GeneralRequest, PipelineRequest
from cloudedge.serving.protocols import _general, _pipeline
from cloudedge.serving.protocols._general import add_tensor
from cloudedge.serving.server import _routes
from tests.serving.raw_http import Http

pytestmark = pytest.mark.parts

LARGE = np.arange(100_000, dtype=np.float32)[np.newaxis]
TENSOR = {"name": "x", "alias_name": "x", "elem_type": 1, "shape": LARGE.shape, "float_data": LARGE[0].tolist()}
GENERAL = "/GeneralModelService/inference"


@pytest.fixture
def server(models):
    with Runtime(RuntimeConfig(workers=2), hub=models.hub) as runtime:
        runtime.activate(runtime.load(models.ref(models.lengths)).pin)
        with Server(runtime, ServerConfig(port=0, grpc_port=0, service="lengths")) as made:
            yield made


def http(path, body, **headers):
    def ask(server):
        with Http(server.port, timeout=60) as connection:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            return connection.ask("POST", path, body, named).status == 200

    return ask


def message():
    made = GeneralRequest()
    add_tensor(made.tensor, "x", "x", LARGE)
    return made.SerializeToString()


def over_grpc(service, body):
    def ask(server):
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            return bool(channel.unary_unary(f"/{service}/inference")(body, timeout=60))

    return ask


def brpc(server):
    with Client(f"brpc://127.0.0.1:{server.port}", timeout_s=60) as client:
        return bool(client.predict({"x": LARGE}).outputs)


def pipeline_tensors():
    made = PipelineRequest()
    tensor = made.tensors.add(name="x", elem_type=1, shape=LARGE.shape)
    tensor.float_data.extend(LARGE[0].tolist())
    return made.SerializeToString()


general = json.dumps({"tensor": [TENSOR]}).encode()
WAYS = {
    "plain": (_routes, "nested_array", http("/v1/predict", {"inputs": {"x": LARGE.tolist()}})),
    "pipeline text": (
        _feeds,
        "parse_array",
        http("/lengths/prediction", {"key": ["x"], "value": [json.dumps(LARGE.tolist())]}),
    ),
    "pipeline tensors": (_pipeline, "from_json", http("/lengths/prediction", {"tensors": [TENSOR]})),
    "general JSON": (_general, "from_json", http(GENERAL, general)),
    "general gzip": (_general, "from_json", http(GENERAL, gzip.compress(general), Content_Encoding="gzip")),
    "general protobuf": (_general, "from_message", http(GENERAL, message(), Content_Type="application/proto")),
    "gRPC": (_general, "from_message", over_grpc(GENERAL_SERVICE, message())),
    "pipeline gRPC": (_pipeline, "from_message", over_grpc(PIPELINE_SERVICE, pipeline_tensors())),
    "baidu_std": (_general, "from_message", brpc),
}


@pytest.mark.parametrize(("module", "name", "ask"), WAYS.values(), ids=WAYS)
def test_a_small_request_is_answered_while_a_large_one_is_read(server, monkeypatch, module, name, ask):
    reading, go_on, read = threading.Event(), threading.Event(), getattr(module, name)

    def slow(*arguments):
        if threading.current_thread() is not server._runs._thread:
            reading.set()
            assert go_on.wait(60)
        return read(*arguments)

    monkeypatch.setattr(module, name, slow)
    answers = []
    thread = threading.Thread(target=lambda: answers.append(ask(server)))
    thread.start()
    try:
        assert reading.wait(60), "it was read where requests are read"
        with Http(server.port) as small:
            assert small.predict([[1.0, 2.0]]).json()["outputs"] == {"sum": [[3.0]]}
        assert not answers
    finally:
        go_on.set()
        thread.join(60)
    assert answers == [True]
