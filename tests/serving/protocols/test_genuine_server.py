"""The same requests to the genuine Pipeline server 0.9.0, gateway and all, and to ours: the same answers."""

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import urllib3

from cloudedge.errors import InputError, NotFound, Rejected
from cloudedge.serving import Client, load_ops
from cloudedge.serving.engine import HttpCall
from cloudedge.serving.protocols._pipeline import pipeline_http
from tests.serving.protocols.engine import TinyEngine, run

PROGRAM = shutil.which("serving-client", path=os.environ.get("CLOUDEDGE_TEST_TOOLS", ""))
SERVICE = Path(__file__).with_name("genuine_service.py")
pytestmark = [
    pytest.mark.parts,
    pytest.mark.skipif(
        PROGRAM is None,
        reason="serving-client is not in $CLOUDEDGE_TEST_TOOLS (tests/serving/protocols/install_genuine .peers)",
    ),
    pytest.mark.xdist_group("genuine"),
]


@pytest.fixture(scope="module")
def genuine(tmp_path_factory):
    """(HTTP port, gRPC port) of a genuine server."""
    folder = tmp_path_factory.mktemp("genuine")
    with socket.socket() as first, socket.socket() as second:
        for probe in (first, second):
            probe.bind(("127.0.0.1", 0))
        rpc, http = first.getsockname()[1], second.getsockname()[1]
    (folder / "config.yml").write_text(
        f"rpc_port: {rpc}\nhttp_port: {http}\nworker_num: 4\nbuild_dag_each_worker: false\n"
        "dag:\n    is_thread_op: true\nop:\n    uci:\n        concurrency: 1\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with (folder / "log").open("wb") as log:
        # A session of its own: that server kills its whole process group when it cannot start.
        process = subprocess.Popen(
            [PROGRAM, SERVICE], cwd=folder, stdout=log, stderr=log, env=environment, start_new_session=True
        )
    try:
        wait_for(http, process, folder / "log")
        yield http, rpc
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def wait_for(port, process, log):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(urllib3.exceptions.HTTPError):
            body = b'{"key":["x"],"value":["1"]}'
            if urllib3.request("POST", f"http://127.0.0.1:{port}/uci/p", body=body, retries=False).status == 200:
                return
        time.sleep(0.2)
    pytest.fail(f"the genuine server did not start: {log.read_text()[-2000:]}")


BODIES = [
    '{"key":["x"],"value":["[[0.1,0.2]]"],"logid":1}',
    '{"key":["x"],"value":["[[0.1,0.2]]"],"logid":"12","clientip":"10.0.0.8","future":{"a":1}}',
    '{"key":["x"],"value":["1","2"],"name":"other","method":"m"}',
    '{"key":["x","fail"],"value":["1","1"]}',
    '{"key":["x","product"],"value":["1","1"]}',
    '{"key":["x","late"],"value":["1","1"]}',
    '{"key":["x","number"],"value":["1","1"]}',
    '{"key":["x","array"],"value":["1","1"]}',
    '{"key":["x","y"],"value":["1"]}',
    '{"key":["y"],"value":["1"]}',
    '{"key":null,"value":null}',
    "",
    "{}",
    "{",
    "[]",
    "7",
    '{"key":"x"}',
    '{"key":["x"],"value":[1]}',
    '{"logid":"ab"}',
    '{"logid":1.5}',
    '{"tensors":[{"name":"x","elem_type":0,"shape":[1,2],"int64_data":[1,2]}]}',
    '{"tensors":[{"name":"x","elem_type":0,"shape":[1,1],"int64_data":["9007199254740993"]}]}',
    '{"tensors":[{"name":"x","elem_type":1,"shape":[1,2],"float_data":[1,2]}]}',
    '{"tensors":[{"name":"x","elem_type":1,"shape":[1,2],"float_data":["NaN",2]}]}',
    '{"tensors":[{"name":"x","elem_type":2,"shape":[1,2],"int_data":[1,-2]}]}',
    '{"tensors":[{"name":"x","elem_type":3,"shape":[1,2],"float64_data":[1.5,2]}]}',
    '{"tensors":[{"name":"x","elem_type":4,"shape":[1,2],"int_data":[1,-2]}]}',
    '{"tensors":[{"name":"x","elem_type":5,"shape":[1,2],"float_data":[1.5,2]}]}',
    '{"tensors":[{"name":"x","elem_type":7,"shape":[1,2],"uint32_data":[1,255]}]}',
    '{"tensors":[{"name":"x","elem_type":8,"shape":[1,2],"int_data":[1,-2]}]}',
    '{"tensors":[{"name":"x","elem_type":9,"shape":[1,2],"bool_data":[true,false]}]}',
    '{"tensors":[{"name":"x","elem_type":10,"shape":[1,1],"complex64_data":[1,2]}]}',
    '{"tensors":[{"name":"x","elem_type":11,"shape":[1,1],"complex128_data":[1,2]}]}',
    '{"tensors":[{"name":"x","elem_type":12,"shape":[1],"str_data":["a","b"]}]}',
    '{"tensors":[{"name":"x","elem_type":99,"shape":[1],"float_data":[1]}]}',
    '{"tensors":[{"name":"x","elem_type":1,"shape":[1,3],"float_data":[1,2]}]}',
    '{"tensors":[{"name":"x","elemType":1,"shape":[2],"floatData":[1,2]}]}',
    '{"tensors":[{"name":"x","elem_type":1,"shape":[4],"float_data":[1,2,3,4],"lod":[0,1,0,4]}]}',
    '{"tensors":[{"name":"x","elem_type":1,"shape":[2],"float_data":[1,2],"lod":[0,1,2]}]}',
    '{"tensors":[{"name":"x","elem_type":1,"shape":[1],"float_data":["wide"]}]}',
    '{"tensors":[{"name":"x","elem_type":0,"shape":[1],"int64_data":[1.5]}]}',
    '{"tensors":[1]}',
]


@pytest.mark.parametrize("body", BODIES)
def test_the_same_answer(genuine, body):
    theirs = urllib3.request(
        "POST", f"http://127.0.0.1:{genuine[0]}/uci/prediction", body=body.encode(), retries=False, timeout=10
    )
    ops, name = load_ops(f"{SERVICE}:service")
    call = HttpCall("POST", "/uci/prediction", {}, body.encode())
    ours = run(pipeline_http(TinyEngine(), call, service=name, ops=ops))
    assert ours.status == theirs.status
    expected, got = theirs.json(), json.loads(ours.body)
    for message in (expected, got):
        if message.get("err_no") or "error" in message:  # whose words are each side's own
            for key in ("err_msg", "error", "message"):
                message.pop(key, None)
    assert got == expected


@pytest.mark.parametrize(("method", "path"), [("POST", "/uci"), ("POST", "/uci/a/b"), ("GET", "/uci/prediction")])
def test_the_same_refusal(genuine, method, path):
    theirs = urllib3.request(method, f"http://127.0.0.1:{genuine[0]}{path}", retries=False, timeout=10)
    ours = run(pipeline_http(TinyEngine(), HttpCall(method, path, {}, b"{}"), service="uci"))
    assert (ours.status, ours.body) == (theirs.status, theirs.data)


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_our_client_speaks_to_it(genuine, scheme):
    port = genuine[0 if scheme == "http" else 1]
    with Client(f"pipeline+{scheme}://127.0.0.1:{port}/uci", timeout_s=10) as client:
        answer = client.predict({"x": np.array([[1.5, 2]], np.float32)}, log_id=5)
        assert str(answer["kind"]) == "ndarray"
        assert str(answer["y"]) == "[[1.5 2. ]]"
        assert answer["log"] == 5
        assert answer.pin == ""
        assert client.predict({"x": "text", "array": "1"})["y"].tolist() == np.float32([[2.46], [2.46]]).tolist()
        with pytest.raises(Rejected, match="no such user"):
            client.predict({"x": "text", "product": "1"})
        with pytest.raises(InputError):
            client.predict({"x": "text", "number": "1"})
    with Client(f"pipeline+{scheme}://127.0.0.1:{port}/other", timeout_s=10) as client, pytest.raises(NotFound):
        client.predict({"x": "1"})
