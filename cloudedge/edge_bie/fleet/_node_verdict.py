"""Whether a node really runs a revision: decided from what it reported, never from the word `Running` alone.

`Running` means that a pod exists. A node is done when it is online, has accepted the app of the revision, every
container of every instance runs, what checked the bytes has completed, nothing gives a cause, an inference probe was
answered (on the node, or where it does not ask itself, from here), and all of that stood in two reports, one after the
other. Since a revision has an app of its own, whatever is reported of that app belongs to it.
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

_UNPROBED = "nobody has probed it yet"


@dataclass(frozen=True)
class Probed:
    """What the control side got when it asked the server itself."""

    state: Literal["passed", "failed", "starting", "answers", "unreachable", "unasked"]
    """`starting`: it is there and does not answer yet; `answers`: and nothing is recorded to compare that with."""
    why: str = ""


UNASKED = Probed("unasked")


@dataclass(frozen=True)
class Verdict:
    """What was concluded of a node and a revision."""

    state: Literal["done", "failed", "waiting", "offline"]
    why: str = ""
    leaning: Literal["", "good", "bad"] = ""
    """What the newest report says; twice the same decides."""
    seen_at: str = ""
    """The time of the first report that said so, by the server's clock."""


def judge(
    node: Node,
    app: str,
    since: Verdict | None = None,
    *,
    probe: Probed = UNASKED,
    probe_rule: Literal["required", "reachable", "off"] = "reachable",
) -> Verdict:
    """Decide whether a node runs the app of a revision.

    Args:
        node: The node, with its newest report.
        app: The app of the revision, in full.
        since: What was concluded from an earlier report; None if there was none, or about another revision.
        probe: What the control side got, for nodes that do not probe themselves.
        probe_rule: Whether it must have got an answer.
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
    """Say what a probe from the control side comes to; of what is neither good nor bad, the time-out decides."""
    if probe.state == "passed":
        return "good", ""
    if probe.state == "failed":
        return "bad", f"it answered otherwise than it should: {probe.why}"
    if probe.state == "starting":
        return "", f"its server does not answer yet: {probe.why}"
    if probe.state == "unasked":
        return "", _UNPROBED
    lacking = "it cannot be reached from here" if probe.state == "unreachable" else probe.why
    return ("good", f"not probed: {lacking}") if rule == "reachable" else ("", f"a probe is required, and {lacking}")


def needs_probe(node: Node, app: str) -> bool:
    """Tell whether everything is in order but the node did not probe itself, so that somebody else has to."""
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
    """Say what another ten seconds will not mend; empty: nothing."""
    refused = "it refused what it got" if _is_refused(stats) else ""
    what = next(filter(None, map(broken, stats.instances)), refused)
    return f"{what} ({stats.cause})" if what and stats.cause else what


def _missing(stats: AppStats, accepted: str) -> Iterator[str]:
    """Yield what is not as it should be yet, the first thing first."""
    if stats.cause:
        yield stats.cause  # perhaps a download that is tried again: the time-out decides
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
