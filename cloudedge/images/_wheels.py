"""Wheelhouses: directories of the wheels an image is built from, with their hashes, so that builds need no network."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from cloudedge.errors import InputError, Unavailable
from cloudedge.images._catalogue import Kind, checkout, dockerfile_of, dockerfiles_folder, with_extras
from cloudedge.io import digest_file

__all__ = ["LOCK", "lock_wheels", "make_wheelhouse", "wheel_commands"]

LOCK = "requirements.lock"
"""The file of a wheelhouse with the version and the hashes of each package, in pip's own form."""

_STOCK_PYTHON = "3.9"  # the newest that Paddle Serving supports
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
    """Return the pip commands that fill a wheelhouse.

    Args:
        folder: The wheelhouse.
        kinds: The images; Paddle Serving's needs its own wheelhouse, since its pins suit no other.
        python: An interpreter of the base image's version; wheels with compiled code suit one version only.
        source: cloudedge as a checkout or a wheel; the one this program runs from if left out.
        extras: Extras of cloudedge, besides those the images have anyway.
        dockerfiles: The folder of the Dockerfiles.

    Raises:
        InputError: Paddle Serving is requested together with other images.
    """
    place = dockerfiles or dockerfiles_folder()
    pip, into = ["-m", "pip", "wheel", "--disable-pip-version-check", "--use-pep517"], ["--wheel-dir", str(folder)]
    if "paddle-serving" in kinds:
        if len(kinds) > 1:
            raise InputError(
                "the wheels of paddle-serving cannot share a directory: they are for Python 3.9",
                hint="Make one directory for paddle-serving, and one for the rest.",
            )
        command = [python or f"python{_STOCK_PYTHON}", *pip, *into]
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
    constraints = place / "constraints.txt"
    limits = ["--constraint", str(constraints)] if constraints.is_file() else []
    what = requirement if own else f"{requirement}=={version('cloudedge')}"
    return [[python or sys.executable, *pip, *limits, *into, what]]


def lock_wheels(folder: Path) -> Path:
    """Write the versions and hashes of a wheelhouse; a build accepts those wheels and no others.

    Returns:
        The file that was written.

    Raises:
        InputError: There are no wheels, or two versions of a package.
    """
    versions: dict[str, set[str]] = defaultdict(set)
    hashes: dict[str, list[str]] = defaultdict(list)
    for wheel in sorted(folder.glob("*.whl")):
        name, number = wheel.name.split("-")[:2]
        name = re.sub(r"[-_.]+", "-", name).lower()
        versions[name].add(number)
        hashes[name].append(f"--hash=sha256:{digest_file(wheel).sha256}")
    if not versions:
        raise InputError(f"{folder} has no wheels")
    twice = {name: sorted(found) for name, found in versions.items() if len(found) > 1}
    if twice:
        found = "; ".join(f"{name} {', '.join(numbers)}" for name, numbers in twice.items())
        raise InputError(
            f"{folder} has more than one version of a package: {found}",
            hint=f"Remove the wheels that are not wanted, then run `cloudedge image lock {folder}`.",
        )
    lines = [f"{name}=={next(iter(versions[name]))} {' '.join(hashes[name])}\n" for name in sorted(versions)]
    lock = folder / LOCK
    lock.write_text("".join(lines), encoding="ascii")
    return lock


def make_wheelhouse(commands: Sequence[Sequence[str]], progress: Callable[[str], None]) -> None:
    """Run pip; existing wheels are kept.

    Raises:
        InputError: the Python interpreter does not exist.
        Unavailable: pip failed; the hint holds its last output.
    """
    for command in commands:
        output: list[str] = []
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        except OSError as error:
            raise InputError(
                f"cannot run {command[0]}: {error.strerror}", hint="Name an interpreter that has pip with `--python`."
            ) from error
        with process:
            for line in process.stdout or ():
                output.append(line.rstrip())
                if not line.startswith(" "):
                    progress(output[-1])
        if process.returncode:
            raise Unavailable(f"cannot make wheels: {' '.join(command)} failed", hint="\n".join(output[-_LAST_LINES:]))
