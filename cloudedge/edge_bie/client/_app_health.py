"""What a report says of an app beyond `Running`: what is broken, and what is not there yet.

Whoever waits for an app and whoever moves a fleet decide by the same signs; what they conclude from them, and when, is
theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from cloudedge.edge_bie.model import PROBE, VERIFY

if TYPE_CHECKING:
    from cloudedge.edge_bie.client import AppStats, Container, Instance, Report

__all__ = ["broken", "nameless_cause", "unready"]

_PROBE_PASSED: Final = "ProbePassed"
_BROKEN: Final = frozenset({
    "CrashLoopBackOff", "CreateContainerConfigError", "CreateContainerError", "DiskFull", "ErrImageNeverPull",
    "ErrImagePull", "Error", "ImageInspectError", "ImagePullBackOff", "InvalidImageName", "OOMKilled", "PortConflict",
    "ProbeFailed", "RunContainerError", "StorageError",
})  # fmt: skip
"""Reasons that another ten seconds do not mend."""


def broken(instance: Instance) -> str:
    """Say which container another ten seconds will not mend; empty: none.

    What checks the bytes is left out: whether it refused is said by its state, with reasons of its own.
    """
    every = (*instance.containers, *(each for each in instance.init_containers if each.name != VERIFY))
    return next((f"{each.name}: {each.reason}" for each in every if each.reason in _BROKEN), "")


def nameless_cause(report: Report) -> str:
    """Return why some app was not applied: a stock node that cannot says why, but not always of which."""
    return next((each.cause for each in report.app_stats if not each.name and each.cause), "")


def unready(stats: AppStats, *, is_job: bool = False) -> Iterator[str]:
    """Yield what is not as it should be yet, the first thing first.

    Args:
        stats: What the node says of the app.
        is_job: Whether it may end.
    """
    well = ("Running", "Succeeded") if is_job else ("Running",)
    if stats.status not in well:
        yield f"the app is {stats.status or 'not started'}"
    if not stats.instances:
        yield "it has no instance yet"
    for instance in stats.instances:
        if instance.cause or instance.status not in well:
            yield f"{instance.name} is {instance.status or 'nowhere'} {instance.cause}".rstrip()
        if not any(each.name not in (PROBE, VERIFY) for each in instance.containers):
            yield f"{instance.name} has no container yet"
        for each in instance.containers:
            if not (_runs(each) or (is_job and _has_ended_well(each))):
                yield f"{each.name} is {each.state} {each.reason}".rstrip()
        for each in instance.init_containers:
            if not _has_ended_well(each):
                yield f"{each.name} is {each.state} {each.reason}".rstrip()


def _runs(container: Container) -> bool:
    return container.state == "Running" and (container.name != PROBE or container.reason == _PROBE_PASSED)


def _has_ended_well(container: Container) -> bool:
    return (container.state, container.reason) == ("Terminated", "Completed")
