"""The command line: a thin skin over the Python API. Parse, call, print.

Results go to standard output, everything else to standard error. Exit codes: 0 done, 1 refused or failed,
2 bad usage, 3 partly done and resumable.
"""

from __future__ import annotations

import importlib
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

import typer

from cloudedge.cli._output import say
from cloudedge.errors import CloudEdgeError

if TYPE_CHECKING:
    app: typer.Typer

__all__ = ["app", "main"]

_MODELS, _TABLES, _TRAINING, _SERVING = "Models", "Sparse tables", "Training", "Serving"
_RELEASES, _EDGE, _SETUP = "Releases", "Edge", "Set-up"
_RELEASE_VERBS = ("release", "plan", "status", "watch", "history", "rollback", "resume", "promote", "abort")

_COMMANDS = {
    "serve": (_SERVING, "serve"),
    "predict": (_SERVING, "predict"),
    **dict.fromkeys(_RELEASE_VERBS, (_RELEASES, "release")),
    "up": (_RELEASES, "local"),
    "down": (_RELEASES, "local"),
    "simulate": (_RELEASES, "simulate"),
    "doctor": (_SETUP, "doctor"),
}
"""By name: the heading in --help, and the module with a function of that name."""

_GROUPS = {
    "bundle": (_MODELS, "bundle", "bundle_split"),
    "hub": (_MODELS, "hub"),
    "journal": (_RELEASES, "journal"),
    "key": (_MODELS, "key"),
    "cube": (_TABLES, "cube", "cube_net", "cube_status", "cube_deliver", "cube_transfer"),
    "train": (_TRAINING, "train"),
    "serving": (_SERVING, "serving", "serving_docker"),
    "edge": (_EDGE, "edge"),
    "fleet": (_EDGE, "fleet"),
    "bie": (_EDGE, "bie"),
    "dataset": (_TRAINING, "dataset", "dataset_cluster"),
    "image": (_SETUP, "image"),
    "pipeline": (_TRAINING, "pipeline"),
    "config": (_SETUP, "config"),
}
"""By name: the heading, and the modules with the commands in their `app`; later ones' stand beside the first's."""


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module 'cloudedge.cli' has no attribute {name!r}")
    return _app()


@cache
def _app(only: str = "") -> typer.Typer:
    """Make the command line; with `only`, no more of it than that command or group.

    Importing the other commands would take most of the time in which a command starts.
    """
    made = typer.Typer(
        name="cloudedge",
        help="One release, one version, everywhere, or nothing: model release for PaddlePaddle.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback()(_root)
    for name, (panel, module) in _COMMANDS.items():
        if only in ("", name):
            made.command(name, rich_help_panel=panel)(getattr(importlib.import_module(f"{__name__}.{module}"), name))
    for name, (panel, *modules) in _GROUPS.items():
        if only in ("", name):
            made.add_typer(_group(*modules), name=name, rich_help_panel=panel)
    return made


@cache
def _group(*modules: str) -> typer.Typer:
    apps: list[typer.Typer] = [importlib.import_module(f"{__name__}.{module}").app for module in modules]
    for other in apps[1:]:
        apps[0].add_typer(other)
    return apps[0]


def _version(show: bool) -> None:
    if show:
        from cloudedge import __version__  # noqa: PLC0415 - not needed otherwise

        typer.echo(f"cloudedge {__version__}")
        raise typer.Exit


def _root(
    _: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version and stop."),
) -> None:
    pass


def main() -> None:
    """Run the command line and turn cloudedge's errors into messages and exit codes."""
    asked = sys.argv[1] if len(sys.argv) > 1 else ""
    try:
        _app(asked if asked in _COMMANDS or asked in _GROUPS else "")()
    except CloudEdgeError as error:
        say(f"[bold red]error[/]: {{}}{'' if not error.hint else chr(10) + '  {}'}", error.message, error.hint)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        say("interrupted; what was finished is kept")
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output went away, as `head` does; nothing is wrong here.
        sys.stderr.close()
        sys.exit(0)
