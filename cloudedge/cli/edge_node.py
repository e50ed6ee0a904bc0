"""`cloudedge edge node`: an edge node's agent."""

from __future__ import annotations

import logging
from pathlib import Path

import typer

from cloudedge.cli._output import JSON, json_out, say, table_out
from cloudedge.cli._signals import STOP, on_signals
from cloudedge.errors import ConfigError, InputError

__all__ = ["node"]


def node(
    cloud: str = typer.Option(..., metavar="URL", help="The cloud's sync port: http://HOST:9005, or https://... ."),
    name: str = typer.Option(..., help="The node's name in the cloud."),
    state: Path | None = typer.Option(
        None, metavar="DIR", help="Folder of the node's files and state; ~/.cloudedge/nodes/NAME if left out."
    ),
    namespace: str = typer.Option("baetyl-cloud", help="The node's namespace."),
    key: Path | None = typer.Option(
        None,
        metavar="FILE",
        help="Public key: run only apps signed with it, model, script and settings. Without it, every app runs.",
    ),
    allow_privileged: bool = typer.Option(
        False, "--allow-privileged", help="docker: run containers privileged if an app asks for it, signed or not."
    ),
    allow_host_path: list[Path] = typer.Option(
        [], metavar="DIR", help="Folder of this machine that apps may mount, with all below it; may be repeated."
    ),
    runtime: str = typer.Option("process", help="process, or docker."),
    port_map: list[str] = typer.Option(
        [], metavar="HOST=OTHER", help="Listen on OTHER where an app wants HOST; may be repeated."
    ),
    address: str = typer.Option("127.0.0.1", help="Address of apps' ports; 0.0.0.0 opens them to other machines."),
    interval_s: float = typer.Option(20.0, min=0.05, help="Interval of reports; up to a tenth longer at random."),
    probe_timeout_s: float = typer.Option(120.0, min=1, help="Longest time until a new version answers."),
    probe_interval_s: float = typer.Option(60.0, min=1, help="Interval of the live version's probes."),
    limit_kb_s: int = typer.Option(0, min=0, help="Download no faster than this; 0: no limit."),
    cert: Path | None = typer.Option(None, metavar="FILE", help="The node's certificate, for https."),
    cert_key: Path | None = typer.Option(None, metavar="FILE", help="Its key."),
    ca: Path | None = typer.Option(None, metavar="FILE", help="CA of the cloud's certificate."),
    insecure: bool = typer.Option(False, "--insecure", help="Do not check the cloud's certificate, as stock nodes do."),
    on_stop: str = typer.Option("keep", help="What SIGTERM does to apps: keep them running, or stop them."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Only show the saved state; report and change nothing."),
    as_json: bool = JSON,
) -> None:
    """Run an edge node until SIGTERM: report, fetch, verify, and run the desired apps.

    Example: cloudedge edge node --cloud http://127.0.0.1:9005 --name n1 --key release.pub
    """
    from cloudedge.config import home  # noqa: PLC0415 - slow to import
    from cloudedge.edge_bie.model import check_name  # noqa: PLC0415
    from cloudedge.edge_bie.node import (  # noqa: PLC0415 - slow to import
        DockerRuntime,
        Link,
        NodeAgent,
        NodeSettings,
        ProcessRuntime,
        Rights,
        Supervised,
        remembered,
    )

    if runtime not in ("process", "docker"):
        raise ConfigError(f"--runtime is process or docker, not {runtime!r}")
    if on_stop not in ("keep", "stop"):
        raise ConfigError(f"--on-stop is keep or stop, not {on_stop!r}")
    for each in allow_host_path:
        if not each.is_absolute():
            raise ConfigError(f"--allow-host-path is an absolute path, not {str(each)!r}")
    check_name(name, what="node")  # it also names a folder
    state = (state or home() / "nodes" / name).absolute()
    if dry_run:
        known = remembered(state)
        columns = ("live", "previous", "bundle", "highest")
        rows = [(app, *(slot[column] or "" for column in columns)) for app, slot in known["slots"].items()]
        json_out(known) if as_json else table_out(("app", *columns), rows)
        return
    if bool(cert) != bool(cert_key):
        raise ConfigError("--cert and --cert-key go together")
    if key is not None and not key.is_file():
        raise InputError(f"there is no key file {key}")
    link = Link(
        cloud,
        name,
        namespace=namespace,
        certificate=(cert, cert_key) if cert and cert_key else None,
        authority=ca,
        insecure=insecure,
    )
    supervised = Supervised(state / "processes", address=address, port_map=_ports(port_map))
    runs = DockerRuntime(supervised, state) if runtime == "docker" else ProcessRuntime(supervised)
    settings = NodeSettings(
        name,
        state,
        namespace=namespace,
        key=key.absolute() if key else None,
        rights=Rights(privileged=allow_privileged, host_paths=tuple(allow_host_path)),
        interval_s=interval_s,
        probe_timeout_s=probe_timeout_s,
        probe_interval_s=probe_interval_s,
        bytes_per_s=limit_kb_s * 1000,
        address="" if address in ("127.0.0.1", "0.0.0.0", "::") else address,  # noqa: S104 - compared, not bound
    )
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    agent = NodeAgent(settings, link, runs)
    on_signals(agent.stop, *STOP)
    say("node {} follows {}; stop with SIGTERM", name, cloud)
    try:
        agent.run()
    finally:
        agent.close()
    if on_stop == "stop":
        runs.stop()


def _ports(words: list[str]) -> dict[int, int]:
    try:
        pairs = [word.split("=", 1) for word in words]
        return {int(host): int(other) for host, other in pairs}
    except ValueError:
        raise ConfigError(f"--port-map is HOST=OTHER, two ports, not {' '.join(words)!r}") from None
