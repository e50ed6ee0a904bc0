"""Plans of builds and pushes: pure, except for reading the Dockerfiles and wheels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cloudedge.errors import InputError
from cloudedge.images._build import Build
from cloudedge.images._catalogue import KINDS, Kind, local_name

__all__ = ["Planned", "kinds_of", "plan_build", "plan_push"]

ALL = "all"


@dataclass(frozen=True)
class Planned:
    """An image to push: its local name and its name in the registry."""

    kind: Kind
    source: str
    target: str


def kinds_of(names: Sequence[str]) -> list[Kind]:
    """Return the images of these names, `all` among them; each once, in the order of the catalogue.

    Raises:
        InputError: an image does not exist.
    """
    unknown = [name for name in names if name not in (*KINDS, ALL)]
    if unknown:
        raise InputError(f"the image {unknown[0]!r} does not exist", hint=f"Use one of {', '.join(KINDS)}, or all.")
    return [kind for kind in KINDS if kind in names or ALL in names]


def plan_build(
    kinds: Sequence[Kind],
    *,
    tag: str = "",
    bases: Sequence[str] = (),
    wheelhouses: Sequence[str] = (),
    extras: Sequence[str] = (),
    dockerfiles: Path | None = None,
    strict: bool = False,
) -> list[tuple[str, Build]]:
    """Return the images and the build of each.

    Args:
        kinds: The images.
        tag: The tag of all of them; each image's usual one if left out.
        bases: Base images; `KIND=IMAGE` applies to that kind and takes precedence over one for all.
        wheelhouses: Directories of wheels, likewise.
        extras: Extras of cloudedge, for every image that contains it.
        dockerfiles: The folder of the Dockerfiles.
        strict: Refuse what can change under its name: bases without a digest, packages without hashes, and the tag
            `latest`.

    Raises:
        InputError: an argument is not valid.
    """
    chosen_bases, chosen_wheels = _chosen(kinds, bases, "base"), _chosen(kinds, wheelhouses, "wheelhouse")
    planned = [
        (
            local_name(kind, tag),
            Build(
                kind,
                dockerfiles=dockerfiles,
                base=chosen_bases.get(kind, ""),
                wheelhouse=Path(chosen_wheels[kind]) if kind in chosen_wheels else None,
                extras=extras,
            ),
        )
        for kind in kinds
    ]
    for image, how in planned if strict else ():
        if image.endswith(":latest"):
            raise InputError(f"{image} is a tag that every build moves", hint="Name another one with `--tag`.")
        how.require_exact()
    return planned


def plan_push(kinds: Sequence[Kind], registry: str, *, tag: str = "") -> list[Planned]:
    """Return the images and their names in a registry.

    Raises:
        InputError: the registry's address is not valid.
    """
    place = registry.rstrip("/")
    if not place or "://" in place or "@" in place or place != place.lower():
        raise InputError(
            f"{registry!r} is not a registry", hint="Write HOST[:PORT][/PATH] in lower case, without https://."
        )
    return [Planned(kind, local_name(kind, tag), f"{place}/{local_name(kind, tag)}") for kind in kinds]


def _chosen(kinds: Sequence[Kind], given: Sequence[str], option: str) -> dict[Kind, str]:
    """Read `VALUE`, which applies to all kinds, and `KIND=VALUE`, which takes precedence."""
    marks = tuple(f"{kind}=" for kind in KINDS)
    for_all = [value for value in given if not value.startswith(marks)]
    stray = [value for value in given if value.startswith(marks) and value.partition("=")[0] not in kinds]
    if stray:
        raise InputError(f"--{option} {stray[0]} is for an image that is not requested", hint="Name that image too.")
    own = {kind: [value.removeprefix(f"{kind}=") for value in given if value.startswith(f"{kind}=")] for kind in kinds}
    return {kind: (own[kind] or for_all)[-1] for kind in kinds if own[kind] or for_all}
