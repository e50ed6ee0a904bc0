"""Deliveries of tables for the command line: opened from the options that name the servers, and printed."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cloudedge.cli._context import configuration
from cloudedge.cli._output import json_out, say, size, table_out
from cloudedge.cli.cube_net import TOKEN_VARIABLE
from cloudedge.cli.cube_status import read_layout
from cloudedge.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from cloudedge.cube.delivery import Delivery, DeliveryPlan, ServerLayout, SwitchReport

__all__ = ["delivery_to", "mixed_for", "open_delivery", "show_plan"]


def open_delivery(
    to: str,
    *,
    layout: Path | None,
    conf: Path | None,
    config: Path | None,
    work: Path | None,
    files_host: str,
    limit_mb_s: float | None,
    through_agent: bool,
) -> AbstractContextManager[Delivery]:
    """Open a delivery to an entry of cloudedge.yaml, to a layout, or to a transfer.conf's servers.

    Raises:
        InputError: servers are named twice or not at all, or with options that do not apply.
    """
    from cloudedge.cube.upstream import ConfiguredTransfer  # noqa: PLC0415 - numpy is not needed for --help

    if sum(map(bool, (to, layout, conf, config))) != 1:
        raise InputError("name the servers once: with --to, --layout, --conf or --config")
    token = os.environ.get(TOKEN_VARIABLE, "")
    if to:
        if work or files_host or limit_mb_s or through_agent:
            raise InputError(
                "--work, --files-host, --limit-mb-s and --through-agent do not go with --to; cloudedge.yaml has them"
            )
        return ConfiguredTransfer(to, configuration(), token=token).delivery()
    if config:
        if work:
            raise InputError("--work does not go with --config: its work is below the file's output_address")
        return _to_upstream(config, files_host, limit_mb_s, through_agent=through_agent)
    if through_agent:
        raise InputError("--through-agent goes with --config: cloudedge's own servers have no agents")
    return delivery_to(read_layout(layout, conf), work, token, files_host, limit_mb_s)


def delivery_to(
    places: ServerLayout, work: Path | None, token: str, files_host: str, limit_mb_s: float | None
) -> Delivery:
    """Open a delivery to cloudedge's own servers."""
    from cloudedge.cube.delivery import ArtifactCache, Delivery  # noqa: PLC0415

    return Delivery(
        places.replicas(token=token),
        ArtifactCache(work or "cube-work"),
        files_host=files_host or "127.0.0.1",
        files_token=token,
        limit_bytes_per_s=None if limit_mb_s is None else limit_mb_s * 1e6,
    )


@contextmanager
def _to_upstream(config: Path, files_host: str, limit_mb_s: float | None, *, through_agent: bool) -> Iterator[Delivery]:
    """Open a delivery to a transfer.conf's servers, with the journal of `cube transfer`."""
    from cloudedge.cube import TransferConf  # noqa: PLC0415
    from cloudedge.cube.upstream import TransferOptions, UpstreamFleet  # noqa: PLC0415

    options = TransferOptions(
        files_host=files_host,
        limit_bytes_per_s=None if limit_mb_s is None else limit_mb_s * 1e6,
        through_agent=through_agent,
    )
    with UpstreamFleet([TransferConf.from_file(config)], options=options) as fleet, fleet.delivery() as delivery:
        yield delivery


def show_plan(plan: DeliveryPlan | None, guarantee: str, *, as_json: bool) -> None:
    """Print the plan of a delivery, and the guarantee that readers have meanwhile."""
    if as_json:
        steps = {"bytes": 0, "steps": [], "refusals": []} if plan is None else plan.as_json()
        json_out({**steps, "guarantee": guarantee})
        return
    if plan is None:
        say("nothing was under way")
        return
    table_out(
        ("step", "replica", "version", "size", "why"),
        [(step.kind, step.replica, step.version, size(step.bytes), step.reason) for step in plan.steps],
    )
    for refusal in plan.refusals:
        say("[bold red]refused[/]: {}", refusal.message)
    say("{}", guarantee)


def mixed_for(switch: SwitchReport | None) -> str:
    """Return the time that versions were mixed, as text; empty without a switch."""
    return f", mixed for at most {switch.mixed_at_most_s * 1000:.1f} ms" if switch else ""
