"""The command line: a thin skin over the Python API. Parse, call, print.

Results go to standard output, everything else to standard error. Exit codes: 0 done, 1 refused or failed,
2 bad usage, 3 partly done and resumable.
"""

from __future__ import annotations

import sys

import typer

from cloudedge.cli import (
    bie,
    bundle,
    bundle_split,
    config,
    cube,
    cube_deliver,
    cube_net,
    cube_status,
    cube_transfer,
    dataset,
    dataset_cluster,
    doctor,
    edge,
    fleet,
    hub,
    image,
    key,
    local,
    pipeline,
    predict,
    release,
    serve,
    serving,
    serving_docker,
    simulate,
    train,
)
from cloudedge.cli._output import say
from cloudedge.errors import CloudEdgeError

__all__ = ["app", "main"]

app = typer.Typer(
    name="cloudedge",
    help="One release, one version, everywhere, or nothing: model release for PaddlePaddle.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

bundle.app.add_typer(bundle_split.app)  # without a name: its command stands beside the others
app.add_typer(bundle.app, name="bundle", rich_help_panel="Models")
app.add_typer(hub.app, name="hub", rich_help_panel="Models")
app.add_typer(key.app, name="key", rich_help_panel="Models")
cube.app.add_typer(cube_net.app)  # likewise
cube.app.add_typer(cube_status.app)
cube.app.add_typer(cube_deliver.app)
cube.app.add_typer(cube_transfer.app)
app.add_typer(cube.app, name="cube", rich_help_panel="Sparse tables")
app.add_typer(train.app, name="train", rich_help_panel="Training")
app.command("serve", rich_help_panel="Serving")(serve.serve)
serving.app.add_typer(serving_docker.app)
app.add_typer(serving.app, name="serving", rich_help_panel="Serving")
app.command(rich_help_panel="Serving")(predict.predict)
release.register(app)
app.command("up", rich_help_panel="Releases")(local.up)
app.command("down", rich_help_panel="Releases")(local.down)
app.add_typer(edge.app, name="edge", rich_help_panel="Edge")
app.add_typer(fleet.app, name="fleet", rich_help_panel="Edge")
app.add_typer(simulate.app)
app.add_typer(bie.app, name="bie", rich_help_panel="Edge")
dataset.app.add_typer(dataset_cluster.app)
app.add_typer(dataset.app, name="dataset", rich_help_panel="Training")
app.add_typer(image.app, name="image", rich_help_panel="Set-up")
app.add_typer(pipeline.app, name="pipeline", rich_help_panel="Training")
app.add_typer(config.app, name="config", rich_help_panel="Set-up")
app.command("doctor", rich_help_panel="Set-up")(doctor.doctor)


def _version(show: bool) -> None:
    if show:
        from cloudedge import __version__  # noqa: PLC0415 - not needed otherwise

        typer.echo(f"cloudedge {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version and stop."),
) -> None:
    pass


def main() -> None:
    """Run the command line and turn cloudedge's errors into messages and exit codes."""
    try:
        app()
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
