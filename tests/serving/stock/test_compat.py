"""One client, two servers: what works with stock Paddle Serving 0.9.0 works with us, and fails the same way."""

from __future__ import annotations

import importlib.util
import io
import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import requests

from tests.serving.stock.servers import cloudedge_server, make_models, request_body, stock_python, stock_server

grpc = pytest.importorskip("grpc", reason="grpcio is not installed")
pytest.importorskip("google.protobuf", reason="protobuf is not installed")

from tests.serving.stock.pipeline_messages import METHOD, Request, Response, Tensor  # noqa: E402 - needs protobuf

pytestmark = pytest.mark.parts

HERE = Path(__file__).parent
CLOSE = pytest.approx


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    if importlib.util.find_spec("paddle") is None:  # not imported here: it changes the process it is in
        pytest.skip("paddlepaddle is not installed")
    return make_models(tmp_path_factory.mktemp("models") / "made")


def start(system, model, models, folder):
    if system == "cloudedge":
        return cloudedge_server(models, model, folder)
    if stock_python() is None:
        pytest.skip("stock Paddle Serving is not installed (make peers)")
    return stock_server(models / model, model, folder)


@pytest.fixture(scope="module", params=["stock", "cloudedge"])
def tiny(request, models, tmp_path_factory):
    with start(request.param, "tiny", models, tmp_path_factory.mktemp(request.param)) as server:
        yield server


@pytest.fixture(scope="module", params=["stock", "cloudedge"])
def ctr(request, models, tmp_path_factory):
    with start(request.param, "ctr", models, tmp_path_factory.mktemp(request.param)) as server:
        yield server


@pytest.fixture(scope="module")
def tiny_rows(models):
    return json.loads((models / "tiny.rows.json").read_text())


@pytest.fixture(scope="module")
def ctr_rows(models):
    return json.loads((models / "ctr.rows.json").read_text())


def call(server, body, path="/tiny/prediction", **options):
    return requests.post(server.url(path), data=body, timeout=30, **options)


def numbers(answer):
    assert answer["err_no"] == 0, answer
    assert answer["key"] == ["prob"]
    assert answer["tensors"] == []
    (value,) = answer["value"]
    return json.loads(value)


def test_a_row(tiny, tiny_rows):
    for row, expect in zip(tiny_rows["rows"], tiny_rows["expect"], strict=True):
        answer = call(tiny, request_body(row))
        assert answer.status_code == 200
        assert answer.headers["Content-Type"].startswith("application/json")
        assert set(answer.json()) == {"err_no", "err_msg", "key", "value", "tensors"}
        assert numbers(answer.json()) == [CLOSE(expect[0], abs=1e-5)]


def test_a_batch(tiny, tiny_rows):
    batch = {"x": [row["x"][0] for row in tiny_rows["rows"]]}
    answer = numbers(call(tiny, request_body(batch)).json())
    assert answer == [CLOSE(expect[0], abs=1e-5) for expect in tiny_rows["expect"]]


def test_rows_of_the_ctr_model(ctr, ctr_rows):
    for row, expect in zip(ctr_rows["rows"], ctr_rows["expect"], strict=True):
        answer = call(ctr, request_body(row), "/ctr/prediction")
        assert numbers(answer.json()) == [CLOSE(expect[0], abs=1e-5)]


def test_many_clients_get_their_own_answers(tiny, tiny_rows):
    pairs = list(zip(tiny_rows["rows"], tiny_rows["expect"], strict=True)) * 12

    def one(pair):
        row, expect = pair
        return numbers(call(tiny, request_body(row)).json()) == [CLOSE(expect[0], abs=1e-5)]

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(one, pairs))


@pytest.mark.parametrize(
    "more",
    [{"logid": 7}, {"logid": "7"}, {"clientip": "10.0.0.8"}, {"nobody_knows": [1]}, {"name": "other"}, {"tensors": []}],
    ids=["logid", "logid as text", "clientip", "unknown field", "name in the body", "no tensors"],
)  # fmt: skip
def test_what_a_request_may_also_say(tiny, tiny_rows, more):
    answer = call(tiny, request_body(tiny_rows["rows"][0], **more))
    assert numbers(answer.json()) == [CLOSE(tiny_rows["expect"][0][0], abs=1e-5)]


@pytest.mark.parametrize("content_type", ["application/json", "text/plain", "application/x-www-form-urlencoded"])
def test_the_content_type_does_not_matter(tiny, tiny_rows, content_type):
    answer = call(tiny, request_body(tiny_rows["rows"][0]), headers={"Content-Type": content_type})
    assert numbers(answer.json())


def test_the_method_in_the_path_may_be_any(tiny, tiny_rows):
    assert numbers(call(tiny, request_body(tiny_rows["rows"][0]), "/tiny/anything").json())


@pytest.mark.parametrize(("elem_type", "field"), [(1, "float_data"), (3, "float64_data")])
def test_tensors(tiny, tiny_rows, elem_type, field):
    (row,) = tiny_rows["rows"][0]["x"]
    tensor = {"name": "x", "elem_type": elem_type, "shape": [1, 13], field: row}
    answer = call(tiny, json.dumps({"tensors": [tensor]}).encode())
    assert numbers(answer.json()) == [CLOSE(tiny_rows["expect"][0][0], abs=1e-5)]


ROW = "[[" + ", ".join(["0.1"] * 13) + "]]"
TENSOR = {"name": "x", "elem_type": 1, "shape": [1, 13], "float_data": [0.1] * 13}


def pair(key, value):
    return json.dumps({"key": [key], "value": [value]})


# What went wrong: path, body, and the err_no that every client looks at; the status is 200.
REFUSED = {
    "wrong service name": ("/nobody/prediction", pair("x", ROW), 3002),
    "missing key": ("/tiny/prediction", "{}", 5000),
    "nothing at all": ("/tiny/prediction", "", 5000),
    "another key": ("/tiny/prediction", pair("y", ROW), 5000),
    "an extra key": ("/tiny/prediction", json.dumps({"key": ["x", "y"], "value": [ROW, ROW]}), 5000),
    "more keys than values": ("/tiny/prediction", json.dumps({"key": ["x", "y"], "value": [ROW]}), 8000),
    "bad elem_type": ("/tiny/prediction", json.dumps({"tensors": [TENSOR | {"elem_type": 99}]}), 8000),
    "complex numbers": ("/tiny/prediction", json.dumps({"tensors": [TENSOR | {"elem_type": 10}]}), 8000),
    "data that does not fit": ("/tiny/prediction", json.dumps({"tensors": [TENSOR | {"shape": [3, 13]}]}), 8000),
}  # fmt: skip


@pytest.mark.parametrize(("path", "body", "err_no"), REFUSED.values(), ids=REFUSED.keys())
def test_refused_with_a_number(tiny, path, body, err_no):
    answer = call(tiny, body, path)
    assert answer.status_code == 200
    assert answer.json()["err_no"] == err_no, answer.text
    assert answer.json()["err_msg"]
    assert answer.json()["value"] == []


# Stock says 10000, its number for "unknown", and names the class and function that raised; we say what was wrong.
UNFIT = {"a value that cannot be read": pair("x", "[[0.1, "), "a row of another width": pair("x", "[[0.1, 0.2]]")}


@pytest.mark.parametrize("body", UNFIT.values(), ids=UNFIT.keys())
def test_refused_with_some_number(tiny, body):
    answer = call(tiny, body)
    assert answer.status_code == 200
    assert answer.json()["err_no"] in {5000, 8000, 10000}, answer.text


@pytest.mark.parametrize(
    "body",
    ['{"key": ["x"', "[1, 2]", '{"key": "x", "value": [1]}', '{"key": ["x"], "value": [[0.1]]}', '{"logid": "many"}'],
    ids=["cut off", "not an object", "key not a list", "value not text", "logid not a number"],
)  # fmt: skip
def test_malformed_json(tiny, body):
    answer = call(tiny, body)
    assert answer.status_code == 400
    assert answer.json()["code"] == 3
    assert answer.json()["message"]


@pytest.mark.parametrize("path", ["/tiny", "/tiny/prediction/more", "/"])
def test_paths_of_other_lengths(tiny, path):
    assert call(tiny, pair("x", ROW), path).status_code == 404


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_other_methods(tiny, method):
    assert requests.request(method, tiny.url("/tiny/prediction"), timeout=30).status_code == 405


@pytest.fixture
def inference(tiny):
    with grpc.insecure_channel(f"127.0.0.1:{tiny.rpc_port}") as channel:
        yield channel.unary_unary(METHOD, Request.SerializeToString, Response.FromString)


def test_grpc(inference, tiny_rows):
    row = json.dumps(tiny_rows["rows"][0]["x"])
    answer = inference(Request(key=["x"], value=[row], name="tiny", method="prediction", logid=7), timeout=30)
    assert (answer.err_no, list(answer.key)) == (0, ["prob"])
    assert json.loads(answer.value[0]) == [CLOSE(tiny_rows["expect"][0][0], abs=1e-5)]


def test_grpc_tensors(inference, tiny_rows):
    (row,) = tiny_rows["rows"][0]["x"]
    tensor = Tensor(name="x", elem_type=1, shape=[1, 13], float_data=row)
    answer = inference(Request(tensors=[tensor], name="tiny"), timeout=30)
    assert json.loads(answer.value[0]) == [CLOSE(tiny_rows["expect"][0][0], abs=1e-5)]


@pytest.mark.parametrize(
    ("request_", "err_no"),
    [
        (Request(key=["x"], value=[ROW], name="nobody"), 3002),
        (Request(name="tiny"), 5000),
        (Request(key=["x", "y"], value=[ROW], name="tiny"), 8000),
        (Request(tensors=[Tensor(name="x", elem_type=99, shape=[1, 13], float_data=[0.1] * 13)], name="tiny"), 8000),
    ],
    ids=["wrong service name", "missing key", "more keys than values", "bad elem_type"],
)
def test_grpc_refused_with_a_number(inference, request_, err_no):
    answer = inference(request_, timeout=30)
    assert answer.err_no == err_no
    assert answer.err_msg


def test_a_pickle_is_not_opened_by_us(models, tmp_path):
    """Stock unpickles what a stranger sends in elem_type 13; that is not copied."""
    opened = tmp_path / "opened"
    planted = b"\x80\x04cposix\nsystem\n(S'touch %s'\ntR." % str(opened).encode()
    np.load(io.BytesIO(planted), allow_pickle=True)  # as stock does
    opened.unlink()
    with (
        cloudedge_server(models, "tiny", tmp_path / "run") as server,
        grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}") as channel,
    ):
        inference = channel.unary_unary(METHOD, Request.SerializeToString, Response.FromString)
        tensor = Tensor(name="x", elem_type=13, shape=[1], byte_data=planted)
        assert inference(Request(tensors=[tensor], name="tiny"), timeout=30).err_no != 0
    assert not opened.exists()


def test_their_own_client(tiny, tiny_rows):
    if stock_python() is None:
        pytest.skip("stock Paddle Serving is not installed (make peers)")
    row = json.dumps(tiny_rows["rows"][0]["x"])
    run = subprocess.run(
        [stock_python(), HERE / "pipeline_client.py", str(tiny.rpc_port), "tiny", row],
        capture_output=True, text=True, check=False, timeout=60, env={"PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    answer = json.loads(run.stdout.splitlines()[-1])
    assert (answer["err_no"], answer["key"]) == (0, ["prob"])
    assert json.loads(answer["value"][0]) == [CLOSE(tiny_rows["expect"][0][0], abs=1e-5)]
