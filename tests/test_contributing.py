"""CONTRIBUTING.md shows tasks of newcomers done: a patch touches one file, applies, and does what is shown below it."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from cloudedge import _core
from tests import ROOT

pytestmark = pytest.mark.parts

PAGE = (ROOT / "CONTRIBUTING.md").read_text()
TASKS = {
    title: (
        re.findall(r"```diff\n(.*?)```", section, re.DOTALL),
        re.findall(r"```python\n(.*?)```", section, re.DOTALL),
    )
    for title, section in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    if "```python" in section
}


def test_the_five_tasks_are_shown():
    assert list(TASKS) == [
        "Add a refusal rule to plans",
        "Add a field to an admin answer",
        "Add an endpoint to serving",
        "Add a hub backend",
        "Add a target kind",
    ]


@pytest.mark.parametrize("title", TASKS)
def test_a_newcomers_task_takes_one_file(title, tmp_path):
    patches, (code,) = TASKS[title]
    shutil.copytree(ROOT / "cloudedge", tmp_path / "cloudedge", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    shutil.copy(_core.__file__, tmp_path / "cloudedge")
    for patch in patches:
        assert patch.count("+++ ") == 1
        subprocess.run(["git", "apply", "--verbose", "-"], input=patch, cwd=tmp_path, text=True, check=True)
    (tmp_path / "task.py").write_text(code)
    # Without site: the checkout's own package must not be found first.
    paths = os.pathsep.join([str(tmp_path), *(path for path in sys.path if path and path != str(ROOT))])
    command = [sys.executable, "-S", "-c", "import cloudedge, task; print(cloudedge.__file__)"]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / "cloudedge/__init__.py")
