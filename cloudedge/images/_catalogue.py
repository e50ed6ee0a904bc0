"""The catalogue of images, and the defaults in their Dockerfiles: base image and requirements."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from cloudedge.errors import InputError

__all__ = ["KINDS", "LABEL", "Kind", "dockerfile_of", "dockerfiles_folder", "local_name", "with_extras"]

Kind = Literal["cube", "serving", "paddle-serving", "trainer", "pipeline"]
KINDS: tuple[Kind, ...] = get_args(Kind)
LABEL = "cloudedge.image"
"""The label with the image's kind, set by every Dockerfile, so that images are found whatever their names."""

_STOCK_TAG = "0.9.0"  # Paddle Serving's last release
_PACKAGED = Path(__file__).parent / "dockerfiles"
_CHECKOUT = Path(__file__).parents[2] / "dockerfiles"


def dockerfiles_folder() -> Path:
    """Return the folder of the Dockerfiles: inside an installed package, or beside it in a checkout."""
    return _PACKAGED if _PACKAGED.is_dir() else _CHECKOUT


def checkout() -> Path | None:
    """Return the checkout this package runs from; None if it is installed."""
    root = _CHECKOUT.parent
    return root if not _PACKAGED.is_dir() and (root / "pyproject.toml").is_file() else None


def local_name(kind: Kind, tag: str = "") -> str:
    """Return an image's name on the local engine; a registry's address goes before it."""
    return f"cloudedge-{kind}:{tag or (_STOCK_TAG if kind == 'paddle-serving' else 'latest')}"


def dockerfile_of(kind: Kind, folder: Path) -> tuple[Path, dict[str, str]]:
    """Return a Dockerfile and the defaults of its build arguments.

    Raises:
        InputError: the Dockerfile does not exist.
    """
    path = folder / f"{kind}.Dockerfile"
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise InputError(
            f"{path.name} does not exist in {folder}", hint="Name the folder of a checkout with `--dockerfiles`."
        ) from None
    return path, dict(re.findall(r'^ARG (\w+)="?([^"\n]*)"?$', text, flags=re.MULTILINE))


def with_extras(requirement: str, extras: Sequence[str]) -> str:
    """Add extras to a requirement: `cloudedge[paddle]` and `s3` make `cloudedge[paddle,s3]`."""
    name, _, given = requirement.rstrip("]").partition("[")
    wanted = dict.fromkeys([*filter(None, given.split(",")), *extras])
    return f"{name}[{','.join(wanted)}]" if wanted else name
