"""`cloudedge serve` as a process: started, killed, started again, stopped."""

import json
import signal
import subprocess
import sys
import threading
import time

import pytest

from cloudedge.serving import AdminClient
from tests.serving.process import Process
from tests.serving.raw_http import Http

pytestmark = pytest.mark.parts

X = [[1.0, 2.0]]


@pytest.fixture
def common(models):
    return ["--hub", models.folder / "hub", "--port", 0, "--admin-port", 0]


def test_kill_and_restart_comes_back_with_its_versions(models, common, tmp_path):
    zero, one = models.marked[:2]
    state = tmp_path / "state.json"
    with Process(models.ref(zero), models.ref(one), *common, "--state", state) as process:
        assert process.ports["active"] == zero.pin
        with AdminClient(process.ports["admin"]) as admin:
            admin.activate(one.pin)
        with Http(process.ports["port"]) as http:
            assert http.predict(X).json()["pin"] == one.pin
        process.stop(signal.SIGKILL)
    with Process(*common, "--state", state) as process:
        assert process.ports["active"] == one.pin
        assert set(process.ports["versions"]) == {zero.pin, one.pin}
        with Http(process.ports["port"]) as http:
            assert http.predict(X).json() == {"outputs": {"y": [[2, 3]]}, "pin": one.pin}
            assert http.ask("GET", "/readyz").status == 200
        assert process.stop() == 0


def test_sigterm_drains(models, common):
    with Process(models.ref(models.marked[0]), *common, "--service", "pair") as process:
        with Http(process.ports["port"]) as http, Http(process.ports["port"]) as late:
            http.send(b"POST /v1/predict HTTP/1.1\r\nContent-Length: 25\r\n\r\n")
            late.predict(X)
            stopping = threading.Thread(target=process.stop)
            stopping.start()
            time.sleep(0.3)
            http.send(b'{"inputs":{"x":[[5,6]]}} ')
            assert http.reply().json()["outputs"]["y"] == [[5, 6]]
            stopping.join()
        assert process.process.returncode == 0


def test_grpc_on_its_port(models, common):
    grpc = pytest.importorskip("grpc")
    from cloudedge.serving.formats._messages import PIPELINE_SERVICE, PipelineRequest, PipelineResponse  # noqa: PLC0415

    with Process(models.ref(models.marked[0]), *common, "--grpc-port", 0) as process:
        with grpc.insecure_channel(f"127.0.0.1:{process.ports['grpc_port']}") as channel:
            call = channel.unary_unary(
                f"/{PIPELINE_SERVICE}/inference",
                request_serializer=PipelineRequest.SerializeToString,
                response_deserializer=PipelineResponse.FromString,
            )
            answer = call(PipelineRequest(key=["x"], value=[json.dumps(X)], name=process.ports["service"]), timeout=20)
        assert (answer.err_no, json.loads(answer.value[0])) == (0, X)
        assert process.stop() == 0


@pytest.mark.parametrize(
    ("options", "said"), [([], "nobody"), (["--host", "0.0.0.0"], "without a token")], ids=["no bundle", "no token"]
)
def test_what_cannot_be_served_ends_it(models, common, options, said):
    done = subprocess.run(
        [sys.executable, "-m", "cloudedge", "serve", "nobody:1", *map(str, common), *options],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert said in done.stderr


def test_the_admin_token_comes_from_the_environment(models, common):
    with Process(models.ref(models.marked[0]), *common, CLOUDEDGE_SERVING_TOKEN="s3cret") as process:
        with AdminClient(process.ports["admin"], token="s3cret") as admin:
            assert admin.versions()["active"] == models.marked[0].pin
        assert process.stop() == 0
        assert "s3cret" not in process.errors


def test_limits_are_options(models, common):
    limits = ["--max-batch-rows", 1, "--max-rows", 2, "--max-connections", 1, "--max-held-mb", 1, "--max-body-mb", 2]
    limits += ["--max-queue-rows", 3, "--max-queue-mb", 4, "--max-wait-ms", 5, "--max-calls", 6]
    with Process(models.ref(models.marked[0]), *common, *limits) as process, Http(process.ports["port"]) as http:
        tuning = http.ask("GET", "/stats").json()["versions"][models.marked[0].pin]["tuning"]
        assert (tuning["max_batch_rows"], tuning["is_batched"]) == (1, True)
        assert http.predict(X * 2).status == 200
        assert "'x' has 3 rows" in http.predict(X * 3).json()["error"]
        with Http(process.ports["port"]) as other:
            assert other.reply().status == 503
        http.send(b"POST /v1/predict HTTP/1.1\r\nContent-Length: 1500000\r\n\r\n" + bytes(1_500_000))
        assert http.reply().status == 503
