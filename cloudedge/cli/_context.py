"""Helpers shared by commands: the configuration, the local hub, hubs by name, and tokens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cloudedge.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from cloudedge.config import Config
    from cloudedge.hub import Hub, LocalHub

__all__ = ["HUB", "LOCAL", "configuration", "local_hub", "named_hub", "read_option", "read_token"]

LOCAL = typer.Option(
    None, "--local", metavar="DIR", help="The local hub; ~/.cloudedge/hub (or $CLOUDEDGE_HOME/hub) if left out."
)
HUB = typer.Argument(
    None, metavar="[HUB]", help="A hub from cloudedge.yaml, a URL or a directory; the default hub if left out."
)


def configuration() -> Config:
    """Read cloudedge.yaml."""
    from cloudedge.config import load  # noqa: PLC0415 - slow to import

    return load()


def local_hub(path: Path | None) -> LocalHub:
    """Open the local hub."""
    from cloudedge.hub import LocalHub  # noqa: PLC0415 - slow to import

    return LocalHub(path)


def named_hub(name: str | None, config: Config) -> Hub:
    """Open a hub by its name in cloudedge.yaml, by URL or by path.

    Raises:
        ConfigError: the name is unknown, or none is given and there is no default.
    """
    from cloudedge.hub import LocalHub, open_hub  # noqa: PLC0415 - slow to import

    wanted = name or config.default_hub
    if wanted is None:
        raise ConfigError(
            "no hub is named, and cloudedge.yaml sets no default_hub",
            hint="Name one: a URL (s3://..., bos://..., oci://...), a directory, or a name from cloudedge.yaml.",
        )
    if wanted in config.hubs:
        return open_hub(config.hubs[wanted])
    if wanted == "local":
        return LocalHub()
    if "/" in wanted or wanted.startswith((".", "~")):
        return open_hub(wanted)
    known = ", ".join(sorted({*config.hubs, "local"}))
    raise ConfigError(
        f"the hub {wanted!r} does not exist", hint=f"Use one of {known}, or a directory with a slash: ./hub."
    )


def read_token(file: Path | None) -> str | None:
    """Read a token from a file, if one is given.

    Raises:
        StorageError: the file cannot be read.
        ConfigError: the file is empty.
    """
    if file is None:
        return None
    try:
        token = file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise StorageError(f"cannot read the token from {file}: {error.strerror}") from error
    if not token:
        raise ConfigError(f"the token file {file} is empty", hint="Write the token into it, on its own line.")
    return token


def read_option(kind: Any, text: str, option: str) -> Any:
    """Read an option as cloudedge.yaml would, such as a duration or a share."""
    from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415

    try:
        return TypeAdapter(kind).validate_python(text)
    except ValidationError as error:
        why = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise typer.BadParameter(f"{text!r}: {why}", param_hint=option) from None
