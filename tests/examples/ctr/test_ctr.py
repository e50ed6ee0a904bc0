"""The click model: its steps by hand are run as they are written, and its load counts everything that goes wrong."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cloudedge.errors import Unavailable
from tests import ROOT

pytestmark = pytest.mark.parts

EXAMPLE = ROOT / "examples" / "ctr"
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def bash(folder, script, **environment):
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=os.environ | {"PATH": PATH, "GLOG_minloglevel": "2"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.timeout(900)
def test_the_steps_by_hand(tmp_path):
    shutil.copytree(EXAMPLE, tmp_path / "examples" / "ctr", ignore=shutil.ignore_patterns("__pycache__"))
    (script,) = re.findall(r"```sh\n(.*?)```", (EXAMPLE / "README.md").read_text(), flags=re.DOTALL)
    script = script.replace("--bake 10s", "--bake 2s")
    try:
        done = bash(tmp_path, script)
    finally:
        exports = next(line for line in script.splitlines() if line.startswith("export "))
        ended = bash(tmp_path, f"{exports}\ncloudedge down local")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ended 0 processes" in ended.stderr
    trained = re.findall(r"the first three of the test score \[(.*)\]", done.stdout)
    answered = [line.split("\t")[3] for line in done.stdout.splitlines() if line.startswith("fetch_name_0\t")]
    wanted = [np.array(trained[version].split(), float) for version in (0, 1, 1, 1)]
    assert len(answered) == len(wanted), done.stdout
    for line, scores in zip(answered, wanted, strict=True):
        np.testing.assert_allclose(np.array(line.split(), float), scores, atol=1e-5)
    assert "as it should be" in done.stdout
    history = [
        line.split("\t") for line in done.stdout.splitlines() if re.match(r"\d+\t(release|rollback)\tctr:", line)
    ]
    assert [(line[1], line[2], line[4]) for line in history] == [
        ("rollback", "ctr:1", "done"),
        ("release", "ctr:3", "undone"),
        ("release", "ctr:2", "done"),
        ("release", "ctr:1", "done"),
    ]


@pytest.mark.timeout(900)
def test_the_story(tmp_path):
    """The demo, whole; its figures are there as data under the names that others read, and the page has them."""
    shutil.copytree(EXAMPLE, tmp_path / "examples" / "ctr", ignore=shutil.ignore_patterns("__pycache__"))
    done = bash(tmp_path, "python examples/ctr/run.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d+ s in all \(under 300 s is promised: (not )?kept\)", done.stdout)
    report = json.loads((tmp_path / "out/ctr/report.json").read_text())
    assert (report["failed_requests"], report["mixed_answers"]) == (0, 0)
    assert report["requests"] > 100
    assert report["max_abs_difference"] < 1e-5
    for version in ("ctr:1", "ctr:2"):
        assert report["auc"][version]["served"] == pytest.approx(report["auc"][version]["trained"], abs=1e-4)
    assert report["auc"]["ctr:3"]["served"] is None  # it never answered
    releases = report["releases"]
    assert {number: each["outcome"] for number, each in releases.items()} == {"1": "done", "2": "done", "3": "undone"}
    page = (tmp_path / "out/ctr/report.html").read_text()
    for number, each in releases.items():
        assert each["seconds"] > 0
        assert 0 <= each["bytes_shipped"] < 1.01 * each["bytes_full"]  # which leaves out the files' heads
        for when in ("before", "during", "after"):
            value = each[f"p99_ms_{when}"]
            assert value > 0 if number != "1" or when == "after" else value is None
        assert each["note"] in page
        assert bool(each["note"]) == (number == "1")
    assert 0 < releases["2"]["bytes_shipped"] < releases["2"]["bytes_full"] / 2
    assert [told["what"] for told in report["story"]] == [
        *("release ctr:1", "release ctr:2", "kill a replica of a shard", "kill a serving replica"),
        *("release ctr:3", "roll back to ctr:1"),
    ]
    for told in report["story"]:
        assert told["from"] < told["to"]
        assert all(told[word] in page for word in ("what", "command", "became"))
    assert "it was still loaded, 0 bytes moved" in page
    assert "taken back by itself as dense.check failed; 0 requests reached it" in page
    assert all(" requests meanwhile, 0 failed" in told["became"] for told in report["story"][2:4])


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import load  # noqa: PLC0415 - of the example

    yield load
    for name in ("load", "clicks"):
        sys.modules.pop(name)


class Broken:
    """A client that is refused at first, and then finds a bug."""

    def __init__(self):
        self.errors = iter([Unavailable("nobody is there"), ValueError("not a shape")])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def predict(self, feed):
        raise next(self.errors, KeyError("pin"))


def test_whatever_goes_wrong_is_a_failed_request(load):
    from clicks import draw  # noqa: PLC0415 - of the example

    asked = load.Load(Broken, draw(5, seed=1), clients=1).start()
    while len(asked.answered) < 5:
        pass
    asked.stop()
    assert not any(one.pin for one in asked.answered)
    assert [one.why for one in asked.answered[:3]] == ["nobody is there", "ValueError: not a shape", "KeyError: 'pin'"]
