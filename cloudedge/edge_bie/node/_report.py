"""A node's report, from its saved state and its observations. Pure; the fields are those that BIE stores and shows.

Beyond BAETYL's entries, an app of cloudedge has two more: ``cloudedge-verify`` among ``initContainers`` (Terminated:
Completed, or the refusal; Waiting while bytes are on their way) and ``cloudedge-probe`` among ``containers`` (Running:
ProbePassed, or Waiting: ProbeFailed).
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cloudedge.edge_bie.model import PROBE, VERIFY, AppRef
from cloudedge.edge_bie.node._runtime import ObservedService
from cloudedge.edge_bie.node._units import NodeState, Unit
from cloudedge.errors import CloudEdgeError, StorageError

__all__ = ["Phase", "Trouble", "app_stats", "make_report", "trouble_of"]

Phase = Literal["waiting", "verifying", "starting"]
"""The phase of an app: not begun; fetching and checking; running on trial."""

_REFUSED = {"Conflict": "Replayed", "IntegrityError": "Tampered"}
_FAILED = {"Conflict": "PortConflict", "Rejected": "CreateContainerError", "StorageError": "StorageError"}
"""Report names of errors before and after a version was started; others get their class name, or ProbeFailed."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_CAUSE = 4000
"""Most characters of a cause: a report has it twice, and BIE keeps 64 KiB of one."""


@dataclass(frozen=True)
class Trouble:
    """The reason why a desired app is not live, or not yet."""

    phase: Phase
    reason: str
    """One word: Downloading, SignatureInvalid, ProbeFailed."""
    cause: str = ""
    """A sentence; empty while the app may still become live without help."""


def trouble_of(error: CloudEdgeError, phase: Phase) -> Trouble:
    """Return the report's form of an error; a temporary one has no cause."""
    kind, cause = type(error).__name__, error.message[:_CAUSE]
    if isinstance(error, StorageError) and error.facts.get("errno") in _FULL:
        return Trouble(phase, "DiskFull", cause)
    if phase == "starting":
        return Trouble(phase, _FAILED.get(kind, "ProbeFailed"), cause)
    if error.retry_helps:
        return Trouble(phase, "Downloading" if phase == "verifying" else "Pending")
    return Trouble(phase, _REFUSED.get(kind, kind), cause)


def make_report(
    state: NodeState,
    *,
    stats: Sequence[Mapping[str, Any]],
    machine: str,
    node: Mapping[str, Any],
    nodestats: Mapping[str, Any],
    version: str,
    free: int = 0,
) -> dict[str, Any]:
    """Return the report of a node.

    Args:
        state: The node's saved state.
        stats: The `app_stats` of each app.
        machine: The machine's name.
        node: The machine's properties.
        nodestats: The machine's load.
        version: Version of cloudedge.
        free: Free bytes for apps.
    """
    live = {slot.live.ref: slot.live for slot in state.slots.values() if slot.live is not None}
    wanted = [ref for ref in state.desire.apps if ref in live]  # in the order of the desire, or BIE sees a difference
    ours = {
        "fetched": state.fetched,
        "kept": state.kept,
        "free": free,
        "live": {
            unit.slot: {"revision": unit.revision, "sequence": unit.sequence, "bundle": unit.bundle}
            for unit in live.values()
            if unit.revision
        },
    }
    return {
        "apps": [ref.to_json() for ref in (*wanted, *(ref for ref in live if ref not in wanted))],
        "sysapps": [ref.to_json() for ref in state.desire.sysapps],
        **({} if state.desire.nodeprops is None else {"nodeprops": dict(state.desire.nodeprops)}),
        "appstats": list(stats),
        "sysappstats": [],
        "core": {"goVersion": "", "binVersion": f"cloudedge-{version}", "gitRevision": ""},
        "modeinfo": f"cloudedge {version}",
        "node": {machine: dict(node)},
        "nodestats": {machine: {**nodestats, "extension": {"cloudedge": ours}}},
        "nodeinsnum": {machine: len(live)},
    }


def app_stats(
    ref: AppRef,
    *,
    machine: str,
    unit: Unit | None = None,
    observed: Mapping[str, ObservedService] | None = None,
    probe: str | None = None,
    trouble: Trouble | None = None,
) -> dict[str, Any]:
    """Return the entry of one app.

    Args:
        ref: The app.
        machine: The machine's name.
        unit: Its running unit, if there is one.
        observed: The state of its services.
        probe: The last failure of its probes: empty if they passed, None if there was no probe yet.
        trouble: The reason why it is not live.
    """
    containers = [{"name": name, "state": seen.state, "reason": seen.reason} for name, seen in (observed or {}).items()]
    is_ours = trouble is not None or (unit is not None and unit.revision != "")
    verify = {"name": VERIFY, "state": "Terminated", "reason": "Completed"}
    if trouble is not None and trouble.phase != "starting":
        state = "Terminated" if trouble.cause else "Waiting"
        verify = {"name": VERIFY, "state": state, "reason": trouble.reason}
    elif is_ours:
        failed = trouble.reason if trouble else "ProbeFailed" if probe else "ProbePending" if probe is None else ""
        containers.append(
            {"name": PROBE, "state": "Waiting" if failed else "Running", "reason": failed or "ProbePassed"}
        )
    ended = next((f"{name}: {seen.detail}" for name, seen in (observed or {}).items() if seen.detail), "")
    cause = (trouble.cause if trouble else probe or ended) or ""
    is_up = bool(containers) and all(item["state"] == "Running" for item in containers)
    status = "Failed" if trouble and trouble.cause else "Running" if is_up and not trouble else "Pending"
    name = f"{ref.name}-{ref.version[-6:].lower()}"
    instance = {
        "name": name,
        "appName": ref.name,
        "status": status,
        "cause": cause,
        "ip": "",
        "nodeName": machine,
        "createTime": unit.created if unit else "",
        "usage": {},
        "containers": containers,
        "initContainers": [verify] if is_ours else [],
    }
    return {
        "name": ref.name,
        "version": ref.version,
        "deployType": "deployment",
        "status": status,
        "cause": cause,
        "instances": {name: {key: value for key, value in instance.items() if key != "createTime" or value}},
    }
