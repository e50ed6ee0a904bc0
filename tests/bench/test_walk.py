"""The walk of a row is counted from real call stacks, and does not grow."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
import threading

import pytest

from tests import ROOT

sys.path.insert(0, str(ROOT / "bench"))

import walk  # found through the line above

MOST_FUNCTIONS, MOST_FILES = 93, 41
"""It only falls: who adds one takes another away."""


@pytest.mark.rules
def test_the_shortest_stack_through_all_functions_of_a_waypoint_counts():
    stacks = [("a.py:end",), ("a.py:other", "a.py:end"), ("a.py:Old.begin", "b.py:between", "a.py:end")]
    assert walk.find("(New|Old).begin > end", stacks) == stacks[2]
    assert walk.find("end", stacks) == stacks[0]
    assert walk.find("end > other", stacks) is None
    assert walk.find("en", stacks) is None


@pytest.mark.rules
def test_the_hook_writes_each_stack_of_the_package_once(tmp_path):
    package, folder = tmp_path / "package", tmp_path / "stacks"
    package.mkdir()
    folder.mkdir()
    source = "class Outer:\n def go(self):\n  return [inner() for _ in range(3)]\ndef inner():\n return len('x')\n"
    names: dict = {}
    exec(compile(source, str(package / "module.py"), "exec"), names)
    hook = runpy.run_path(str(ROOT / "bench/_walk_hook/sitecustomize.py"))

    thread = threading.Thread(target=names["Outer"]().go)
    before = threading.getprofile()
    recorder = hook["StackRecorder"](package, folder)
    threading.setprofile(recorder)
    try:
        thread.start()
        thread.join()
    finally:
        threading.setprofile(before)
        recorder.close()
    assert walk.read_stacks(folder) == [("module.py:Outer.go",), ("module.py:Outer.go", "module.py:inner")]


@pytest.mark.cluster
def test_the_walk_of_a_row_is_no_longer_than_it_was(tmp_path):
    pytest.importorskip("paddle", reason="paddlepaddle is not installed")
    command = [sys.executable, str(ROOT / "bench/walk.py"), "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    counted = json.loads(done.stdout)
    assert counted["functions"] <= MOST_FUNCTIONS
    assert counted["files"] <= MOST_FILES
