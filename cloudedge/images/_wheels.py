"""Fills a directory with the wheels an image is built from, so that the build asks nothing of any network."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from cloudedge.errors import InputError, Unavailable
from cloudedge.images._catalogue import Kind, checkout, dockerfile_of, dockerfiles_folder, with_extras

__all__ = ["make_wheelhouse", "wheel_commands"]

_STOCK_PYTHON = "3.9"  # the newest that Paddle Serving was released for
_LAST_LINES = 10


def wheel_commands(
    folder: Path,
    kinds: Sequence[Kind],
    *,
    python: str = "",
    source: Path | None = None,
    extras: Sequence[str] = (),
    dockerfiles: Path | None = None,
) -> list[list[str]]:
    """List the commands of pip that fill a wheelhouse.

    Args:
        folder: The wheelhouse.
        kinds: For which images; Paddle Serving's is one of its own, its pins suit nobody else.
        python: An interpreter of the base image's version; wheels with compiled code suit one version only.
        source: cloudedge as a checkout or a wheel; what this program runs from if left out.
        extras: Of cloudedge, beside those the images have anyway.
        dockerfiles: Where the Dockerfiles are.

    Raises:
        InputError: Paddle Serving is asked for together with others.
    """
    place = dockerfiles or dockerfiles_folder()
    wheel = ["-m", "pip", "wheel", "--disable-pip-version-check", "--use-pep517", "--wheel-dir", str(folder)]
    if "paddle-serving" in kinds:
        if len(kinds) > 1:
            raise InputError(
                "the wheels of paddle-serving cannot share a directory: they are for Python 3.9",
                hint="make one directory for paddle-serving, and one for the rest",
            )
        command = [python or f"python{_STOCK_PYTHON}", *wheel]
        return [
            [*command, "-r", str(place / "paddle-serving/requirements.txt")],
            [*command, "--no-deps", "-r", str(place / "paddle-serving/requirements-alone.txt")],
        ]
    wanted = list(extras)
    for kind in kinds:
        _, defaults = dockerfile_of(kind, place)
        _, _, given = defaults["REQUIREMENT"].rstrip("]").partition("[")
        wanted += filter(None, given.split(","))
    own = source or checkout()
    requirement = with_extras(str(own.absolute()) if own else "cloudedge", sorted(set(wanted)))
    return [[python or sys.executable, *wheel, requirement if own else f"{requirement}=={version('cloudedge')}"]]


def make_wheelhouse(commands: Sequence[Sequence[str]], progress: Callable[[str], None]) -> None:
    """Run pip; wheels that are there already are kept.

    Raises:
        InputError: there is no such Python.
        Unavailable: pip failed; says what it wrote last.
    """
    for command in commands:
        said: list[str] = []
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        except OSError as error:
            raise InputError(
                f"cannot run {command[0]}: {error.strerror}", hint="--python names an interpreter that has pip"
            ) from error
        with process:
            for line in process.stdout or ():
                said.append(line.rstrip())
                if not line.startswith(" "):
                    progress(said[-1])
        if process.returncode:
            raise Unavailable(f"cannot make wheels: {' '.join(command)} failed", hint="\n".join(said[-_LAST_LINES:]))
