"""Builds the images in `dockerfiles/`, from a directory of wheels where there is one."""

from __future__ import annotations

import contextlib
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cloudedge.errors import InputError, Unavailable
from cloudedge.serving.docker._containers import engine_errors

__all__ = ["Build", "build"]

Progress = Callable[[str], None]

DOCKERFILES = Path(__file__).parents[3] / "dockerfiles"
WHEELHOUSE = "wheelhouse"


class Build:
    """How an image is made: the Dockerfile, and what may stand in for its defaults."""

    def __init__(
        self, dockerfile: str, *, dockerfiles: Path | None = None, base: str = "", wheelhouse: Path | None = None
    ) -> None:
        self.folder = dockerfiles or DOCKERFILES
        self.dockerfile = dockerfile
        self.arguments = {"BASE": base} if base else {}
        self.wheelhouse = wheelhouse or self.folder / WHEELHOUSE
        if not (self.folder / dockerfile).is_file():
            raise InputError(
                f"{self.folder / dockerfile} is not there",
                hint="the Dockerfiles come with the sources, not with the package; name their folder, or an image",
            )
        if not self.wheelhouse.is_dir():
            raise InputError(f"{self.wheelhouse} is not a directory of wheels")

    def context(self, file: Any) -> None:
        """Write the build context: the Dockerfiles, and the wheels under the name they expect."""
        with tarfile.open(fileobj=file, mode="w") as archive:
            for path in sorted(self.folder.iterdir()):
                if path.name != WHEELHOUSE:
                    archive.add(path, path.name)
            archive.add(self.wheelhouse.resolve(), WHEELHOUSE)  # the directory itself, not a link to it


def build(client: Any, image: str, how: Build, progress: Progress) -> None:
    """Build an image, reporting each step as the engine does it.

    Raises:
        Unavailable: a step failed; says what it wrote last.
    """
    with tempfile.TemporaryFile() as context, engine_errors(f"build {image}"):
        how.context(context)
        context.seek(0)
        said: list[str] = []
        for event in client.api.build(
            fileobj=context, custom_context=True, dockerfile=how.dockerfile, tag=image, buildargs=how.arguments,
            rm=True, forcerm=True, decode=True, timeout=1800,
        ):  # fmt: skip
            if "error" in event:
                raise Unavailable(f"cannot build {image}: {event['error']}", hint="\n".join(said[-10:]), image=image)
            with contextlib.suppress(KeyError):
                said.append(event["stream"].strip())
                if said[-1].startswith(("Step ", "Successfully tagged")):
                    progress(said[-1])
