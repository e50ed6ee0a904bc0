"""Looking for requests before sleeping: when it is done and when not."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from cloudedge.cube import ServerConfig
from cloudedge.errors import ConfigError

pytestmark = pytest.mark.parts


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to compile the cases with")
def test_what_is_decided(tmp_path):
    program = tmp_path / "spin_cases"
    source = Path(__file__).with_name("spin_cases.cpp")
    subprocess.run(["g++", "-std=c++20", "-O1", "-Wall", "-Wextra", "-o", program, source], check=True)
    subprocess.run([program], check=True)


def test_a_time_below_nothing_is_refused():
    with pytest.raises(ConfigError, match="spin_us"):
        ServerConfig(spin_us=-1)
