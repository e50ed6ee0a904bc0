"""Finding a program and its parameters among a model's files, for everything that reads a saved model."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from cloudedge.errors import InputError

__all__ = ["find_program", "join_files", "parameters_of"]

_PROGRAMS = (".json", ".pdmodel", "__model__")
_PARAMETERS = (".pdiparams", "__params__")


def find_program(files: Iterable[str]) -> tuple[str, tuple[str, ...]]:
    """Find the program and its parameters among the paths of a model's files; a program may have none.

    Paddle writes parameters one after another in the order of their names, so a file can be cut anywhere between two
    of them: the pieces of `model.pdiparams`, cut at a frozen backbone, are `model.0.pdiparams` and `model.1.pdiparams`,
    joined again in the order of their names. An update then ships the pieces that changed.

    Raises:
        InputError: there is none, or more than one.
    """
    files = list(files)
    programs = [path for path in files if path.endswith(_PROGRAMS) and not PurePosixPath(path).name.startswith(".")]
    parameters = sorted(path for path in files if path.endswith(_PARAMETERS))
    # Several JSON files may lie beside a model; the program is the one named as its parameters are.
    if len(programs) > 1:
        programs = [path for path in programs if _named_as(path, parameters)] or programs
    if len(programs) != 1 or parameters_of(programs[0], parameters) != tuple(parameters):
        raise InputError(
            f"one program and its parameters are needed, found {sorted(programs)} and {parameters}",
            hint="a model has one .json or .pdmodel file and at most one .pdiparams file, or pieces of one",
        )
    return programs[0], tuple(parameters)


def parameters_of(program: str, files: Iterable[str]) -> tuple[str, ...]:
    """Return the parameters that belong to a program: of the same name, pieces of such, or the only ones there."""
    parameters = [path for path in files if path.endswith(_PARAMETERS)]
    return _named_as(program, parameters) or (tuple(parameters) if len(parameters) == 1 else ())


def _named_as(program: str, parameters: Iterable[str]) -> tuple[str, ...]:
    stem = os.path.splitext(program)[0]  # noqa: PTH122 - not a file
    named = sorted(path for path in parameters if path.startswith(f"{stem}.") and path.endswith(".pdiparams"))
    return (f"{stem}.pdiparams",) if f"{stem}.pdiparams" in named else tuple(named)


def join_files(sources: Sequence[Path], target: Path) -> Path:
    """Make one file of pieces; of one piece, a link to it."""
    if len(sources) == 1:
        target.symlink_to(sources[0].absolute())
        return target
    with target.open("wb") as whole:
        for source in sources:
            with source.open("rb") as piece:
                shutil.copyfileobj(piece, whole)
    return target
