"""What a program says of itself, for models that come without a signature."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cloudedge.bundle import Signature, Variable
from cloudedge.errors import InputError

__all__ = ["DESCRIPTION", "read_signature", "require_no_parameters", "with_aliases"]

DESCRIPTION = "serving_server_conf.prototxt"
"""What Paddle Serving calls the file beside a model that says what clients call its inputs and outputs."""

_MAX_BYTES = 256 * 1024 * 1024
_TYPES = {"f32": "float32", "f64": "float64", "f16": "float16", "i64": "int64", "i32": "int32", "i16": "int16"}
_TYPES |= {"i8": "int8", "ui8": "uint8", "b": "bool", "bool": "bool"}
_VERSIONS = {1, 2, 3, 4}
_PARAMETER = "p"


def read_signature(path: Path, name: str) -> Signature:
    """Read feeds and fetches from a program.

    Args:
        path: Where its bytes are.
        name: What it is called in its bundle.

    Raises:
        InputError: it is not a program this version knows.
    """
    unknown = InputError(
        f"{name} does not say what it is fed and answers",
        hint="give the bundle a signature: cloudedge bundle pack --signature",
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
    """Give inputs and outputs the names that Paddle Serving's description of a model has for clients.

    Types and shapes stay the program's: the description leaves sizes out that vary. Outputs that the program calls
    otherwise are known by their place, as Paddle Serving knows them.

    Raises:
        InputError: it describes another model.
        ConfigError: it cannot be read.
    """
    from cloudedge.serving import conf  # noqa: PLC0415 - protobuf

    told = conf.signature_of(conf.read_text(conf.GeneralModelConfig, path.read_text(errors="replace"), DESCRIPTION))
    feeds = {variable.name: variable.alias for variable in told.feed}
    fetches = {variable.name: variable.alias for variable in told.fetch}
    if fetches.keys() != {variable.name for variable in signature.fetch}:
        names = [variable.alias or variable.name for variable in told.fetch]
        fetches = dict(zip([variable.name for variable in signature.fetch], names, strict=False))
    if feeds.keys() != {variable.name for variable in signature.feed} or len(told.fetch) != len(signature.fetch):
        raise InputError(
            f"{DESCRIPTION} describes another model: it has the inputs {sorted(feeds)} and {len(told.fetch)} outputs, "
            f"the program {sorted(variable.name for variable in signature.feed)} and {len(signature.fetch)}",
            hint="Put the description of this model beside it, or take it away: then the program's own names hold.",
        )

    def named(variables: tuple[Variable, ...], aliases: Mapping[str, str]) -> tuple[Variable, ...]:
        return tuple(variable.model_copy(update={"alias": aliases[variable.name]}) for variable in variables)

    return Signature(feed=named(signature.feed, feeds), fetch=named(signature.fetch, fetches))


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
