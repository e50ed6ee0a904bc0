"""`cloudedge predict`: ask a server for one prediction."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import typer

from cloudedge.cli._output import JSON, json_out, say, table_out
from cloudedge.errors import ConfigError, InputError

__all__ = ["predict"]

TOKEN_VARIABLE = "CLOUDEDGE_TOKEN"  # noqa: S105 - the variable's name, not a token


def predict(
    url: list[str] = typer.Argument(
        ...,
        metavar="URL...",
        help="http:// (plain JSON), pipeline+http://host:port/service, general+http://, grpc://, pipeline+grpc://, "
        "brpc://; several are tried in turn.",
    ),
    given: list[str] = typer.Option(
        ..., "--input", "-i", metavar="NAME=VALUE", help="A JSON array, @file.npy or @file.json; once for each input."
    ),
    output: list[str] = typer.Option(
        [], "--output", "-o", metavar="NAME", help="An output to return; all if left out."
    ),
    tag: str | None = typer.Option(None, help="The variant that has to answer."),
    timeout_s: float = typer.Option(20, help="Time-out of the whole call, all tries together."),
    retries: int = typer.Option(3, help="Further tries when no server could answer."),
    as_json: bool = JSON,
) -> None:
    """Ask a server for one prediction; CLOUDEDGE_TOKEN holds the token.

    Example: cloudedge predict http://127.0.0.1:9393 -i 'x=[[0.1, 0.2]]'
    """
    try:
        from cloudedge.serving import Client  # noqa: PLC0415 - numpy is not needed for --help
    except ImportError as error:
        raise ConfigError(f"predictions need {error.name}", hint="Run `pip install 'cloudedge[serve]'`.") from error
    inputs = dict(_input(text) for text in given)
    token = os.environ.get(TOKEN_VARIABLE) or None
    with Client(*url, token=token, timeout_s=timeout_s, retries=retries) as client:
        answer = client.predict(inputs, output, tag=tag)
    if as_json:
        from cloudedge.serving.formats import json_text  # noqa: PLC0415 - as above

        # Not tolist(), which gives a float32 the digits of a double.
        outputs = {name: json.loads(json_text(array)) for name, array in answer.outputs.items()}
        json_out({"outputs": outputs, "pin": answer.pin, "tag": answer.tag, "endpoint": answer.endpoint})
        return
    rows = [(name, str(array.dtype), list(array.shape), _shown(array)) for name, array in answer.outputs.items()]
    table_out(("output", "type", "shape", "values"), rows)
    say("from {}, version {}", answer.endpoint, answer.pin or "(not sent by the server)")


def _input(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InputError(f"input {text!r} is not NAME=VALUE", hint="Write `-i 'x=[[0.1, 0.2]]'` or `-i x=@rows.npy`.")
    from cloudedge.serving.formats import npy_array, parse_array  # noqa: PLC0415

    if not value.startswith("@"):
        return name, parse_array(name, value)
    path = Path(value[1:])
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(f"input {name!r}: cannot read {path}: {error.strerror}") from error
    if path.suffix == ".npy":
        return name, npy_array(name, raw)
    return name, parse_array(name, raw.decode(errors="replace"))


def _shown(array: Any) -> str:
    flat = array.reshape(-1)
    head = " ".join(map(str, flat[:8]))
    return head if flat.size <= 8 else f"{head} ... ({flat.size} values)"  # noqa: PLR2004 - as many as fit a line
