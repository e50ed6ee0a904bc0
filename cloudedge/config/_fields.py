"""Value types of ``cloudedge.yaml`` (durations, sizes, shares, secrets), and the messages about bad values."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError

from cloudedge.errors import ConfigError

__all__ = ["Address", "Duration", "Name", "Secret", "Section", "Share", "Size", "explain", "reveal"]

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_BYTES = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "ki": 1024, "mi": 1024**2, "gi": 1024**3}


def _duration(value: Any) -> Any:
    if isinstance(value, str) and value[:-1].isdecimal() and value[-1:] in _UNITS:
        return timedelta(seconds=int(value[:-1]) * _UNITS[value[-1]])
    raise ValueError("wanted a number and a unit, such as 30s, 10m, 12h, 30d or 4w")


def _size(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    text = str(value).strip().lower().removesuffix("b")
    digits = text.rstrip("kmgi")
    if digits.isdecimal() and text[len(digits) :] in _BYTES:
        return int(digits) * _BYTES[text[len(digits) :]]
    raise ValueError("wanted bytes, such as 500MB, 64MiB or 1048576")


def _share(value: Any) -> Any:
    if isinstance(value, str) and value.endswith("%"):
        return float(value[:-1]) / 100
    return value


def _secret(value: str) -> str:
    kind, colon, rest = value.partition(":")
    if kind not in ("env", "file") or not colon or not rest:
        # The value may be a secret pasted here by mistake: the message does not repeat it.
        raise ValueError("wanted env:NAME or file:PATH; secrets are not written into cloudedge.yaml")
    return value


Duration = Annotated[timedelta, BeforeValidator(_duration), PlainSerializer(lambda t: f"{int(t.total_seconds())}s")]
Size = Annotated[int, BeforeValidator(_size), Field(gt=0)]
Secret = Annotated[str, AfterValidator(_secret)]
Share = Annotated[float, BeforeValidator(_share), Field(ge=0, le=1)]
Address = Annotated[str, Field(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}$")]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]


def reveal(secret: str) -> str:
    """Return the secret that ``env:NAME`` or ``file:PATH`` stands for.

    Raises:
        ConfigError: the variable is not set or the file cannot be read.
    """
    kind, _, where = secret.partition(":")
    if kind == "env":
        value = os.environ.get(where)
        if value is None:
            raise ConfigError(
                f"the environment variable {where} is not set", hint=f"Set it: cloudedge.yaml refers to it as {secret}."
            )
        return value
    try:
        # A trailing newline comes from the editor, not from the secret.
        return Path(where).expanduser().read_text(encoding="utf-8").removesuffix("\n")
    except OSError as error:
        raise ConfigError(f"cannot read the secret file {where}: {error.strerror}") from error


class Section(BaseModel):
    """A part of the file; unknown keys are refused."""

    # Built on first use: most commands never read the file, and building all parts takes as long as such a command.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, defer_build=True)


def explain(path: Path | str, error: ValidationError) -> str:
    """List every problem with its path and, unless it may be a secret, the value found."""
    lines = [f"{path}:"]
    for item in error.errors():
        where = ".".join(str(step) for step in item["loc"]) or "the file"
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            message = "cloudedge knows no such key"
        shown = item["input"] if isinstance(item["input"], (str, int, float, bool)) else type(item["input"]).__name__
        is_secret = where.rsplit(".", 1)[-1] in {"secret_key", "password", "session_token", "auth_value", "token"}
        lines.append(f"  {where}: {message}" + ("" if is_secret else f" (found {shown!r})"))
    return "\n".join(lines)
