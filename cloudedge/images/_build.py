"""Builds of one image from its Dockerfile and, if given, a directory of wheels."""

from __future__ import annotations

import re
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cloudedge.errors import CloudEdgeError, InputError, NotFound, Unavailable
from cloudedge.images._catalogue import Kind, dockerfile_of, dockerfiles_folder, with_extras
from cloudedge.images._engine_errors import engine_errors
from cloudedge.images._wheels import LOCK

__all__ = ["Build", "build"]

Progress = Callable[[str], None]

WHEELHOUSE = "wheelhouse"
BASE_LABEL = "cloudedge.base"
"""The label with the digest of the base image."""
_DIGEST = re.compile(r"(^|@)sha256:[0-9a-f]{64}$")
_LAST_LINES = 10
_TIMEOUT_S = 1800  # unpacking Paddle's hundreds of megabytes may be slow


class Build:
    """The description of a build: the Dockerfile, and replacements for its defaults.

    Args:
        kind: The image.
        dockerfiles: The folder of the Dockerfiles; the package's own if left out.
        base: Another base image.
        wheelhouse: A directory of wheels and their hashes; with it the build uses no network.
        extras: Extras of cloudedge, besides those the image has anyway.

    Raises:
        InputError: the Dockerfile does not exist, or the wheelhouse lacks the wheels or their hashes.
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
        """True if all packages come from local wheels."""
        return any(self.wheelhouse.glob("*.whl"))

    def require_exact(self) -> None:
        """Refuse a build whose result depends on what a registry or a package index has today.

        Raises:
            InputError: the base image is not named by digest, or packages come from the network.
        """
        if not _DIGEST.search(self.base):
            raise InputError(
                f"the base image {self.base} of {self.kind} is a tag, which can be moved",
                hint=f"Name it by digest: `--base {self.kind}=NAME@sha256:...`, or leave out `--strict`.",
            )
        if not self.is_offline:
            raise InputError(
                f"the packages of {self.kind} would come from the network, without hashes",
                hint=f"Run `cloudedge image wheelhouse DIR {self.kind}`, and build with `--wheelhouse DIR`.",
            )

    def context(self, file: Any) -> None:
        """Write the build context: the Dockerfiles, and the wheels under the name they expect."""
        with tarfile.open(fileobj=file, mode="w") as archive:
            for path in sorted(self.folder.iterdir()):
                if path.name != WHEELHOUSE:
                    archive.add(path, path.name)
            archive.add(self.wheelhouse.resolve(), WHEELHOUSE)  # the directory itself, not a link to it


def _check(wheelhouse: Path, project: str, kind: Kind) -> None:
    """Refuse a directory that would send the build to the network, or fail it minutes later."""
    if any(wheelhouse.glob(f"{project}-*.whl")):
        if (wheelhouse / LOCK).is_file():
            return
        raise InputError(
            f"{wheelhouse} has no {LOCK} with the hashes of its wheels",
            hint=f"Write it with `cloudedge image lock {wheelhouse}`.",
        )
    what = f"has no wheel of {project}" if wheelhouse.is_dir() else "is not a directory"
    raise InputError(f"{wheelhouse} {what}", hint=f"Run `cloudedge image wheelhouse {wheelhouse} {kind}`.")


def build(client: Any, image: str, how: Build, progress: Progress) -> str:
    """Build an image, reporting each step of the engine; return its id.

    Raises:
        NotFound: the engine neither has the base image nor can pull it.
        Unavailable: a step failed; the hint holds its last output.
    """
    with tempfile.TemporaryFile() as context, engine_errors(f"build {image}"):
        how.context(context)
        context.seek(0)
        output: list[str] = []
        for event in client.api.build(
            fileobj=context, custom_context=True, dockerfile=how.dockerfile.name, tag=image, buildargs=how.arguments,
            rm=True, forcerm=True, decode=True, timeout=_TIMEOUT_S, labels=_base_label(client, how.base),
        ):  # fmt: skip
            if "error" in event:
                raise failure(image, how, event["error"], output)
            if line := event.get("stream", "").strip():
                output.append(line)
                if line.startswith("Step "):
                    progress(line)
        return str(client.images.get(image).id)


def _base_label(client: Any, base: str) -> dict[str, str]:
    """Return the label that records the base image: a tag says nothing about what was built on."""
    if not _DIGEST.search(base):
        try:
            with engine_errors(f"look for the base image {base}"):
                found = client.images.get(base)
        except NotFound:
            try:
                with engine_errors(f"pull the base image {base}"):
                    found = client.images.pull(base)
            except CloudEdgeError:
                return {}  # the build fails for the same reason, and its error has the remedy
        base = next(iter(found.attrs.get("RepoDigests") or ()), str(found.id))
    return {BASE_LABEL: base}


def failure(image: str, how: Build, error: str, output: Sequence[str]) -> CloudEdgeError:
    """Return the error for a failed build, with the remedy."""
    steps = [line.partition(" : ")[2] for line in output if line.startswith("Step ")]
    if steps and steps[-1].startswith("FROM "):
        return NotFound(
            f"cannot build {image}: the base image {how.base} is missing and cannot be pulled: {error}",
            hint=f"Name an available one with `--base`. {how.dockerfile} lists its requirements.",
            image=image,
        )
    last = "\n".join(output[-_LAST_LINES:])
    if "No matching distribution found" in last:
        advice = f"Make wheels with the base image's Python: `cloudedge image wheelhouse DIR {how.kind} --python ...`."
        last = f"{last}\n{advice} Then build with `--wheelhouse DIR`."
    return Unavailable(f"cannot build {image}: {error}", hint=last, image=image)
