"""``cloudedge config``: check and show cloudedge.yaml."""

from __future__ import annotations

from pathlib import Path

import typer

from cloudedge.cli._output import JSON, json_out, say, yaml_out

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Check cloudedge.yaml, and show it with all defaults.")


@app.command()
def check(
    file: Path = typer.Argument(None, help="The file; searched for in this folder and those above if left out."),
) -> None:
    """Check cloudedge.yaml, and list the errors with their paths."""
    from cloudedge.config import load  # noqa: PLC0415 - slow to import

    config = load(file)
    say("[green]ok[/]: {} hubs, {} targets", len(config.hubs), len(config.targets))


@app.command()
def show(
    file: Path = typer.Argument(None, help="The file; searched for in this folder and those above if left out."),
    as_json: bool = JSON,
) -> None:
    """Print the configuration with every default filled in. Secrets appear as references, never revealed."""
    from cloudedge.config import load  # noqa: PLC0415 - slow to import

    value = load(file).model_dump(mode="json")
    if as_json:
        json_out(value)
    else:
        yaml_out(value)
