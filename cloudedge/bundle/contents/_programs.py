"""Find a model's program and parameter files among its paths, for everything that reads a saved model."""

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
    """Find the program and its parameters among the paths of a model's files; a program may have no parameters.

    Paddle writes parameters one after another in the order of their names, so a file can be cut between any two of
    them. The pieces of `model.pdiparams`, cut at a frozen backbone, are `model.0.pdiparams` and `model.1.pdiparams`;
    they are joined again in the order of their names. An update then ships only the pieces that changed.

    Raises:
        InputError: there is no program, or more than one.
    """
    files = list(files)
    programs = [path for path in files if path.endswith(_PROGRAMS) and not PurePosixPath(path).name.startswith(".")]
    parameters = sorted(path for path in files if path.endswith(_PARAMETERS))
    # Several JSON files may lie beside a model; the program is the one with the name of its parameters.
    if len(programs) > 1:
        programs = [path for path in programs if _same_stem(path, parameters)] or programs
    if len(programs) != 1 or parameters_of(programs[0], parameters) != tuple(parameters):
        raise InputError(
            f"a model needs one program and its parameters, found {sorted(programs)} and {parameters}",
            hint="Keep one .json or .pdmodel file and at most one .pdiparams file, or pieces of one.",
        )
    return programs[0], tuple(parameters)


def parameters_of(program: str, files: Iterable[str]) -> tuple[str, ...]:
    """Return the parameters of a program: files of the same name, pieces of one, or the only parameters there."""
    parameters = [path for path in files if path.endswith(_PARAMETERS)]
    return _same_stem(program, parameters) or (tuple(parameters) if len(parameters) == 1 else ())


def _same_stem(program: str, parameters: Iterable[str]) -> tuple[str, ...]:
    stem = os.path.splitext(program)[0]  # noqa: PTH122 - not a file
    named = sorted(path for path in parameters if path.startswith(f"{stem}.") and path.endswith(".pdiparams"))
    return (f"{stem}.pdiparams",) if f"{stem}.pdiparams" in named else tuple(named)


def join_files(sources: Sequence[Path], target: Path) -> Path:
    """Join pieces into one file; a single piece becomes a link to it."""
    if len(sources) == 1:
        target.symlink_to(sources[0].absolute())
        return target
    with target.open("wb") as whole:
        for source in sources:
            with source.open("rb") as piece:
                shutil.copyfileobj(piece, whole)
    return target
