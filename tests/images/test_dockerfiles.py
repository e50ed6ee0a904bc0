"""Dockerfiles name what they build on and install nothing unnamed; wheels are compared with their hashes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from cloudedge.cli import app
from cloudedge.errors import InputError, NotFound
from cloudedge.images import KINDS, build, lock_wheels, plan_build
from tests import ROOT

FOLDER = ROOT / "dockerfiles"
FILES = sorted([*FOLDER.glob("*Dockerfile"), *(ROOT / "examples").rglob("*Dockerfile")])
DIGEST = "sha256:" + "0f" * 32


def instructions(text):
    """List a Dockerfile's instructions as (word, rest), continued lines joined."""
    lines = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    return [(line.split()[0], " ".join(line.split()[1:])) for line in lines if line.strip()]


def problems(text, folder=FOLDER):
    """List what in a Dockerfile can change although the file does not."""
    found, stages, args = [], set(), {}
    for word, rest in instructions(text):
        if word == "ARG":
            name, _, value = rest.partition("=")
            args[name] = value.strip('"')
        elif word == "FROM":
            image, _, stage = rest.partition(" AS ")
            image = re.sub(r"\$\{(\w+)\}", lambda match: args.get(match[1], ""), image)
            # An empty one has to be given. A tag names at least a version and the release of its distribution.
            is_named = re.search(r"@sha256:[0-9a-f]{64}$|:\d+\.\d+-[a-z-]+$", image)
            found += [] if not image or image in stages or is_named else [f"floating base: {image}"]
            stages.add(stage)
        elif word in ("RUN", "ADD"):
            for command in re.split(r"&&|;|\|\|", rest):
                if re.search(r"\bpip3?\b.* (install|wheel|download)\b", command) or "://" in command:
                    found.append(f"unconstrained: {command.strip()}")
                elif "install.sh" in command and "CONSTRAINTS=/" not in command:
                    found += _unpinned(command, folder)
    return found


def _unpinned(command, folder):
    files = re.findall(r"--requirement /tmp/(\S+)", command)
    lines = [line for name in files for path in folder.rglob(name) for line in path.read_text().splitlines()]
    wanted = [line for line in lines if line and not line.startswith("#")]
    return [] if wanted and all("==" in line for line in wanted) else [f"unconstrained: {command.strip()}"]


@pytest.mark.rules
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name if path.parent == FOLDER else "example")
def test_nothing_changes_under_a_dockerfile(path):
    assert problems(path.read_text()) == []


@pytest.mark.rules
@pytest.mark.parametrize(
    "text",
    [
        "FROM debian",
        "FROM debian:latest",
        "ARG BASE=python:3\nFROM ${BASE}",
        "FROM python:3.11-slim-bookworm\nRUN pip install cloudedge",
        "FROM python:3.11-slim-bookworm\nRUN true \\\n && /opt/x/bin/pip --quiet install -c c.txt cloudedge",
        "FROM python:3.11-slim-bookworm\nRUN sh /tmp/install.sh /opt/x cloudedge",
        "FROM python:3.11-slim-bookworm\nADD https://files.example/x.tar /",
    ],
)
def test_what_would_be_found(text):
    assert len(problems(text)) == 1


@pytest.mark.rules
def test_images_are_held_to_the_versions_that_are_tested():
    """A build context reaches no file outside of it: `make lock` copies the file."""
    text = (FOLDER / "constraints.txt").read_text()
    assert text == (ROOT / "constraints.txt").read_text()
    assert all("==" in line for line in text.splitlines())


def wheel(folder, name, version, *requires):
    info = f"{name}-{version}.dist-info"
    path = folder / f"{name}-{version}-py3-none-any.whl"
    needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{name}.py", "")
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return path


@pytest.fixture
def wheels(tmp_path):
    folder = tmp_path / "wheels"
    folder.mkdir()
    wheel(folder, "cloudedge", "1.0", "tool>=1")
    wheel(folder, "tool", "2.0")
    wheel(folder, "other_tool", "1.0")
    return folder


@pytest.mark.rules
def test_a_lock_names_every_wheel_once(wheels):
    lock = lock_wheels(wheels)
    lines = lock.read_text().splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["cloudedge==1.0", "other-tool==1.0", "tool==2.0"]
    assert all(re.fullmatch(r"\S+ --hash=sha256:[0-9a-f]{64}", line) for line in lines)
    wheel(wheels, "tool", "3.0")
    with pytest.raises(InputError, match=r"tool 2\.0, 3\.0"):
        lock_wheels(wheels)
    with pytest.raises(InputError, match="no wheels"):
        lock_wheels(wheels.parent)


@pytest.mark.rules
def test_the_command(wheels):
    done = CliRunner().invoke(app, ["image", "lock", str(wheels)])
    assert done.exit_code == 0, done.output
    assert (wheels / "requirements.lock").is_file()


@pytest.mark.rules
def test_strict_builds_take_only_what_cannot_change(wheels):
    exact = {"tag": "1", "bases": [f"python@{DIGEST}"], "wheelhouses": [str(wheels)], "strict": True}
    with pytest.raises(InputError, match=r"no requirements\.lock") as caught:
        plan_build(["cube"], **exact)
    assert "cloudedge image lock" in caught.value.hint
    lock_wheels(wheels)
    ((_, how),) = plan_build(["cube"], **exact)
    assert how.base == f"python@{DIGEST}"
    for change, words in (
        ({"bases": []}, "is a tag, which can be moved"),
        ({"bases": ["python:3.11-slim-bookworm"]}, "is a tag, which can be moved"),
        ({"bases": ["python@sha256:0f"]}, "is a tag, which can be moved"),
        ({"wheelhouses": []}, "without hashes"),
        ({"tag": ""}, "a tag that every build moves"),
    ):
        with pytest.raises(InputError, match=words):
            plan_build(["cube"], **exact | change)


class Engine:
    """An engine that has one base image, or can pull it, and builds everything."""

    def __init__(self, base, *, pulls=False):
        self.images = self.api = self
        self._found, self._pulls = base, pulls

    def get(self, name):
        if self._pulls and name.startswith("python"):
            raise NotFound(name)
        return self._found

    def pull(self, name):
        return self._found

    def build(self, **options):
        self.labels = options["labels"]
        return iter(())


@pytest.mark.rules
@pytest.mark.parametrize("pulls", [False, True])
@pytest.mark.parametrize(
    ("digests", "recorded"), [([f"python@{DIGEST}"], f"python@{DIGEST}"), ([], "sha256:of-this-engine")]
)
def test_an_image_records_what_it_was_built_on(digests, recorded, pulls):
    pytest.importorskip("docker")
    engine = Engine(SimpleNamespace(id="sha256:of-this-engine", attrs={"RepoDigests": digests}), pulls=pulls)
    ((image, how),) = plan_build(["cube"])
    build(engine, image, how, print)
    assert engine.labels == {"cloudedge.base": recorded}


@pytest.fixture
def install(tmp_path, wheels):
    """Run install.sh, with this Python's pip for the image's."""
    pip = tmp_path / "venv" / "bin" / "pip"
    pip.parent.mkdir(parents=True)
    pip.write_text(f'#!/bin/sh\necho "pip $*"\nexec {sys.executable} -m pip "$@"\n')
    pip.chmod(0o755)

    def run(*arguments, **environment):
        given = {
            "WHEELHOUSE_DIR": str(wheels),
            "VERIFIED_DIR": str(tmp_path / "verified"),
            "PIP_TARGET": str(tmp_path / "installed"),
            "PIP_CONFIG_FILE": os.devnull,
        }
        return subprocess.run(
            ["sh", FOLDER / "install.sh", pip.parent.parent, *arguments],
            capture_output=True, text=True, check=False, env=os.environ | given | environment,
        )  # fmt: skip

    return run


@pytest.mark.parts
def test_only_wheels_with_their_hash_are_installed(install, wheels, tmp_path):
    lock = lock_wheels(wheels)
    wheel(wheels, "tool", "9.0")  # newer, and in no lock
    done = install("cloudedge")
    assert done.returncode == 0, done.stdout + done.stderr
    found = {path.name for path in (tmp_path / "installed").glob("*.dist-info")}
    assert found == {"cloudedge-1.0.dist-info", "tool-2.0.dist-info"}
    lock.unlink()
    done = install("cloudedge")
    assert done.returncode == 1
    assert "cloudedge image lock" in done.stderr


@pytest.mark.parts
def test_a_changed_wheel_fails_the_build(install, wheels, tmp_path):
    lock_wheels(wheels)
    with zipfile.ZipFile(wheels / "tool-2.0-py3-none-any.whl", "a") as file:
        file.writestr("evil.py", "")
    done = install("cloudedge")
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stdout + done.stderr
    assert not (tmp_path / "installed").exists()


@pytest.mark.parts
def test_without_wheels_the_index_is_asked_for_named_versions(install, wheels, tmp_path):
    for each in wheels.iterdir():
        each.unlink()
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("cloudedge==0.0\n")
    done = install("cloudedge", CONSTRAINTS=str(constraints), PIP_NO_INDEX="1")
    assert f"--constraint {constraints} cloudedge" in done.stdout
    assert done.returncode != 0  # there is no index here


@pytest.mark.rules
def test_every_image_has_a_dockerfile():
    assert {f"{kind}.Dockerfile" for kind in KINDS} == {path.name for path in FOLDER.glob("*Dockerfile")}
