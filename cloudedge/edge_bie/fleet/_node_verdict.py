"""The verdict on a node: done, failed, waiting or offline with a revision, never from the word `Running` alone.

`Running` means that a pod exists. A node is done when it is online, has accepted the app of the revision, every
container of every instance runs, the check of the bytes has completed, no cause of failure is reported, an inference
probe was answered (on the node, or from here if the node does not probe), and two reports in a row show all of that.
Since a revision has its own app, every report about that app belongs to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from cloudedge.edge_bie.client import broken, nameless_cause, unready
from cloudedge.edge_bie.model import PROBE, VERIFY

if TYPE_CHECKING:
    from cloudedge.edge_bie.client import AppStats, Container, Node

__all__ = ["UNASKED", "Probed", "Verdict", "judge", "needs_probe"]

_UNPROBED = "it has not been probed yet"


@dataclass(frozen=True)
class Probed:
    """The result of a probe from the control side."""

    state: Literal["passed", "failed", "starting", "answers", "unreachable", "unasked"]
    """`starting`: reachable, no answer yet; `answers`: it answers, and no recorded probe is there to compare with."""
    why: str = ""


UNASKED = Probed("unasked")


@dataclass(frozen=True)
class Verdict:
    """The verdict on a node and a revision."""

    state: Literal["done", "failed", "waiting", "offline"]
    why: str = ""
    leaning: Literal["", "good", "bad"] = ""
    """The tendency of the newest report; the same one twice decides."""
    seen_at: str = ""
    """The time of the first report with that tendency, by the server's clock."""


def judge(
    node: Node,
    app: str,
    since: Verdict | None = None,
    *,
    probe: Probed = UNASKED,
    probe_rule: Literal["required", "reachable", "off"] = "reachable",
) -> Verdict:
    """Judge if a node runs the app of a revision.

    Args:
        node: The node, with its newest report.
        app: The full name of the revision's app.
        since: The verdict on an earlier report; None if there was none, or about another revision.
        probe: The probe from the control side, for nodes that do not probe themselves.
        probe_rule: The requirement of a probe.
    """
    if node.ready != "online" or node.report is None:
        return Verdict("offline", "it never connected" if node.ready == "never" else "it is not connected")
    stats = node.report.app(app)
    if stats is None:
        return _lean("", nameless_cause(node.report) or "it has not taken it up yet", node, since)
    hopeless = _hopeless(stats)
    if hopeless:
        return _lean("bad", hopeless, node, since)
    missing = next(_missing(stats, node.report.apps.get(app, "")), "")
    if missing:
        return _lean("", missing, node, since)
    if any(container.name == PROBE for container in (*_containers(stats), *_init(stats))) or probe_rule == "off":
        return _lean("good", "", node, since)
    return _lean(*_probed(probe, probe_rule), node, since)


def _probed(probe: Probed, rule: str) -> tuple[Literal["", "good", "bad"], str]:
    """Turn a probe from the control side into a tendency and a reason; without a tendency, the time-out decides."""
    if probe.state == "passed":
        return "good", ""
    if probe.state == "failed":
        return "bad", f"it answered a probe wrongly: {probe.why}"
    if probe.state == "starting":
        return "", f"its server does not answer yet: {probe.why}"
    if probe.state == "unasked":
        return "", _UNPROBED
    lacking = "it cannot be reached from here" if probe.state == "unreachable" else probe.why
    return ("good", f"not probed: {lacking}") if rule == "reachable" else ("", f"a probe is required, and {lacking}")


def needs_probe(node: Node, app: str) -> bool:
    """Return True if only a probe is missing, which the node did not do itself."""
    return judge(node, app).why == _UNPROBED


def _lean(leaning: Literal["", "good", "bad"], why: str, node: Node, since: Verdict | None) -> Verdict:
    at = node.report.time if node.report else ""
    if not leaning:
        return Verdict("waiting", why)
    if since is None or since.leaning != leaning:
        return Verdict("waiting", why, leaning, at)
    if since.state == "waiting" and since.seen_at == at:
        return Verdict("waiting", why, leaning, at)
    return Verdict("done" if leaning == "good" else "failed", why, leaning, since.seen_at)


def _hopeless(stats: AppStats) -> str:
    """Return a failure that waiting will not mend; empty: none."""
    refused = "it refused what it got" if _is_refused(stats) else ""
    what = next(filter(None, map(broken, stats.instances)), refused)
    return f"{what} ({stats.cause})" if what and stats.cause else what


def _missing(stats: AppStats, accepted: str) -> Iterator[str]:
    """Yield the conditions that are not met yet, in their order."""
    if stats.cause:
        yield stats.cause  # perhaps a download that is retried: the time-out decides
    if not accepted:
        yield "it has not taken it up yet"
    if stats.version != accepted:
        yield f"it runs version {stats.version or 'none'} of the app and accepted {accepted}"
    yield from unready(stats)


def _is_refused(stats: AppStats) -> bool:
    return any(c.name == VERIFY and c.state == "Terminated" and c.reason != "Completed" for c in _init(stats))


def _init(stats: AppStats) -> list[Container]:
    return [container for instance in stats.instances for container in instance.init_containers]


def _containers(stats: AppStats) -> list[Container]:
    return [container for instance in stats.instances for container in instance.containers]
