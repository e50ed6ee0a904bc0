"""Our files in the hands of the real Paddle Serving 0.9: its Pipeline service, its launcher, its monitor."""

import contextlib
import functools
import http.server
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from cloudedge.bundle import Bundle, Signature, Variable
from cloudedge.serving import export, plan_export, publish_for_monitor
from tests import ROOT

DEADLINE_S = 90


def find_stock():
    for place in (os.environ.get("CLOUDEDGE_TEST_TOOLS"), ROOT / ".peers"):
        if place and (Path(place) / "stock/installed").exists():
            return (Path(place) / "stock/python").absolute()
    return None


STOCK = find_stock()
pytestmark = [
    pytest.mark.parts,
    pytest.mark.skipif(STOCK is None, reason="stock Paddle Serving 0.9 is not installed (make peers)"),
]


@contextlib.contextmanager
def running(command, folder, **environment):
    """Start a process in a session of its own, which Paddle Serving kills when it fails, and end that session."""
    with (folder / "output.log").open("w") as log:
        process = subprocess.Popen(
            list(map(str, command)),
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": "", "CUDA_VISIBLE_DEVICES": ""} | environment,
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)


def until(check, process, folder):
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        found = check()
        if found is not None:
            return found
        assert process.poll() is None, (folder / "output.log").read_text()[-2000:]
        time.sleep(0.1)
    raise AssertionError((folder / "output.log").read_text()[-2000:])


def free_port():
    """Return a port whose lower neighbour is free too."""
    for _ in range(50):
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            with contextlib.suppress(OSError):
                other.bind(("127.0.0.1", port - 1))
                return port
    raise AssertionError("no two ports are free")


@pytest.mark.parametrize("kind", [".pdmodel", ".json"])
def test_the_pipeline_service_answers_as_the_model_does(kind, tmp_path, hub):
    networks = pytest.importorskip("tests.bundle.splitting.networks", reason="needs paddlepaddle")
    if kind == ".json":
        prefix = networks.save(networks.SharedTable, tmp_path)
        signature = Signature(
            feed=(Variable(name="seen", dtype="int64"), Variable(name="clicked", dtype="int64")),
            fetch=(Variable(name="fetch_name_0", alias="score", shape=(2,)),),
        )
        feed = {"seen": np.array([3, 7]), "clicked": np.array([1, 49])}
    else:
        prefix = networks.save_old("plain", tmp_path)
        signature = Signature(
            feed=(
                Variable(name="user", dtype="int64", shape=(1,)),
                Variable(name="hist", dtype="int32", shape=(-1,)),
                Variable(name="tags", dtype="int64", shape=(2,)),
                Variable(name="dense", alias="numbers", shape=(4,)),
            ),
            fetch=(
                Variable(name="softmax_0.tmp_0", alias="score", shape=(3,)),
                Variable(name="mean_0.tmp_0", shape=(8,)),
            ),
        )
        feed = {
            "user": np.array([[3], [5]]),
            "hist": np.array([[1, 2, 0], [4, 0, 0]], np.int32),
            "tags": np.array([[1, 2], [3, 4]]),
            "dense": np.full((2, 4), 0.5, np.float32),
        }
    bundle = Bundle.pack(prefix.parent, name="ctr", signature=signature, hub=hub)
    port = free_port()
    root = export(bundle, plan_export(bundle, "paddle-serving-0.9-pipeline", http_port=port), tmp_path / "out")
    aliases = {v.name: v.alias or v.name for v in signature.feed}
    body = {"key": [aliases[name] for name in feed], "value": [json.dumps(array.tolist()) for array in feed.values()]}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/ctr/prediction", json.dumps(body).encode())

    def ask():
        with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)
        return None

    with running([STOCK, "web_service.py"], root) as process:
        answer = until(ask, process, root)
    assert answer["err_no"] == 0, answer
    found = dict(zip(answer["key"], map(json.loads, answer["value"]), strict=True))
    expected = networks.predict(prefix, feed)
    assert np.abs(np.array(found["score"]) - expected[0]).max() < 1e-5
    if kind == ".pdmodel":
        assert np.abs(np.array(found["mean_0.tmp_0"]) - expected[1]).max() < 1e-5


PLAIN = Signature(feed=(Variable(name="x", shape=(4,)),), fetch=(Variable(name="out", alias="score", shape=(1,)),))


@pytest.fixture
def packed(tmp_path, hub):
    def pack(content):
        folder = tmp_path / f"source-{content}"
        folder.mkdir()
        (folder / "model.pdmodel").write_text(f"program {content}")
        (folder / "model.pdiparams").write_text(f"parameters {content}")
        return Bundle.pack(folder, name="ctr", signature=PLAIN, framework_version="2.6.2", hub=hub)

    return pack


def test_the_launcher_reads_our_model_directory_and_writes_the_same_work_directory(packed, tmp_path):
    bundle = packed("one")
    port = free_port()
    root = export(bundle, plan_export(bundle, port=port), tmp_path / "out")
    command = [
        STOCK,
        "-m",
        "paddle_serving_server.serve",
        "--model",
        "serving_server",
        "--port",
        port,
        "--workdir",
        "work",
    ]
    # In place of the C++ server stands a program that prints its arguments.
    with running(command, root, SERVING_BIN=shutil.which("echo")) as process:
        process.wait(DEADLINE_S)
    theirs = root / f"work_{port}"
    log = (root / "output.log").read_text()
    assert theirs.is_dir(), log[-2000:]
    written = sorted(path.relative_to(theirs) for path in theirs.rglob("*.prototxt"))
    assert len(written) == 5
    for path in written:
        text = (theirs / path).read_text().replace(theirs.name, "workdir")
        assert text == (root / "workdir" / path).read_text(), path
    flags = {flag.split("=")[0] for flag in (root / "proj.conf").read_text().replace("--", "").split()}
    assert {word.strip("-").split("=")[0] for word in log.splitlines()[-1].split() if word.startswith("-")} == flags


MONITOR = """
import os, runpy, subprocess, sys
# Its commands need bash, and /bin/sh is often another shell.
os.system = lambda command: subprocess.call(["bash", "-c", command])
runpy.run_module("paddle_serving_server.monitor", run_name="__main__")
"""


@pytest.mark.skipif(shutil.which("wget") is None, reason="upstream's monitor needs wget")
def test_the_monitor_fetches_what_is_published(packed, tmp_path):
    one, two = packed("one"), packed("two")
    root = export(one, plan_export(one), tmp_path / "out")
    live, www = root / "serving_server", tmp_path / "www"
    publish_for_monitor(one, plan_export(one), www)
    handler = functools.partial(Quiet, directory=str(www))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = [
            STOCK, "-c", MONITOR, "--general_host", f"http://127.0.0.1:{server.server_port}", "--remote_path", ".",
            "--remote_model_name", "model.tar", "--unpacked_filename", "model", "--remote_donefile_name", "donefile",
            "--local_path", root, "--local_model_name", "serving_server", "--interval", "1",
        ]  # fmt: skip
        os.utime(live / "fluid_time_file", (0, 0))
        with running(command, root) as process:
            for bundle, text in ((one, "program one"), (two, "program two")):
                publish_for_monitor(bundle, plan_export(bundle), www)

                def is_live(text=text):
                    stamped = (live / "fluid_time_file").stat().st_mtime > 0
                    return True if stamped and (live / "model.pdmodel").read_text() == text else None

                until(is_live, process, root)
                os.utime(live / "fluid_time_file", (0, 0))
        server.shutdown()
    assert (live / "model.pdiparams").read_text() == "parameters two"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass
