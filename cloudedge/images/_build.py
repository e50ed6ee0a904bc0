"""Builds one image from its Dockerfile, and from a directory of wheels where there is one."""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cloudedge.errors import CloudEdgeError, InputError, NotFound, Unavailable
from cloudedge.images._catalogue import Kind, dockerfile_of, dockerfiles_folder, with_extras
from cloudedge.images._engine_errors import engine_errors

__all__ = ["Build", "build"]

Progress = Callable[[str], None]

WHEELHOUSE = "wheelhouse"
_LAST_LINES = 10
_TIMEOUT_S = 1800  # Paddle alone is hundreds of megabytes to unpack, on a disk that may be slow


class Build:
    """How an image is made: the Dockerfile, and what may stand in for its defaults.

    Args:
        kind: Which image.
        dockerfiles: Their folder; the package's own if left out.
        base: Another base image.
        wheelhouse: A directory of wheels; with it nothing is asked of any network.
        extras: Of cloudedge, beside those the image has anyway.

    Raises:
        InputError: the Dockerfile is not there, or the wheelhouse cannot be built from.
    """

    def __init__(
        self,
        kind: Kind,
        *,
        dockerfiles: Path | None = None,
        base: str = "",
        wheelhouse: Path | None = None,
        extras: Sequence[str] = (),
    ) -> None:
        self.kind = kind
        self.folder = dockerfiles or dockerfiles_folder()
        self.dockerfile, defaults = dockerfile_of(kind, self.folder)
        self.base = base or defaults["BASE"]
        self.requirement = defaults.get("REQUIREMENT", "")
        self.arguments = {"BASE": self.base}
        if self.requirement and extras:
            self.requirement = self.arguments["REQUIREMENT"] = with_extras(self.requirement, extras)
        self.wheelhouse = wheelhouse or self.folder / WHEELHOUSE
        if wheelhouse is not None:
            _check(wheelhouse, "cloudedge" if self.requirement else "paddle_serving_server", kind)

    @property
    def is_offline(self) -> bool:
        """Whether everything comes from wheels at hand."""
        return any(self.wheelhouse.glob("*.whl"))

    def context(self, file: Any) -> None:
        """Write the build context: the Dockerfiles, and the wheels under the name they expect."""
        with tarfile.open(fileobj=file, mode="w") as archive:
            for path in sorted(self.folder.iterdir()):
                if path.name != WHEELHOUSE:
                    archive.add(path, path.name)
            archive.add(self.wheelhouse.resolve(), WHEELHOUSE)  # the directory itself, not a link to it


def _check(wheelhouse: Path, project: str, kind: Kind) -> None:
    """Refuse a directory that would send the build to the network, or into an error minutes later."""
    if any(wheelhouse.glob(f"{project}-*.whl")):
        return
    what = f"has no wheel of {project}" if wheelhouse.is_dir() else "is not a directory"
    raise InputError(f"{wheelhouse} {what}", hint=f"cloudedge image wheelhouse {wheelhouse} {kind}")


def build(client: Any, image: str, how: Build, progress: Progress) -> str:
    """Build an image, reporting each step as the engine does it; returns its id.

    Raises:
        NotFound: the engine neither has the base image nor gets it.
        Unavailable: a step failed; says what it wrote last.
    """
    with tempfile.TemporaryFile() as context, engine_errors(f"build {image}"):
        how.context(context)
        context.seek(0)
        said: list[str] = []
        for event in client.api.build(
            fileobj=context, custom_context=True, dockerfile=how.dockerfile.name, tag=image, buildargs=how.arguments,
            rm=True, forcerm=True, decode=True, timeout=_TIMEOUT_S,
        ):  # fmt: skip
            if "error" in event:
                raise failure(image, how, event["error"], said)
            if line := event.get("stream", "").strip():
                said.append(line)
                if line.startswith("Step "):
                    progress(line)
        return str(client.images.get(image).id)


def failure(image: str, how: Build, error: str, said: Sequence[str]) -> CloudEdgeError:
    """Say why a build failed, and what helps."""
    steps = [line.partition(" : ")[2] for line in said if line.startswith("Step ")]
    if steps and steps[-1].startswith("FROM "):
        return NotFound(
            f"cannot build {image}: the base image {how.base} is not on this engine and cannot be pulled: {error}",
            hint=f"--base names one that is; {how.dockerfile} says what it has to have",
            image=image,
        )
    last = "\n".join(said[-_LAST_LINES:])
    if "No matching distribution found" in last:
        advice = (
            f"make wheels with the Python of the base image: cloudedge image wheelhouse DIR {how.kind} --python ..."
        )
        last = f"{last}\n{advice}, then --wheelhouse DIR"
    return Unavailable(f"cannot build {image}: {error}", hint=last, image=image)
