"""The signature that a program file contains, for models that come without one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cloudedge.bundle import Signature, Variable
from cloudedge.errors import InputError

__all__ = ["DESCRIPTION", "read_signature", "require_no_parameters", "with_aliases"]

DESCRIPTION = "serving_server_conf.prototxt"
"""Paddle Serving's file beside a model that names its inputs and outputs for clients."""

_MAX_BYTES = 256 * 1024 * 1024
_TYPES = {"f32": "float32", "f64": "float64", "f16": "float16", "i64": "int64", "i32": "int32", "i16": "int16"}
_TYPES |= {"i8": "int8", "ui8": "uint8", "b": "bool", "bool": "bool"}
_VERSIONS = {1, 2, 3, 4}
_PARAMETER = "p"


def read_signature(path: Path, name: str) -> Signature:
    """Read feeds and fetches from a program.

    Args:
        path: Its file.
        name: Its path in the bundle.

    Raises:
        InputError: The file is not a program that this version knows.
    """
    unknown = InputError(
        f"{name} does not declare its inputs and outputs",
        hint="Give the bundle a signature: `cloudedge bundle pack --signature`.",
    )
    try:
        if not name.endswith(".json"):
            from cloudedge.serving.model._old_program import read_old_signature  # noqa: PLC0415 - protobuf

            found = read_old_signature(path)
        else:
            operators = _operators(path)
            found = Signature(
                feed=tuple(_variables(operators, "1.data")),
                fetch=tuple(_variables(operators, "1.fetch")),
            )
    except (ValueError, LookupError, TypeError) as error:
        raise unknown from error
    if not found.feed or not found.fetch:
        raise unknown
    return found


def with_aliases(signature: Signature, path: Path) -> Signature:
    """Give inputs and outputs the client names of Paddle Serving's description of the model.

    Types and shapes stay the program's: the description omits sizes that vary. Outputs that have another name in the
    program are matched by position, as Paddle Serving does.

    Raises:
        InputError: The description belongs to another model.
        ConfigError: It cannot be read.
    """
    from cloudedge.serving import conf  # noqa: PLC0415 - protobuf

    text = path.read_text(errors="replace")
    described = conf.signature_of(conf.read_text(conf.GeneralModelConfig, text, DESCRIPTION))
    feeds = {variable.name: variable.alias for variable in described.feed}
    fetches = {variable.name: variable.alias for variable in described.fetch}
    if fetches.keys() != {variable.name for variable in signature.fetch}:
        names = [variable.alias or variable.name for variable in described.fetch]
        fetches = dict(zip([variable.name for variable in signature.fetch], names, strict=False))
    if feeds.keys() != {variable.name for variable in signature.feed} or len(described.fetch) != len(signature.fetch):
        raise InputError(
            f"{DESCRIPTION} describes another model: it has the inputs {sorted(feeds)} "
            f"and {len(described.fetch)} outputs, "
            f"the program {sorted(variable.name for variable in signature.feed)} and {len(signature.fetch)}",
            hint="Put this model's own description beside it, or remove the file to use the program's names.",
        )

    def named(variables: tuple[Variable, ...], aliases: Mapping[str, str]) -> tuple[Variable, ...]:
        return tuple(variable.model_copy(update={"alias": aliases[variable.name]}) for variable in variables)

    return Signature(feed=named(signature.feed, feeds), fetch=named(signature.fetch, fetches))


def require_no_parameters(path: Path, name: str) -> None:
    """Check that a program of Paddle 3 runs without a file of parameters.

    Raises:
        InputError: It has parameters, or it is not a program.
    """
    try:
        count = sum(operator["#"] == _PARAMETER for operator in _operators(path))
    except (ValueError, LookupError, TypeError) as error:
        raise InputError(
            f"{name} comes without parameters and is not a known kind of program",
            hint="A bundle to serve has one .json or .pdmodel file and, if the program has parameters, one .pdiparams.",
        ) from error
    if count:
        raise InputError(
            f"{name} has {count} parameters, and the bundle has no file of them", hint="Pack its .pdiparams file too."
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
