"""The health of an app in a node's report, beyond `Running`: broken containers and unready parts.

Waiting for an app and moving a fleet both use these signs; each draws its own conclusions from them, at its own time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from cloudedge.edge_bie.model import PROBE, VERIFY

if TYPE_CHECKING:
    from cloudedge.edge_bie.client import AppStats, Container, Instance, Report

__all__ = ["broken", "nameless_cause", "unready"]

_PROBE_PASSED: Final = "ProbePassed"
_BROKEN_REASONS: Final = frozenset({
    "CrashLoopBackOff", "CreateContainerConfigError", "CreateContainerError", "DiskFull", "ErrImageNeverPull",
    "ErrImagePull", "Error", "ImageInspectError", "ImagePullBackOff", "InvalidImageName", "OOMKilled", "PortConflict",
    "ProbeFailed", "RunContainerError", "StorageError",
})  # fmt: skip
"""Reasons that do not resolve themselves within ten seconds."""


def broken(instance: Instance) -> str:
    """Describe the container that will not recover by itself; empty: none.

    The container that checks the bytes is left out: its state, with reasons of its own, reports a refusal.
    """
    every = (*instance.containers, *(each for each in instance.init_containers if each.name != VERIFY))
    return next((f"{each.name}: {each.reason}" for each in every if each.reason in _BROKEN_REASONS), "")


def nameless_cause(report: Report) -> str:
    """Return the cause of an app that was not applied: a stock node reports the cause, but not always the app."""
    return next((each.cause for each in report.app_stats if not each.name and each.cause), "")


def unready(stats: AppStats, *, is_job: bool = False) -> Iterator[str]:
    """Yield the parts that are not ready yet, the most important first.

    Args:
        stats: The node's report of the app.
        is_job: True if it may end.
    """
    well = ("Running", "Succeeded") if is_job else ("Running",)
    if stats.status not in well:
        yield f"the app is {stats.status or 'not started'}"
    if not stats.instances:
        yield "it has no instance yet"
    for instance in stats.instances:
        if instance.cause or instance.status not in well:
            yield f"{instance.name} is {instance.status or 'not placed'} {instance.cause}".rstrip()
        if not any(each.name not in (PROBE, VERIFY) for each in instance.containers):
            yield f"{instance.name} has no container yet"
        for each in instance.containers:
            if not (_is_running(each) or (is_job and _has_ended_well(each))):
                yield f"{each.name} is {each.state} {each.reason}".rstrip()
        for each in instance.init_containers:
            if not _has_ended_well(each):
                yield f"{each.name} is {each.state} {each.reason}".rstrip()


def _is_running(container: Container) -> bool:
    return container.state == "Running" and (container.name != PROBE or container.reason == _PROBE_PASSED)


def _has_ended_well(container: Container) -> bool:
    return (container.state, container.reason) == ("Terminated", "Completed")
