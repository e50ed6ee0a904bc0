from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from cloudedge import _core
from cloudedge.cube import PartStore
from tests import ROOT
from tests.cube.reference import RECORDS, part_files, write_part


@pytest.fixture
def versions(tmp_path: Path) -> _core.Versions:
    part = write_part(tmp_path / "p", part_files(RECORDS))
    held = _core.Versions()
    for name in ("1", "2"):
        assert held.add(PartStore.open(part, name=name).native)
    return held


@pytest.mark.rules
def test_versions_are_added_activated_and_removed(versions):
    assert versions.active() is None
    assert [v.name for v in versions.all()] == ["1", "2"]
    assert versions.activate("1")
    assert versions.active().name == "1"
    assert not versions.remove("1"), "the active version stays"
    assert versions.activate("2")
    assert versions.remove("1")
    assert versions.find("1") is None
    assert versions.find("2").name == "2"
    assert not versions.remove("1")


@pytest.mark.rules
def test_a_name_is_taken_once_and_unknown_names_change_nothing(versions):
    assert not versions.add(versions.find("1"))
    assert not versions.activate("3")
    assert versions.active() is None
    assert versions.find("3") is None


@pytest.mark.rules
def test_a_removed_version_lives_as_long_as_its_reader(versions):
    versions.activate("1")
    reader = versions.active()
    versions.activate("2")
    assert versions.remove("1")
    assert reader.rows == 3


@pytest.mark.parts
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to compile the stress test with")
def test_switching_under_load_is_free_of_races_and_frees_every_version(tmp_path):
    program = tmp_path / "stress"
    sources = [ROOT / "tests/cube/server/versions_stress.cpp", ROOT / "native/cube/versions.cpp"]
    build = ["g++", "-std=c++20", "-O1", "-g", "-fsanitize=thread", "-pthread", "-o", program, *sources]
    subprocess.run(build, check=True, timeout=240)
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
