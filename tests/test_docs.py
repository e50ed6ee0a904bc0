"""The documentation is run: examples, commands, configuration and links."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cloudedge.config import Config
from tests import ROOT

PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
ENVIRONMENT = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), flags=re.DOTALL)


@pytest.mark.parts
def test_the_demo_runs():
    done = subprocess.run(
        [sys.executable, ROOT / "examples/first_bundle/run.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "ctr:2 again: sent 0 bytes" in done.stdout


CONSOLES = [(page, text) for page in PAGES for text in blocks(page, "console")]


@pytest.mark.parts
@pytest.mark.parametrize(("page", "text"), CONSOLES, ids=[page.relative_to(ROOT).as_posix() for page, _ in CONSOLES])
def test_console_blocks_run(page, text, tmp_path):
    script = re.sub(r"^\$ ", "", text, flags=re.MULTILINE)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=tmp_path,
        env=ENVIRONMENT | {"CLOUDEDGE_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.rules
def test_the_documented_configuration_is_understood():
    (text,) = blocks(ROOT / "docs/configuration.md", "yaml")
    config = Config.model_validate(yaml.safe_load(text))
    assert set(config.hubs) == {"office", "prod", "bucket"}


@pytest.mark.rules
def test_every_setting_is_documented():
    page = (ROOT / "docs/configuration.md").read_text()
    for section in (Config, *(type(getattr(Config(), name)) for name in ("limits",))):
        for name in section.model_fields:
            assert f"`{name}`" in page or f"## {name}" in page, name


@pytest.mark.rules
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target
