"""Decides what is built and pushed: pure, but for a look at the Dockerfiles and wheels."""

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
    """An image to push, by the name it has here and the one it gets there."""

    kind: Kind
    source: str
    target: str


def kinds_of(names: Sequence[str]) -> list[Kind]:
    """Read names of images, `all` among them; each once, in the order of the catalogue.

    Raises:
        InputError: there is no such image.
    """
    unknown = [name for name in names if name not in (*KINDS, ALL)]
    if unknown:
        raise InputError(f"there is no image {unknown[0]!r}", hint=f"one of {', '.join(KINDS)}, or all")
    return [kind for kind in KINDS if kind in names or ALL in names]


def plan_build(
    kinds: Sequence[Kind],
    *,
    tag: str = "",
    bases: Sequence[str] = (),
    wheelhouses: Sequence[str] = (),
    extras: Sequence[str] = (),
    dockerfiles: Path | None = None,
) -> list[tuple[str, Build]]:
    """List images and how each is built.

    Args:
        kinds: Which.
        tag: The same for all; each image's usual one if left out.
        bases: Base images; `KIND=IMAGE` is for that kind, and goes before one for all.
        wheelhouses: Directories of wheels, likewise.
        extras: Of cloudedge, for every image that has it.
        dockerfiles: Where the Dockerfiles are.

    Raises:
        InputError: something that was named cannot be used.
    """
    chosen_bases, chosen_wheels = _chosen(kinds, bases, "base"), _chosen(kinds, wheelhouses, "wheelhouse")
    return [
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


def plan_push(kinds: Sequence[Kind], registry: str, *, tag: str = "") -> list[Planned]:
    """List images and what a registry is to know them by.

    Raises:
        InputError: that is no registry.
    """
    place = registry.rstrip("/")
    if not place or "://" in place or "@" in place or place != place.lower():
        raise InputError(f"{registry!r} is no registry", hint="HOST[:PORT][/PATH] in lower case, without https://")
    return [Planned(kind, local_name(kind, tag), f"{place}/{local_name(kind, tag)}") for kind in kinds]


def _chosen(kinds: Sequence[Kind], given: Sequence[str], option: str) -> dict[Kind, str]:
    """Read `VALUE`, which is for all, and `KIND=VALUE`, which goes before it."""
    marks = tuple(f"{kind}=" for kind in KINDS)
    for_all = [value for value in given if not value.startswith(marks)]
    stray = [value for value in given if value.startswith(marks) and value.partition("=")[0] not in kinds]
    if stray:
        raise InputError(f"--{option} {stray[0]} is for an image that is not asked for", hint="name that image too")
    own = {kind: [value.removeprefix(f"{kind}=") for value in given if value.startswith(f"{kind}=")] for kind in kinds}
    return {kind: (own[kind] or for_all)[-1] for kind in kinds if own[kind] or for_all}
