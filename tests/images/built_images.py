"""Our images for tests, built without a network from Debian packages and wheels, once for each state of the sources.

Takes minutes and gigabytes the first time, so tests that want one are skipped unless CLOUDEDGE_TEST_DOCKER is set.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from cloudedge.errors import CloudEdgeError
from cloudedge.images import KINDS, Kind, build, local_name, lock_wheels, make_wheelhouse, plan_build, wheel_commands
from cloudedge.images._engine_errors import connect
from tests import ROOT

TOOLS = Path(os.environ.get("CLOUDEDGE_TEST_TOOLS") or ROOT / ".peers")
CODE = ("cloudedge", "native", "CMakeLists.txt", "pyproject.toml", "constraints.txt")
STOCK = ("dockerfiles/paddle-serving",)

needs_docker = pytest.mark.skipif(
    not os.environ.get("CLOUDEDGE_TEST_DOCKER"), reason="CLOUDEDGE_TEST_DOCKER is not set"
)


def built(kind: Kind) -> str:
    """Return the name of an image made of the sources as they are; `cloudedge-test/KIND:1` is the same."""
    client, image = engine(), local_name(kind, tag(kind))
    if not client.images.list(image):
        with alone():  # and whoever had to wait finds it built
            if not client.images.list(image):
                options = {"bases": [base(kind)], "wheelhouses": [str(wheelhouse(kind))]}
                ((_, how),) = plan_build([kind], **options)
                build(client, image, how, print)
    client.images.get(image).tag(f"cloudedge-test/{kind}", "1")
    return image


def tag(kind: Kind) -> str:
    """Name a state of what an image is made of."""
    return f"lab-{state(f'dockerfiles/{kind}.Dockerfile', 'dockerfiles/install.sh', *sources(kind))}"


def sources(kind: Kind) -> tuple[str, ...]:
    return STOCK if kind == "paddle-serving" else CODE


@cache
def state(*paths: str) -> str:
    """Digest files and what is in folders."""
    found = hashlib.sha256()
    for path in (ROOT / each for each in paths):
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and "__pycache__" not in file.parts and file.suffix != ".so":
                found.update(f"{file.relative_to(ROOT)} {file.stat().st_size}\n".encode() + file.read_bytes())
    return found.hexdigest()[:12]


def engine():
    """Return a client of the engine, or skip the test."""
    try:
        return connect(timeout_s=600)
    except CloudEdgeError as error:
        pytest.skip(error.message)


def base(kind: Kind) -> str:
    """Return a base image with the Python a kind needs, made by debootstrap if it is not there."""
    if shutil.which("debootstrap") is None:
        pytest.skip("needs debootstrap, to make a base image")
    suite = "bullseye" if kind == "paddle-serving" else "bookworm"
    image = f"cloudedge-test-{suite}"
    made = subprocess.run(
        [ROOT / "tests/images/make_base_image", suite, image], capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stdout + made.stderr
    return image


def wheelhouse(kind: Kind) -> Path:
    """Return a directory of the wheels for a kind; our own images share one."""
    is_stock = kind == "paddle-serving"
    folder = TOOLS / ("wheelhouse-stock" if is_stock else "wheelhouse-own")
    stamp, wanted = folder / "complete", state(*sources(kind))
    if not stamp.exists() or stamp.read_text() != wanted:
        interpreter = python("3.9" if is_stock else "3.11")
        kinds = [kind] if is_stock else [each for each in KINDS if each != "paddle-serving"]
        for old in folder.glob("*.whl"):
            old.unlink()  # of a package there may be one version only
        commands = wheel_commands(folder, kinds, python=interpreter)
        with pytest.MonkeyPatch.context() as patch:
            if interpreter == sys.executable:
                # As the checkout was built, or all of it would be compiled again. To pip, 0 means without isolation.
                patch.setenv("PIP_NO_BUILD_ISOLATION", "0")
            make_wheelhouse(commands, print)
        lock_wheels(folder)
        stamp.write_text(wanted)
    return folder


def python(version: str) -> str:
    """Find an interpreter of a base image's version, or skip the test."""
    usual = [
        sys.executable,
        shutil.which(f"python{version}") or "",
        *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python")),
    ]
    for candidate in filter(None, usual):
        code = f"import pip, sys; sys.exit(not sys.version.startswith('{version}.'))"
        if subprocess.run([candidate, "-c", code], capture_output=True, check=False).returncode == 0:
            return candidate
    pytest.skip(f"needs Python {version}, to make wheels for the image")


@contextmanager
def alone() -> Iterator[None]:
    """Let others wait who build for the same engine."""
    TOOLS.mkdir(parents=True, exist_ok=True)
    with (TOOLS / "images.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
