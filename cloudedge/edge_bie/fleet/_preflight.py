"""Preflight checks: the reasons why a node cannot take a revision, from its report, before anything is sent to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cloudedge.config import EdgeNeeds
from cloudedge.edge_bie.fleet._rollout import Unfit

if TYPE_CHECKING:
    from cloudedge.edge_bie.client import Node, Report

__all__ = ["free_bytes", "number", "preflight"]


def preflight(
    node: Node, needs: EdgeNeeds, *, disk_bytes: int, memory_bytes: int, port: int, taken: Mapping[int, str]
) -> list[Unfit]:
    """List every reason why a node cannot take a revision. Figures that it does not report are no reason.

    Args:
        node: The node. Of an offline one only the fixed properties of its last report count, not its free space: if it
            returns without space, it reports that and fails.
        needs: The required properties.
        disk_bytes: Bytes that the node would download.
        memory_bytes: Memory that the bundle declares.
        port: The port on the host.
        taken: Ports that other apps of this node take, with the apps' names.
    """
    reasons = list(_kind(node, needs))
    if node.ready == "online" and node.report is not None:
        reasons += _room(node.report, needs, disk_bytes, memory_bytes)
        if port in taken:
            reasons.append(("port", f"port {port} is taken by {taken[port]}"))
    return [Unfit(node.name, rule, what) for rule, what in reasons]


def _kind(node: Node, needs: EdgeNeeds) -> Iterator[tuple[str, str]]:
    hosts = node.report.hosts.values() if node.report is not None else ()
    arches = sorted({str(host["arch"]) for host in hosts if host.get("arch")})
    if needs.arch and arches and not set(arches) <= set(needs.arch):
        yield "arch", f"its processor is {', '.join(arches)}, wanted: {', '.join(needs.arch)}"
    if needs.accelerator and node.accelerator != needs.accelerator:
        yield "accelerator", f"its accelerator is {node.accelerator or 'none'}, wanted: {needs.accelerator}"


def _room(report: Report, needs: EdgeNeeds, disk_bytes: int, memory_bytes: int) -> Iterator[tuple[str, str]]:
    # The download and the files unpacked from it are on the disk at the same time.
    rooms = (("disk", needs.disk or 2 * disk_bytes), ("memory", needs.memory or memory_bytes))
    for what, wanted in rooms:
        free = free_bytes(report.stats.values(), what)
        if free is not None and free < wanted:
            yield what, f"{wanted} bytes of {what} are needed and {free} are free"
    for host, stats in report.stats.items():
        if stats.get("diskPressure"):
            yield "disk", f"{host} reports disk pressure, and may delete files in use"


def free_bytes(stats: Iterable[Mapping[str, Any]], what: str) -> int | None:
    """Return the free bytes of the host with the least; None: no host reports them."""
    free = [
        capacity - usage
        for each in stats
        if (capacity := number(each, "capacity", what)) is not None
        and (usage := number(each, "usage", what)) is not None
    ]
    return int(min(free)) if free else None


def number(stats: Mapping[str, Any], kind: str, what: str) -> float | None:
    """Read one figure of a report; figures come as strings, and any of them may be missing."""
    section = stats.get(kind)
    try:
        return float(section[what]) if isinstance(section, Mapping) else None
    except (KeyError, TypeError, ValueError):
        return None
