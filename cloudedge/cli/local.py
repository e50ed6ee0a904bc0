"""`cloudedge up | down`: start and end a target's servers, as local processes or as pods."""

from __future__ import annotations

import typer

from cloudedge.cli._output import DRY_RUN, JSON, json_out, say, table_out, yaml_out

__all__ = ["down", "up"]

TARGET = typer.Argument(..., help="A target of cloudedge.yaml, of the kind local or kubernetes.")


def up(
    target: str = TARGET,
    within_s: float = typer.Option(120.0, help="How long to wait for every process or pod."),
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:
    """Start a target's servers: processes that outlive this terminal, or pods. Running ones stay.

    With --dry-run, print the objects that a cluster would be given as YAML.

    Example: cloudedge up local
    """
    if _is_kubernetes(target):
        _up_pods(target, within_s, dry_run=dry_run, as_json=as_json)
        return
    from cloudedge.release.local import find_processes, layout_of  # noqa: PLC0415 - slow to import
    from cloudedge.release.local import up as start  # noqa: PLC0415

    layout = layout_of(target) if dry_run else start(target, within_s=within_s)
    servers = [*layout.sparse(), *layout.dense()]
    running = find_processes(layout.folder)
    pids = {server.place: running.get(server.process) for server in servers}
    if as_json:
        places = {server.place: server.address for server in servers}
        json_out({"folder": str(layout.folder), "places": places, "pids": pids})
    else:
        rows = [(server.place, server.address, server.admin, pids[server.place] or "") for server in servers]
        table_out(("place", "address", "admin", "pid"), rows)
    if dry_run:
        say("nothing was started")
    else:
        say("Logs are in {}. Next, run `cloudedge release BUNDLE --to {}`.", layout.folder / "logs", target)


def down(
    target: str = TARGET,
    everything: bool = typer.Option(
        False,
        "--everything",
        help="kubernetes: also delete volumes, addresses and the versions that serving shall have.",
    ),
    dry_run: bool = DRY_RUN,
) -> None:
    """End a target's servers; after the next `up` they answer with the versions they have now.

    Example: cloudedge down local
    """
    if _is_kubernetes(target):
        from cloudedge.release.kubernetes import down as end  # noqa: PLC0415 - slow to import

        for each in end(target, everything=everything, dry_run=dry_run):
            say("{} {}", "would delete" if dry_run else "deleted", each)
        return
    from cloudedge.release.local import down as stop  # noqa: PLC0415 - slow to import
    from cloudedge.release.local import find_processes, target_folder  # noqa: PLC0415

    running = find_processes(target_folder(target))
    if not dry_run:
        stop(target)
    say("{} {} processes", "would end" if dry_run else "ended", len(running))


def _is_kubernetes(target: str) -> bool:
    from cloudedge.config import load  # noqa: PLC0415 - slow to import

    section = load().targets.get(target)
    return section is not None and section.kind == "kubernetes"


def _up_pods(target: str, within_s: float, *, dry_run: bool, as_json: bool) -> None:
    from cloudedge.release.kubernetes import manifests  # noqa: PLC0415 - slow to import
    from cloudedge.release.kubernetes import up as start  # noqa: PLC0415

    if dry_run:
        found = manifests(target)
        json_out(found) if as_json else yaml_out(*found)
        return
    standing = start(target, within_s=within_s)
    if as_json:
        json_out({"namespace": standing.namespace, "places": standing.places, "notices": standing.notices})
    else:
        table_out(("place", "service"), list(standing.places.items()))
    for notice in standing.notices:
        say("notice: {}", notice)
    say("The namespace is {}. Next, run `cloudedge release BUNDLE --to {}`.", standing.namespace, target)
