"""Detection of deployed apps: whether an app really runs on a node. BIE calls it deployed once a pod exists.

Deployed means: the node is online, was assigned this version and has accepted it, every instance was created since,
every container runs, and nothing reports a cause; and all that in two consecutive reports. A failure also needs two
reports, since a node tries again every ten seconds and one broken download is no failure yet. Before the node has
accepted the version, two more reports may be about the previous one, whose failure may be what this version fixes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Final, Literal

from cloudedge.clock import Clock, SystemClock
from cloudedge.edge_bie.client import App, AppStats, Bie, Node, Report, broken, nameless_cause, unready

__all__ = ["Arrival", "Verdict", "judge", "wait_deployed"]

_REPORTS_NEEDED: Final = 2
_STALE_REPORTS: Final = 2
"""Reports that may be about the previous version: the existing one, and the one whose answer names the new version."""
_CLOCK_TOLERANCE: Final = timedelta(minutes=2)
"""The most by which a node's clock may be behind the control plane's."""
_UNIX_TIME_DIGITS: Final = 10
"""Digits of the Unix time that a version begins with."""
State = Literal["waiting", "deployed", "failed"]


@dataclass(frozen=True)
class Verdict:
    """The result of one look."""

    state: State
    reason: str = ""


@dataclass(frozen=True)
class Arrival:
    """The outcome for an app on a node."""

    app: str
    node: str
    verdict: Verdict


def judge(node: Node, app: App) -> Verdict:
    """Judge an app on a node by the node's last report."""
    if node.ready != "online" or node.report is None:
        return Verdict("waiting", "the node never connected" if node.ready == "never" else "the node is offline")
    if node.desire_apps.get(app.name) != app.version:
        return Verdict("waiting", "the node was not assigned this version yet")
    stats = node.report.app(app.name)
    if stats is not None and stats.cause:
        return Verdict("failed", stats.cause)
    if stats is None or not _has_accepted(node.report, app):
        return Verdict("waiting", nameless_cause(node.report) or "the node has not accepted this version yet")
    return _instances(stats, app)


def _has_accepted(report: Report, app: App) -> bool:
    stats = report.app(app.name)
    return report.apps.get(app.name) == app.version and (stats is None or stats.version in ("", app.version))


def _instances(stats: AppStats, app: App) -> Verdict:
    since = _changed_at(app.version)
    for instance in stats.instances:
        created = _parse_time(instance.created)
        if since is not None and created is not None and created < since - _CLOCK_TOLERANCE:
            return Verdict("waiting", f"{instance.name} is of the previous version")
        bad = broken(instance) or instance.cause
        if bad:
            return Verdict("failed", bad)
    lacking = next(unready(stats, is_job=app.workload == "job"), "")
    return Verdict("waiting", lacking) if lacking else Verdict("deployed")


@dataclass
class _Watch:
    """The sequence of verdicts from consecutive reports."""

    verdict: Verdict = field(default_factory=lambda: Verdict("waiting", "not checked yet"))
    reports: tuple[str, ...] = ()
    needed: int = _REPORTS_NEEDED

    def look(self, verdict: Verdict, report: str | None, needed: int = _REPORTS_NEEDED) -> None:
        """Add the newest report's verdict; a deleted node has none (`report` is None), so every look counts."""
        if verdict.state != self.verdict.state or verdict.state == "waiting" or needed != self.needed:
            self.reports = ()
        self.needed = needed
        self.verdict = verdict
        seen = f"look {len(self.reports)}" if report is None else report
        self.reports = tuple(dict.fromkeys((*self.reports, seen)))

    @property
    def is_over(self) -> bool:
        return self.verdict.state != "waiting" and len(self.reports) >= self.needed

    @property
    def outcome(self) -> Verdict:
        if self.is_over or self.verdict.state == "waiting":
            return self.verdict
        state = f"{self.verdict.state} {self.verdict.reason}".strip()
        return Verdict("waiting", f"{state}, in {len(self.reports)} reports only")


def wait_deployed(
    bie: Bie,
    apps: Sequence[App],
    *,
    timeout_s: float,
    poll_s: float = 5.0,
    skip_offline: bool = False,
    clock: Clock | None = None,
    on_change: Callable[[Arrival], None] = lambda _: None,
) -> list[Arrival]:
    """Wait until every app runs, or has failed, on every matching node, or until the time is over.

    Args:
        bie: The control plane.
        apps: The apps as they are now, whose versions are waited for.
        timeout_s: Time limit for everything.
        poll_s: Pause between two looks.
        skip_offline: Do not wait for nodes that are offline now.
        clock: Time.
        on_change: Called whenever a verdict changes.

    Returns:
        The outcome of every app and node; those still waiting ran out of time.
    """
    clock = clock or SystemClock()
    deadline = clock.monotonic() + timeout_s
    pairs: dict[tuple[str, str], _Watch] = {}
    named = {app.name: app for app in apps}
    for app in apps:
        for node in bie.nodes(selector=app.selector) if app.selector else ():
            if node.ready == "online" or not skip_offline:
                pairs[app.name, node.name] = _Watch()
    while True:
        for name in {node for (_, node), watch in pairs.items() if not watch.is_over}:
            _look(bie.node(name), name, pairs, named, on_change)
        if all(watch.is_over for watch in pairs.values()) or clock.monotonic() >= deadline:
            return [Arrival(app, node, pairs[app, node].outcome) for app, node in sorted(pairs)]
        clock.sleep(min(poll_s, max(0.0, deadline - clock.monotonic())))


def _look(
    node: Node | None,
    name: str,
    pairs: Mapping[tuple[str, str], _Watch],
    apps: Mapping[str, App],
    on_change: Callable[[Arrival], None],
) -> None:
    for (app, which), watch in pairs.items():
        if which == name and not watch.is_over:
            before = watch.verdict
            if node is None:
                watch.look(Verdict("failed", "the node was deleted"), None)
            else:
                may_be_stale = node.report is None or not _has_accepted(node.report, apps[app])
                time = node.report.time if node.report else ""
                needed = _REPORTS_NEEDED + (_STALE_REPORTS if may_be_stale else 0)
                watch.look(judge(node, apps[app]), time, needed)
            if watch.verdict != before:
                on_change(Arrival(app, name, watch.verdict))


def _changed_at(version: str) -> datetime | None:
    """Return the creation time of a version, if it has the form of seconds and six characters."""
    digits = version[:_UNIX_TIME_DIGITS]
    if len(version) <= _UNIX_TIME_DIGITS or len(digits) != _UNIX_TIME_DIGITS or not digits.isdecimal():
        return None
    return datetime.fromtimestamp(int(digits), timezone.utc)


def _parse_time(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text.split(".", maxsplit=1)[0].removesuffix("Z"))
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
