"""Seeded kills of pack, push, pull, tag and gc."""

import json
import os
import subprocess
import sys

import pytest

from tests import ROOT

pytestmark = pytest.mark.parts

SEEDS, CHUNK = int(os.environ.get("CLOUDEDGE_CRASH_SEEDS", "300")), 100


def run(first, seeds, folder, *operations):
    # A process of its own: it forks, and this one has threads.
    program = [sys.executable, "-m", "tests.bundle.crash.crash", str(first), str(seeds), str(folder)]
    done = subprocess.run([*program, *operations], capture_output=True, text=True, check=False, timeout=280, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout), done.stderr[-4000:]


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_kill_anywhere_then_repeat(first, tmp_path):
    result, log = run(first, CHUNK, tmp_path)
    assert result["failures"] == [], log
    assert result["kills"] >= CHUNK * 0.8  # an operation that continues has fewer lines left to die at


def test_the_harness_catches_a_careless_push(tmp_path):
    result, _ = run(0, 20, tmp_path, "careless_push")
    assert any("is not whole" in failure for failure in result["failures"])
