"""``cloudedge key``: create keys that sign bundles."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from cloudedge.cli._output import DRY_RUN, JSON, json_out, say

__all__ = ["app", "passphrase"]

app = typer.Typer(no_args_is_help=True, help="Create keys that sign bundles.")

_PASSPHRASE_VARIABLE = "CLOUDEDGE_KEY_PASSPHRASE"  # noqa: S105 - the name of a variable


@app.command()
def new(
    name: str = typer.Argument("cloudedge", help="Files are NAME.key (private) and NAME.pub (public)."),
    folder: Path = typer.Option(Path(), "--dir", metavar="DIR", help="The folder to write them to."),
    no_passphrase: bool = typer.Option(False, help="Leave the private key unprotected, for machines."),
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:
    """Create a key pair (ECDSA P-256). Give the public half to verifiers; `cosign` reads it, too."""
    from cloudedge.bundle import new_key_pair  # noqa: PLC0415 - cryptography is not needed for --help

    if dry_run:
        say("would write {} and {}", folder / f"{name}.key", folder / f"{name}.pub")
        return
    secret = None
    if not no_passphrase:
        secret = os.environ.get(_PASSPHRASE_VARIABLE) or typer.prompt(
            "passphrase for the private key", hide_input=True, confirmation_prompt=True, err=True
        )
    private, public = new_key_pair(folder, name, secret.encode() if secret else None)
    if as_json:
        json_out({"private": str(private), "public": str(public)})
    else:
        typer.echo(f"{private}\n{public}")
        say("next: cloudedge bundle sign REF --key {}", private)


def passphrase(key: Path) -> bytes | None:
    """Return the passphrase of a private key: from the environment or the terminal; None if the key needs none."""
    from cloudedge.bundle import needs_passphrase  # noqa: PLC0415

    if not needs_passphrase(key):
        return None
    secret: str = os.environ.get(_PASSPHRASE_VARIABLE) or typer.prompt(
        f"passphrase of {key}", hide_input=True, err=True
    )
    return secret.encode()
