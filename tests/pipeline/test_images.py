"""What steps have pods run, really run: by a shell on this machine; with CLOUDEDGE_TEST_DOCKER=1 in our images."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import requests

from cloudedge.pipeline import ModelHubInputs, ModelRecord, ServingInputs, TrainingInputs, VisualDLInputs, objects_of
from cloudedge.pipeline._convert import convert, pack
from cloudedge.pipeline._local import _probe
from tests.hub.objects.s3_servers import ACCESS_KEY, SECRET_KEY, seaweedfs
from tests.hub.registry.servers import free_port
from tests.images.built_images import ROOT, built, engine, needs_docker
from tests.serving.models import save_marked

pytestmark = pytest.mark.parts

CTR = ROOT / "examples" / "ctr"
TOOLS = ("bash", "gzip", "mktemp", "rm", "sha256sum", "tar")
"""What every Debian has; wget is not among it."""


@contextmanager
def kept(folder: Path):
    """Keep a model as the hub does, where it is fetched over HTTP; yields where, and what is known of it."""
    save_marked(folder / "inference", 4.0)
    convert(folder / "inference", folder / "m")
    place = folder / "store" / "model-center" / "m" / "1"
    place.mkdir(parents=True)
    pack(folder / "m", place / "m.tar.gz")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(folder / "store")))
    threading.Thread(target=server.serve_forever).start()
    packed = (place / "m.tar.gz").read_bytes()
    try:
        yield f"http://127.0.0.1:{server.server_port}", ModelRecord(hashlib.sha256(packed).hexdigest(), len(packed))
    finally:
        server.shutdown()
        server.server_close()


def serving_command(endpoint: str, record: ModelRecord, port: int, model: str = "m") -> str:
    inputs = ServingInputs(
        name="m", image="i:1", model_name=model, model_version="1", endpoint=endpoint, port=port, server="cloudedge"
    )
    return objects_of(inputs, record=record)[0]["spec"]["default"]["arg"]


def answers(url: str, is_alive) -> None:
    end = time.monotonic() + 300
    while True:
        with suppress(requests.RequestException):
            if requests.get(url, timeout=5).ok:
                return
        assert is_alive()
        assert time.monotonic() < end
        time.sleep(0.2)


def is_right(port: int) -> bool:
    asked = {"inputs": {"x": [[1.0, 2.0]]}}
    answer = requests.post(f"http://127.0.0.1:{port}/v1/predict", json=asked, timeout=60)
    return list(answer.json()["outputs"].values()) == [[[5.0, 6.0]]]


def test_a_server_fetches_its_model_with_what_every_image_has(tmp_path):
    pytest.importorskip("paddle")
    (tmp_path / "bin").mkdir()
    (tmp_path / "pod").mkdir()
    for tool in TOOLS:
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))
    # Whoever the pod's user is, /proc is not where a hub can be made.
    env = {"PATH": f"{Path(sys.executable).parent}:{tmp_path / 'bin'}", "TMPDIR": str(tmp_path / "pod")}
    env |= {"CLOUDEDGE_HOME": "/proc/models", "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", "")}
    port = free_port()
    with kept(tmp_path) as (endpoint, record):
        words = ["bash", "-c", serving_command(endpoint, record, port)]
        process = subprocess.Popen(words, env=env, cwd="/proc")
        try:
            answers(f"http://127.0.0.1:{port}/readyz", lambda: process.poll() is None)
            assert is_right(port)
        finally:
            process.terminate()
            process.wait()
        other = serving_command(endpoint, ModelRecord("0" * 64, 1), port)
        refused = subprocess.run(
            ["bash", "-c", other], env=env, cwd="/proc", capture_output=True, text=True, check=False
        )
        assert refused.returncode != 0
        assert "checksum did NOT match" in refused.stderr


def run(image: str, command: list[str], **more) -> str:
    return engine().containers.run(image, command[1:], entrypoint=command[:1], remove=True, **more).decode()


@contextmanager
def running(image: str, command: list[str], **more):
    container = engine().containers.run(
        image, command[1:], entrypoint=command[:1], detach=True, network_mode="host", **more
    )
    try:
        yield container
    finally:
        said = container.logs().decode()
        container.remove(force=True)
        sys.stdout.write(said)


def lives(container) -> bool:
    container.reload()
    return container.status in {"created", "running"}


def words_of(inputs, number: int = 0) -> list[str]:
    """Return what a step has a pod run."""
    found = objects_of(inputs)[number]
    roles = found["spec"].get("worker") or found["spec"]
    return roles["template"]["spec"]["containers"][0]["command"]


@needs_docker
@pytest.mark.timeout(3600)
def test_the_click_model_goes_through_our_images(tmp_path):
    """Trained, exported and converted in the trainer; uploaded and shown by the launcher; served by the runtime."""
    claim, data = tmp_path / "claim", tmp_path / "data"
    tmp_path.parent.chmod(0o755)
    for folder in (tmp_path, claim, data, data / "clicks", tmp_path / "s3"):
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777)  # the pods' user is nobody here
    draw = [sys.executable, CTR / "task.py", "draw", "--output", data / "clicks", "--count", "1500"]
    subprocess.run(draw, check=True)
    trainer, launcher, server = built("trainer"), built("pipeline"), built("serving")
    options = ["--tag", "cloudedge-test/ctr-trainer:1", "--build-arg", f"BASE={trainer}"]
    subprocess.run(["docker", "build", "--quiet", *options, "--file", CTR / "trainer.Dockerfile", CTR], check=True)
    volumes = {str(claim): {"bind": "/mnt/task-center"}, str(data): {"bind": "/mnt/data-center"}}
    training = TrainingInputs(
        name="ctr", project="Script", image="i:1", config_path="examples/ctr/task.py", config_changes="epochs=1",
        dataset="clicks", pvc_name="claim", worker_replicas=1,
    )  # fmt: skip
    for number in range(3):
        run("cloudedge-test/ctr-trainer:1", words_of(training, number), volumes=volumes, network_mode="none")
    shown, answering = free_port(), free_port()
    with seaweedfs(tmp_path / "s3") as endpoint:
        upload = ModelHubInputs(name="ctr", model_name="ctr", model_version="1", pvc_name="claim", endpoint=endpoint)
        keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
        told = run(launcher, words_of(upload), volumes=volumes, network_mode="host", environment=keys)
        record = ModelRecord(**json.loads(told.splitlines()[-1]))
        command = ["/bin/bash", "-c", serving_command(endpoint, record, answering, "ctr")]
        with running(server, command) as container:
            answers(f"http://127.0.0.1:{answering}/readyz", lambda: lives(container))
            assert _probe(f"http://127.0.0.1:{answering}")
    logs = VisualDLInputs(name="v", pvc_name="claim", logdir="/mnt/task-center/models/vdl/", port=shown)
    with running(launcher, words_of(logs), volumes=volumes) as container:
        answers(f"http://127.0.0.1:{shown}/alive", lambda: lives(container))
        tags = requests.get(f"http://127.0.0.1:{shown}/app/api/scalar/tags", timeout=60).json()["data"]["tags"]
        assert "test/auc" in tags[0]


@needs_docker
@pytest.mark.timeout(1800)
def test_a_step_that_is_told_nonsense_says_so_in_its_image():
    container = engine().containers.create(built("pipeline"), ["dataset", "--name", "Not A Name"])
    try:
        container.start()
        assert container.wait()["StatusCode"] != 0
        assert "error: " in container.logs().decode()
    finally:
        container.remove(force=True)
