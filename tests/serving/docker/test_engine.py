"""Services in real containers, replaced under load. Takes minutes and gigabytes: set CLOUDEDGE_TEST_DOCKER=1.

Images are built by the first run, without a network, from Debian packages and wheels (`tests.images.built_images`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import requests

from cloudedge.hub import LocalHub
from cloudedge.serving import Client
from tests import ROOT
from tests.images.built_images import alone, base, engine, needs_docker, wheelhouse
from tests.serving.stock.servers import free_ports, make_models, pack, request_body

URLS = {
    "own": ["grpc://127.0.0.1:{port}", "pipeline+grpc://127.0.0.1:{port}/{name}", "brpc://127.0.0.1:{port}"],
    "stock": ["pipeline+grpc://127.0.0.1:{port}/{name}"],
}
pytestmark = [pytest.mark.parts, needs_docker, pytest.mark.timeout(1800)]


def sh(*command, **where):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **where)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def cloudedge(*arguments):
    return sh(sys.executable, "-m", "cloudedge", "serving", *arguments, env=os.environ | {"PYTHONPATH": str(ROOT)})


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docker")
    for path in (folder, *list(folder.parents)[:2]):
        path.chmod(0o755)  # the containers' user is nobody here
    return make_models(folder / "models")


def options(kind):
    """Say how to run a service from an image of its own, which the first run has to build."""
    with alone():
        made_of = ["--base", base(kind), "--wheelhouse", wheelhouse(kind)]
    return ["--docker", "--image", f"cloudedge-test/run-{kind}:{os.getpid()}", *made_of]


@pytest.fixture
def own(models):
    hub = models / "hub"
    for version in (1, 2):
        pack(models, "tiny", LocalHub(hub), split=False, version=version)
    return [[f"tiny:{version}", "--local", hub, *options("serving")] for version in (1, 2)]


@pytest.fixture
def stock(models):
    shutil.copytree(models / "tiny", models / "tiny-2", dirs_exist_ok=True)
    return [[models / folder, "--stock", *options("paddle-serving")] for folder in ("tiny", "tiny-2")]


@pytest.fixture(autouse=True)
def _images_go():
    client = engine()
    yield
    for kind in ("serving", "paddle-serving"):
        for image in client.images.list(f"cloudedge-test/run-{kind}"):
            for name in image.tags:
                if name.endswith(f":{os.getpid()}") and "/run-" in name:
                    client.images.remove(name)


@pytest.mark.parametrize("kind", ["own", "stock"])
def test_a_service_is_replaced_under_load(kind, models, request):
    first, second = request.getfixturevalue(kind)
    (port,) = free_ports(1)
    name = f"test-{kind}-{os.getpid()}"
    where = ["--name", name, "--port", port]
    known = json.loads((models / "tiny.rows.json").read_text())
    stop, failed, done = threading.Event(), [], []

    def client(number):
        row, expect = known["rows"][number], known["expect"][number][0]
        with requests.Session() as session:  # its connection stays open
            while not stop.is_set():
                try:
                    answer = session.post(f"http://127.0.0.1:{port}/{name}/prediction", request_body(row), timeout=60)
                    (value,) = answer.json()["value"]
                    assert json.loads(value) == [pytest.approx(expect, abs=1e-5)]
                    done.append(time.monotonic())
                except Exception as error:  # noqa: BLE001 - every failure counts
                    failed.append(error)

    try:
        cloudedge("run", *first, *where)
        (model,) = containers(name, "model")
        assert "(healthy)" in sh("docker", "ps", "--filter", f"name={model}")
        assert sh("docker", "exec", model, "id", "-u").strip() == "10001"
        assert sh("docker", "inspect", "--format", "{{range .Mounts}}{{.RW}}{{end}}", model).strip() == "false"
        bound = sh("docker", "port", containers(name, "front")[0]).split()
        assert bound[-1] == f"127.0.0.1:{port}"
        cloudedge("run", *first, *where)
        assert containers(name, "model") == [model], "running it again starts nothing"
        threads = [threading.Thread(target=client, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        cloudedge("run", *second, *where)
        switched = time.monotonic()
        stop.set()
        for thread in threads:
            thread.join(60)
        assert not failed, failed[:3]
        assert len(done) > 20
        assert max(done) > switched - 2
        (replaced,) = containers(name, "model")
        assert replaced != model
        assert name in cloudedge("ps")
        assert isinstance(cloudedge("logs", name), str)
        check_protocols([url.format(port=port, name=name) for url in URLS[kind]], known)
        check_refusal(kind, models, [*second[1:], *where])
        answer = requests.post(f"http://127.0.0.1:{port}/{name}/x", request_body(known["rows"][0]), timeout=60)
        assert answer.json()["err_no"] == 0
    finally:
        stop.set()
        subprocess.run([sys.executable, "-m", "cloudedge", "serving", "stop", name], check=False)
    assert containers(name, "model") == containers(name, "front") == []


def check_protocols(urls, known):
    """Ask through the front and its one port, as over HTTP."""
    row = {name: np.asarray(value, "float32") for name, value in known["rows"][0].items()}
    for url in urls:
        with Client(url, timeout_s=60) as client:
            (value,) = client.predict(row).outputs.values()
        assert value.reshape(-1) == pytest.approx(np.reshape(known["expect"][0], -1), abs=1e-5), url


def check_refusal(kind, models, options):
    """Try to run a model that cannot be loaded; what ran has to go on running."""
    name = options[options.index("--name") + 1]
    before = containers(name, "model")
    if kind == "stock":
        broken = models / "broken"
        shutil.copytree(models / "tiny", broken, dirs_exist_ok=True)
        (broken / "model.pdiparams").write_bytes(b"no parameters")
    else:
        shutil.copytree(models / "tiny", models / "broken-own", dirs_exist_ok=True)
        (models / "broken-own/model.pdiparams").write_bytes(b"no parameters")
        pack(models, "tiny", LocalHub(models / "hub"), split=False, version=3, folder="broken-own")
        broken = "tiny:3"
    done = subprocess.run(
        [sys.executable, "-m", "cloudedge", "serving", "run", *map(str, (broken, *options, "--timeout-s", 20))],
        capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 1
    assert "does not get ready" in done.stderr
    assert containers(name, "model") == before


def containers(name, role):
    filters = [
        "--filter",
        f"label=cloudedge.serving.service={name}",
        "--filter",
        f"label=cloudedge.serving.role={role}",
    ]
    return sh("docker", "ps", "--all", "--format", "{{.Names}}", *filters).split()
