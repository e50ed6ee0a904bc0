"""What callers are told when something else than their call is wrong, and when it is their call after all."""

import logging

import numpy as np
import pytest

from cloudedge.bundle import Bundle, Signature, Variable
from cloudedge.clock import SystemClock
from cloudedge.errors import InputError, Unavailable
from cloudedge.serving import Client, Runtime, RuntimeConfig, Server, ServerConfig
from cloudedge.serving.engine import ModelFailed
from cloudedge.serving.model._predictor import Predictor
from tests.serving.models import _save as save_model
from tests.serving.raw_http import Http

pytestmark = pytest.mark.parts

X = np.array([[1.0, 2.0]], np.float32)
URLS = {
    "plain": "http://127.0.0.1:{port}",
    "pipeline": "pipeline+http://127.0.0.1:{port}/pair",
    "general": "general+http://127.0.0.1:{port}",
    "grpc": "grpc://127.0.0.1:{grpc_port}",
    "pipeline-grpc": "pipeline+grpc://127.0.0.1:{grpc_port}/pair",
    "brpc": "brpc://127.0.0.1:{port}",
}


@pytest.fixture
def spoken(marked):
    with Server(marked, ServerConfig(port=0, grpc_port=0, service="pair")) as made:
        yield made


def urls(server):
    return {name: url.format(port=server.port, grpc_port=server.grpc_port) for name, url in URLS.items()}


@pytest.mark.parametrize("kind", URLS)
def test_without_an_active_version_clients_ask_again(marked, models, spoken, kind):
    class Meanwhile(SystemClock):
        """The version is activated while the client waits before its next try."""

        def sleep(self, seconds):
            marked.activate(models.marked[0].pin)

    marked.deactivate()
    with Client(urls(spoken)[kind], clock=Meanwhile()) as client:
        assert client.predict({"x": X}).pin == models.marked[0].pin
    marked.deactivate()
    with Client(urls(spoken)[kind], retries=0) as client, pytest.raises(Unavailable, match="no version is active"):
        client.predict({"x": X})


@pytest.mark.parametrize("kind", URLS)
def test_a_model_that_fails_is_not_called_missing_rows_nor_the_callers_fault(spoken, monkeypatch, caplog, kind):
    def broken(_predictor, _feed):
        raise ModelFailed("the engine failed: ResourceExhaustedError: out of memory at 10.1.2.3")

    monkeypatch.setattr(Predictor, "run", broken)
    with Client(urls(spoken)[kind], retries=0) as client, pytest.raises(Exception, match="the model failed") as told:
        client.predict({"x": X})
    assert not isinstance(told.value, InputError)
    assert "10.1.2.3" not in str(told.value)
    assert "rows" not in str(told.value)
    assert "out of memory at 10.1.2.3" in caplog.text


def test_the_engines_own_failures_are_told_apart_from_wrong_inputs(marked, models):
    predictor = marked.queues[models.marked[0].pin].version.inline_predictor

    def broken():
        raise RuntimeError("some/file.cc:12\nResourceExhaustedError: Out of memory. (at some/file.cc:12)")

    predictor._run = broken
    with pytest.raises(ModelFailed, match="Out of memory"):
        predictor.run({"x": X})


@pytest.fixture
def picky(models, tmp_path):
    """Adds two rows whose lengths have to be equal, and the row of a table of three."""

    def build(p):
        a, b = (p.static.data(name, [-1, -1], "float32") for name in "ab")
        ids = p.static.data("ids", [-1, 1], "int64")
        table = p.create_parameter([3, 1], "float32", name="t")
        return [a, b, ids], [p.sum(a * b, 1, keepdim=True) + p.nn.functional.embedding(ids, table)[:, 0] * 0.0]

    save_model(tmp_path / "picky", build, 1)
    signature = Signature(
        feed=(
            Variable(name="a", shape=(-1,)),
            Variable(name="b", shape=(-1,)),
            Variable(name="ids", dtype="int64", shape=(1,)),
        ),
        fetch=(Variable(name="fetch_name_0", alias="y", shape=(1,)),),
    )
    bundle = Bundle.pack(tmp_path / "picky", name="picky", signature=signature, hub=models.hub)
    with Runtime(RuntimeConfig(workers=1), hub=models.hub) as runtime:
        runtime.activate(runtime.load(models.ref(bundle)).pin)
        with Server(runtime, ServerConfig(port=0)) as server:
            yield server


WRONG = {
    "shapes that do not go together": {"a": [[1, 2]], "b": [[1, 2, 3]], "ids": [[0]]},
    "an id out of range": {"a": [[1, 2]], "b": [[1, 2]], "ids": [[7]]},
}


@pytest.mark.parametrize("inputs", WRONG.values(), ids=WRONG)
def test_what_only_the_engine_can_see_is_said_plainly(picky, caplog, inputs):
    with Http(picky.port) as http, caplog.at_level(logging.WARNING):
        reply = http.ask("POST", "/v1/predict", {"inputs": inputs})
        assert reply.status == 400
        text = reply.json()["error"]
        assert "a [1, 2]" in text
        assert ".cc" not in text
        assert "Error" not in text
        assert "the engine refused inputs" in caplog.text
        good = {"a": [[1, 2]], "b": [[3, 4]], "ids": [[2]]}
        assert http.ask("POST", "/v1/predict", {"inputs": good}).json()["outputs"] == {"y": [[11.0]]}
