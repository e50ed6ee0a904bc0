"""What a program says of itself, for models that come without a signature."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cloudedge.bundle import Signature, Variable
from cloudedge.errors import InputError

__all__ = ["read_signature"]

_MAX_BYTES = 256 * 1024 * 1024
_TYPES = {"f32": "float32", "f64": "float64", "f16": "float16", "i64": "int64", "i32": "int32", "i16": "int16"}
_TYPES |= {"i8": "int8", "ui8": "uint8", "b": "bool", "bool": "bool"}
_VERSIONS = {1, 2, 3, 4}


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
    if not name.endswith(".json") or path.stat().st_size > _MAX_BYTES:
        raise unknown
    try:
        program = json.loads(path.read_bytes())
        if program["base_code"]["magic"] != "pir" or program["base_code"]["version"] not in _VERSIONS:
            raise unknown
        operators = program["program"]["regions"][0]["blocks"][0]["ops"]
        return Signature(
            feed=tuple(_variables(operators, "1.data")),
            fetch=tuple(_variables(operators, "1.fetch")),
        )
    except (ValueError, LookupError, TypeError) as error:
        raise unknown from error


def _variables(operators: list[Mapping[str, Any]], kind: str) -> Iterator[Variable]:
    for operator in operators:
        if operator["#"] == kind:
            name = next(a["AT"]["D"] for a in operator["A"] if a["N"] == "name")
            element, shape = operator["O"][0]["TT"]["D"][:2]
            dtype = _TYPES[element["#"].removeprefix("0.t_")]
            yield Variable.model_validate({"name": name, "dtype": dtype, "shape": shape[1:]})
