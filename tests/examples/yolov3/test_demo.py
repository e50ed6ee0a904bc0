"""`make edge-demo` tells its story to the end. It trains for minutes: only where CLOUDEDGE_TEST_EDGE_DEMO is set."""

import os
import subprocess
import sys

import pytest
from nodes import docker_image

from tests import ROOT

pytestmark = pytest.mark.parts

RUN = ROOT / "examples" / "yolov3" / "run.py"


@pytest.mark.skipif(not os.environ.get("CLOUDEDGE_TEST_EDGE_DEMO"), reason="CLOUDEDGE_TEST_EDGE_DEMO is not set")
def test_the_story_is_told_to_its_end(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(RUN)], cwd=tmp_path, env={**os.environ, "GLOG_minloglevel": "2"},
        capture_output=True, text=True, check=False, timeout=3000,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    out = tmp_path / "out" / "yolov3"
    assert (out / "detections.png").read_bytes().startswith(b"\x89PNG")
    report = (out / "report.html").read_text()
    for words in ("yolov3:1", "yolov3:2", "yolov3:3"):
        assert words in done.stdout
        assert words in report


SAID = {
    "an engine without the image": ("Error response from daemon: No such image: x", "cloudedge image build serving"),
    "no engine": ("Cannot connect to the Docker daemon at unix:///var/run/docker.sock", "no Docker engine answers"),
}


@pytest.mark.parametrize(("stderr", "hint"), SAID.values(), ids=SAID)
def test_without_an_image_it_says_how_to_get_one(tmp_path, monkeypatch, stderr, hint):
    program = tmp_path / "docker"
    program.write_text(f"#! /bin/sh\necho '{stderr}' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CLOUDEDGE_EDGE_IMAGE", raising=False)
    image, said = docker_image()
    assert not image
    assert hint in said
