"""``cloudedge edge lab``: run a BIE-compatible control plane on this machine."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import typer

from cloudedge.cli._context import read_token
from cloudedge.cli._output import JSON, json_out, say
from cloudedge.cli._signals import STOP, on_signals
from cloudedge.errors import ConfigError

__all__ = ["lab"]

TOKEN_VARIABLE = "CLOUDEDGE_LAB_TOKEN"  # noqa: S105 - the variable's name, not a token


def lab(
    state: Path = typer.Option(Path("edge-lab"), help="Folder of the lab's state; a restart continues with it."),
    admin: str = typer.Option("127.0.0.1:9004", help="Address of the management API; :0 takes any free port."),
    sync: str = typer.Option("127.0.0.1:9005", help="Address that nodes report to."),
    objects: str = typer.Option("127.0.0.1:9007", help="Address that nodes download from."),
    objects_folder: Path | None = typer.Option(None, help="Folder of the objects; STATE/objects by default."),
    namespace: str = typer.Option("baetyl-cloud", help="The only namespace."),
    faults: int | None = typer.Option(
        None, metavar="SEED", help="Inject faults: delays, errors, broken connections, lost writes."
    ),
    token_file: Path | None = typer.Option(
        None, help=f"File with the token that clients must send, instead of {TOKEN_VARIABLE}; needed beyond loopback."
    ),
    as_json: bool = JSON,
) -> None:
    """Run a control plane that behaves like BIE's until SIGTERM, traps included.

    Example: cloudedge edge lab --state lab --admin :9004 --sync :9005 --objects :9007
    """
    try:
        from cloudedge.edge_bie.lab import Faults, Lab  # noqa: PLC0415 - not needed for --help
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the lab needs {error.name}", hint="Install it with `pip install 'cloudedge[serve]'`."
        ) from error

    running = Lab(
        state,
        admin=admin,
        sync=sync,
        objects=objects,
        objects_folder=objects_folder,
        namespace=namespace,
        faults=None if faults is None else Faults(seed=faults),
        token=read_token(token_file) or os.environ.get(TOKEN_VARIABLE) or None,
    )
    stop = threading.Event()
    on_signals(stop.set, *STOP)
    with running:
        where = {"admin": running.admin_url, "sync": running.sync_url, "objects": running.objects_url}
        if as_json:
            json_out({**where, "folder": str(running.objects), "pid": os.getpid()})
        else:
            say("management API on {}, nodes report to {}, objects of {} on {}; stop with SIGTERM",
                where["admin"], where["sync"], running.objects, where["objects"])  # fmt: skip
        stop.wait()
