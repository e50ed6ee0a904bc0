"""What a program says of itself, for models that come without a signature."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cloudedge.bundle import Signature, Variable
from cloudedge.errors import InputError

__all__ = ["read_signature", "require_no_parameters"]

_MAX_BYTES = 256 * 1024 * 1024
_TYPES = {"f32": "float32", "f64": "float64", "f16": "float16", "i64": "int64", "i32": "int32", "i16": "int16"}
_TYPES |= {"i8": "int8", "ui8": "uint8", "b": "bool", "bool": "bool"}
_VERSIONS = {1, 2, 3, 4}
_PARAMETER = "p"


def read_signature(path: Path, name: str) -> Signature:
    """Read feeds and fetches from a program that Paddle 3 wrote (`.json`).

    Args:
        path: Where its bytes are.
        name: What it is called in its bundle.

    Raises:
        InputError: it is an older program, or not one this version knows.
    """
    unknown = InputError(
        f"{name} does not say what it is fed and answers",
        hint="give the bundle a signature: cloudedge bundle pack --signature",
    )
    if not name.endswith(".json"):
        raise unknown
    try:
        operators = _operators(path)
        return Signature(
            feed=tuple(_variables(operators, "1.data")),
            fetch=tuple(_variables(operators, "1.fetch")),
        )
    except (ValueError, LookupError, TypeError) as error:
        raise unknown from error


def require_no_parameters(path: Path, name: str) -> None:
    """Make sure that a program that Paddle 3 wrote runs without a file of parameters.

    Raises:
        InputError: it has some, or it is not a program.
    """
    try:
        count = sum(operator["#"] == _PARAMETER for operator in _operators(path))
    except (ValueError, LookupError, TypeError) as error:
        raise InputError(
            f"{name} comes without parameters and is not a program that is known here",
            hint="a bundle to serve has one .json or .pdmodel file and, if the program has parameters, one .pdiparams",
        ) from error
    if count:
        raise InputError(
            f"{name} has {count} parameters, and the bundle has no file of them", hint="pack its .pdiparams file too"
        )


def _operators(path: Path) -> list[Mapping[str, Any]]:
    if path.stat().st_size > _MAX_BYTES:
        raise ValueError("too large to be a program")
    program = json.loads(path.read_bytes())
    if program["base_code"]["magic"] != "pir" or program["base_code"]["version"] not in _VERSIONS:
        raise ValueError("another format")
    operators: list[Mapping[str, Any]] = program["program"]["regions"][0]["blocks"][0]["ops"]
    return operators


def _variables(operators: list[Mapping[str, Any]], kind: str) -> Iterator[Variable]:
    for operator in operators:
        if operator["#"] == kind:
            name = next(a["AT"]["D"] for a in operator["A"] if a["N"] == "name")
            element, shape = operator["O"][0]["TT"]["D"][:2]
            dtype = _TYPES[element["#"].removeprefix("0.t_")]
            yield Variable.model_validate({"name": name, "dtype": dtype, "shape": shape[1:]})
