"""The data port: what is answered, what is refused, and what disturbs nobody else."""

import gc
import json
import socket
import time

import numpy as np
import pytest

from cloudedge.bundle import Signature, Variable
from cloudedge.serving import HttpLimits, Server, ServerConfig
from cloudedge.serving.server._openapi import openapi
from tests.serving.raw_http import Http

pytestmark = pytest.mark.parts

X = [[1.0, 2.0]]
PIPELINE = {"key": ["x"], "value": [json.dumps(X)]}


@pytest.fixture
def http(server):
    with Http(server.port) as connection:
        yield connection


def small(runtime, **limits):
    return Server(runtime, ServerConfig(port=0, service="pair", limits=HttpLimits(**limits)))


def test_plain_json(http, models):
    reply = http.predict(X)
    assert reply.json() == {"outputs": {"y": X}, "pin": models.marked[0].pin}
    assert b'{"y":[[0.1,-3e-7]]}' in http.predict([[0.1, -3e-7]]).body, "a float32, in the digits it needs"
    assert reply.headers["x-cloudedge-pin"] == models.marked[0].pin


def test_pipeline_and_general_service_say_which_version_answered(http, models):
    reply = http.ask("POST", "/pair/prediction", PIPELINE)
    assert reply.json()["err_no"] == 0
    assert json.loads(reply.json()["value"][0]) == X
    assert reply.headers["x-cloudedge-pin"] == models.marked[0].pin
    tensor = {"float_data": [1, 2], "elem_type": 1, "shape": [1, 2], "name": "x", "alias_name": "x"}
    for service in ("GeneralModelService", "baidu.paddle_serving.predictor.general_model.GeneralModelService"):
        reply = http.ask("POST", f"/{service}/inference", {"tensor": [tensor], "fetch_var_names": ["y"]})
        assert reply.json()["outputs"][0]["tensor"][0]["float_data"] == [1, 2]
        assert reply.headers["x-cloudedge-pin"] == models.marked[0].pin


def test_pages(http):
    assert http.ask("GET", "/healthz").body == b"ok\n"
    assert http.ask("GET", "/readyz").status == 200
    paths = http.ask("GET", "/openapi.json").json()["paths"]
    example = paths["/v1/predict"]["post"]["requestBody"]["content"]["application/json"]["example"]
    assert http.ask("POST", "/v1/predict", example).status == 200
    page = http.ask("GET", "/docs").body.decode()
    assert "/v1/predict" in page
    assert "src=" not in page
    assert "//" not in page.replace("<!doctype", "")


def test_answers_are_as_the_openapi_page_says(http):
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    post = http.ask("GET", "/openapi.json").json()["paths"]["/v1/predict"]["post"]
    asked = post["requestBody"]["content"]["application/json"]["schema"]
    for body, status in (({"inputs": {"x": X}}, 200), ({"inputs": {"z": X}}, 400), ({}, 400)):
        reply = http.ask("POST", "/v1/predict", body)
        assert (reply.status, jsonschema.Draft202012Validator(asked).is_valid(body)) == (status, status == 200)
        jsonschema.validate(reply.json(), post["responses"][str(status)]["content"]["application/json"]["schema"])


@pytest.mark.parametrize("dtype", ["bool", "int64", "uint8", "float16", "float32"])
def test_an_example_is_of_its_type(dtype):
    signature = Signature(feed=(Variable(name="x", dtype=dtype, shape=(-1, 2)),), fetch=(Variable(name="y"),))
    content = openapi(signature, "m")["paths"]["/v1/predict"]["post"]["requestBody"]["content"]["application/json"]
    array = np.array(content["example"]["inputs"]["x"])
    assert (array.shape, array.dtype.kind) == ((1, 1, 2), np.dtype(dtype).kind.replace("u", "i"))


@pytest.mark.parametrize(("path", "status"), [("/readyz", 200), ("/v1/predict", 405), ("/pair/prediction", 405)])
def test_the_head_of_an_answer_comes_alone(http, path, status):
    http.request("HEAD", path)
    reply = http.reply(has_body=False)
    assert (reply.status, int(reply.headers["content-length"]) > 0) == (status, True)
    assert http.predict(X).status == 200, "what follows is the next answer"


def test_metrics_carry_upstreams_names_and_true_microseconds(http, models):
    for _ in range(3):
        http.predict(X)
    http.predict([[1.0]])
    text = http.ask("GET", "/metrics").body.decode()
    labels = f'model="marked",version="{models.marked[0].pin}"'
    assert f"pd_query_request_success_total{{{labels}}} 3" in text
    assert f"pd_query_request_failure_total{{{labels}}} 1" in text
    found = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    spent = float(found[f"pd_query_request_duration_us_total{{{labels}}}"])
    runs = float(found[f"pd_inference_duration_us_total{{{labels}}}"])
    assert 0 < runs <= spent + 1
    assert found[f"cloudedge_serving_request_seconds_count{{{labels}}}"] == "3"
    assert float(found["process_resident_memory_bytes"]) > 1e7
    assert http.ask("GET", "/stats").json()["versions"][models.marked[0].pin]["answered"] == 3


BAD = {
    "malformed JSON": ("POST", "/v1/predict", b"{", 400, "not JSON"),
    "no inputs": ("POST", "/v1/predict", b"{}", 400, "inputs"),
    "wrong dtype": ("POST", "/v1/predict", b'{"inputs":{"x":[["a","b"]]}}', 400, "'x': holds text"),
    "null": ("POST", "/v1/predict", b'{"inputs":{"x":[[null,1]]}}', 400, "'x': is not made of numbers"),
    "ragged": ("POST", "/v1/predict", b'{"inputs":{"x":[[1,2],[3]]}}', 400, "'x': is not a regular"),
    "wrong shape": ("POST", "/v1/predict", b'{"inputs":{"x":[[1]]}}', 400, "'x' has shape [1, 1]"),
    "no such output": ("POST", "/v1/predict", b'{"inputs":{"x":[[1,2]]},"outputs":["z"]}', 400, "'z' is unknown"),
    "outputs are names": ("POST", "/v1/predict", b'{"inputs":{"x":[[1,2]]},"outputs":3}', 400, "outputs"),
    "infinity": ("POST", "/v1/predict", b'{"inputs":{"x":[[1e39,1]]}}', 400, "'x': row 0 holds"),
    "NaN": ("POST", "/v1/predict", b'{"inputs":{"x":[[NaN,1]]}}', 400, "not JSON"),
    "too many rows": (
        "POST", "/v1/predict", json.dumps({"inputs": {"x": [[1, 2]] * 1025}}).encode(), 400, "'x' has 1025 rows"
    ),
    "unknown endpoint": ("GET", "/nope", b"", 404, "Not Found"),
    "deep endpoint": ("POST", "/a/b/c", b"{}", 404, "Not Found"),
    "wrong method": ("DELETE", "/v1/predict", b"", 405, "Not Allowed"),
    "wrong method on a page": ("POST", "/healthz", b"", 405, "Not Allowed"),
}  # fmt: skip


@pytest.mark.parametrize(("method", "path", "body", "status", "text"), BAD.values(), ids=BAD)
def test_what_is_wrong_is_said_and_the_connection_goes_on(http, method, path, body, status, text):  # noqa: PLR0917
    reply = http.ask(method, path, body)
    assert reply.status == status
    assert text in reply.body.decode()
    assert http.predict(X).status == 200


def test_an_upstream_client_gets_its_error_numbers(http):
    assert http.ask("POST", "/other/prediction", PIPELINE).json()["err_no"] == 3002
    assert http.ask("POST", "/pair/prediction", {"key": ["x"], "value": ["[[1]]"]}).json()["err_no"] == 5000
    assert http.ask("POST", "/pair/prediction", b"{").status == 400


def test_pipelined_requests_are_answered_in_order(http):
    for i in range(60):
        http.request("POST", "/v1/predict", {"inputs": {"x": [[i, i]]}})
        if i % 7 == 3:
            http.request("GET", "/healthz")
    for i in range(60):
        assert http.reply().json()["outputs"]["y"] == [[i, i]]
        if i % 7 == 3:
            assert http.reply().body == b"ok\n"


def test_a_refusal_waits_for_the_answers_before_it(http):
    http.send(b'POST /v1/predict HTTP/1.1\r\nContent-Length: 26\r\n\r\n{"inputs":{"x":[[5,6]]}}  \x00\x01 nonsense\r\n')
    assert http.reply().json()["outputs"]["y"] == [[5, 6]]
    assert http.reply().status == 400
    assert http.is_closed()


def test_a_request_in_pieces_and_in_chunks(http):
    body = json.dumps({"inputs": {"x": X}}).encode()
    raw = b"POST /v1/predict HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    for byte in raw:
        http.send(bytes([byte]))
    for i in range(0, len(body), 5):
        part = body[i : i + 5]
        http.send(b"%x\r\n%b\r\n" % (len(part), part))
    http.send(b"0\r\n\r\n")
    assert http.reply().json()["outputs"]["y"] == X


def test_expect_100_continue(http):
    http.send(b"POST /v1/predict HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 25\r\n\r\n")
    assert http.reply().status == 100
    http.send(b'{"inputs":{"x":[[5,6]]}} ')
    assert http.reply().status == 200


def test_http_1_0_and_close(server):
    with Http(server.port) as http:
        http.send(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert http.reply().status == 200
        assert http.is_closed()
    with Http(server.port) as http:
        reply = http.ask("GET", "/healthz", headers={"Connection": "close"})
        assert reply.headers["connection"] == "close"
        assert http.is_closed()


def test_a_body_over_the_limit_is_refused_before_it_is_sent(marked):
    with small(marked, max_body_bytes=1000) as server, Http(server.port) as good:
        with Http(server.port) as http:
            http.send(b"POST /v1/predict HTTP/1.1\r\nContent-Length: 1001\r\n\r\n")
            assert http.reply().status == 413
            assert http.is_closed()
        with Http(server.port) as http:
            http.send(b"POST /v1/predict HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n" + b" " * 1001)
            assert http.reply().status == 413
            assert http.is_closed()
        assert good.predict(X).status == 200
        assert server.connections.held.count == 0


def test_a_head_over_the_limit_is_refused(marked):
    with small(marked, max_head_bytes=1000) as server, Http(server.port) as http:
        http.send(b"GET /healthz HTTP/1.1\r\n" + b"".join(b"h%d: %b\r\n" % (i, b"v" * 50) for i in range(40)))
        assert http.reply().status == 431
        assert http.is_closed()


def test_a_slow_body_times_out_and_an_idle_connection_is_closed(marked):
    with small(marked, body_timeout_s=0.3, idle_timeout_s=1.0) as server:
        with Http(server.port) as slow, Http(server.port) as good:
            slow.send(b"POST /v1/predict HTTP/1.1\r\nContent-Length: 100\r\n\r\n{")
            assert good.predict(X).status == 200
            assert slow.reply().status == 408
            assert slow.is_closed()
            assert good.predict(X).status == 200
        with Http(server.port) as idle:
            assert idle.is_closed()
        assert server.connections.timed_out == 1


def test_connections_have_a_cap(marked):
    with small(marked, max_connections=2) as server:
        with Http(server.port) as one, Http(server.port) as two:
            assert one.predict(X).status == two.predict(X).status == 200
            with Http(server.port) as three:
                assert three.reply().status == 503
            assert one.predict(X).status == 200
        deadline = time.monotonic() + 10
        while server.connections.open and time.monotonic() < deadline:
            time.sleep(0.02)
        with Http(server.port) as again:
            assert again.predict(X).status == 200


@pytest.mark.parametrize("raw", [b"\x16\x03\x01 hello", b"PRP", b"PRPC\xff\xff\xff\xff\xff\xff\xff\xff", b"GET"])
def test_nonsense_and_closed_connections_disturb_nobody(server, raw):
    with Http(server.port) as good:
        for _ in range(20):
            connection = socket.create_connection(("127.0.0.1", server.port))
            connection.sendall(raw)
            connection.close()
            with Http(server.port) as gone:
                gone.request("POST", "/v1/predict", {"inputs": {"x": X}})
        assert good.predict(X).status == 200
    gc.collect()


def test_a_version_is_chosen_by_header_with_the_admin_token(marked, models):
    one = models.marked[1]
    marked.load(models.ref(one))
    config = ServerConfig(port=0, service="pair", admin_token="secret")
    with Server(marked, config) as server, Http(server.port) as http:
        assert http.predict(X, X_Cloudedge_Pin=one.pin).status == 403
        reply = http.predict(X, X_Cloudedge_Pin=one.pin, Authorization="Bearer secret")
        assert reply.json() == {"outputs": {"y": [[2, 3]]}, "pin": one.pin}
        reply = http.ask(
            "POST", "/pair/prediction", PIPELINE, {"X-Cloudedge-Pin": one.pin, "Authorization": "Bearer secret"}
        )
        assert reply.headers["x-cloudedge-pin"] == one.pin
        assert http.predict(X, X_Cloudedge_Pin="none", Authorization="Bearer secret").status == 404
        assert http.predict(X, X_Cloudedge_Tag="none").status == 404


def test_a_data_token_is_asked_for(marked):
    with Server(marked, ServerConfig(port=0, service="pair", token="t")) as server, Http(server.port) as http:
        assert http.predict(X).status == 401
        assert http.ask("GET", "/metrics").status == 401
        assert http.ask("GET", "/healthz").status == 200
        assert http.predict(X, Authorization="Bearer t").status == 200


def test_the_admin_token_does_for_both(marked, models):
    """A request has one Authorization header."""
    pin = models.marked[0].pin
    config = ServerConfig(port=0, service="pair", token="data", admin_token="admin")
    with Server(marked, config) as server, Http(server.port) as http:
        assert http.predict(X, Authorization="Bearer data").status == 200
        assert http.predict(X, Authorization="Bearer data", X_Cloudedge_Pin=pin).status == 403
        assert http.predict(X, Authorization="Bearer admin", X_Cloudedge_Pin=pin).status == 200
        assert http.predict(X, Authorization="Bearer other", X_Cloudedge_Pin=pin).status == 401


def test_the_access_log_is_json_and_sampled(marked, caplog):
    config = ServerConfig(port=0, service="pair", access_log=1.0)
    with caplog.at_level("INFO", "cloudedge.serving.access"):
        with Server(marked, config) as server, Http(server.port) as http:
            http.predict(X)
            http.predict([[1]])
        lines = [json.loads(record.message) for record in caplog.records]
    assert [line["status"] for line in lines] == [200, 400]
    assert lines[0]["pin"] == marked.routing.active


def test_nothing_active_is_an_answer_too(runtime):
    with Server(runtime, ServerConfig(port=0)) as server, Http(server.port) as http:
        assert http.ask("GET", "/readyz").status == 503
        assert http.predict(X).status == 503
        assert http.ask("GET", "/docs").status == 503
        assert http.ask("POST", "/model/prediction", PIPELINE).json()["err_no"] == 3001
