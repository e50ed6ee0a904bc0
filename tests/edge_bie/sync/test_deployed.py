"""Deployed is what two reports say, not what BIE calls running."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from cloudedge.clock import ManualClock, rfc3339
from cloudedge.edge_bie.client import App, AppStats, Container, Instance, Node, Report
from cloudedge.edge_bie.sync import judge, wait_deployed

pytestmark = pytest.mark.rules

CHANGED = datetime(2024, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
VERSION = f"{int(CHANGED.timestamp())}abcdef"
APP = App("serving", selector="serves=x", version=VERSION)
INSTANCE = Instance(
    "serving-1",
    "Running",
    created=rfc3339(CHANGED + timedelta(seconds=9)),
    containers=(Container("main", "Running"),),
    init_containers=(Container("cloudedge-verify", "Terminated", "Completed"),),
)


def node(instances=(INSTANCE,), *, time="t1", ready="online", desired=VERSION, accepted=VERSION, **stats):
    about = AppStats(**{"name": "serving", "version": VERSION, "status": "Running", "instances": instances, **stats})
    report = Report(time, apps={"serving": accepted} if accepted else {}, app_stats=(about,))
    return Node("n1", ready=ready, desire_apps={"serving": desired}, report=report)


def container(state, reason=""):
    return replace(INSTANCE, containers=(Container("main", state, reason),))


VERDICTS = {
    "all well": (node(), "deployed", ""),
    "offline": (node(ready="offline"), "waiting", "the node is offline"),
    "never connected": (Node("n1"), "waiting", "the node never connected"),
    "not assigned": (node(desired="0"), "waiting", "not assigned"),
    "not accepted": (node(accepted="0"), "waiting", "not accepted"),
    "not applied": (node(accepted="", cause="failed to pull"), "failed", "failed to pull"),
    "a cause": (node(cause="port 18082 is taken"), "failed", "port 18082"),
    "no instance": (node(()), "waiting", "no instance"),
    "crash loop that runs": (node((container("Waiting", "CrashLoopBackOff"),)), "failed", "CrashLoopBackOff"),
    "ended in an error": (node((container("Terminated", "Error"),)), "failed", "main: Error"),
    "ended in an error, but of the version before": (
        node((replace(container("Terminated", "Error"), created=rfc3339(CHANGED - timedelta(hours=1))),)),
        "waiting",
        "of the previous version",
    ),
    "accepted, and the statistics are older": (node(version="0"), "waiting", "not accepted"),
    "still checking": (
        node((replace(INSTANCE, init_containers=(Container("cloudedge-verify", "Running"),)),)),
        "waiting",
        "cloudedge-verify is Running",
    ),
    "no image": (node((container("Waiting", "ImagePullBackOff"),)), "failed", "ImagePullBackOff"),
    "starting": (node((container("Waiting", "ContainerCreating"),)), "waiting", "main is Waiting"),
    "ended": (node((container("Terminated", "Completed"),)), "waiting", "main is Terminated"),
    "refused by the node": (
        node((replace(INSTANCE, cause="signature"),)),
        "failed",
        "signature",
    ),
    "of the version before": (
        node((replace(INSTANCE, created=rfc3339(CHANGED - timedelta(hours=1))),)),
        "waiting",
        "of the previous version",
    ),
    "a slow clock": (node((replace(INSTANCE, created=rfc3339(CHANGED - timedelta(seconds=60))),)), "deployed", ""),
    "no time at all": (node((replace(INSTANCE, created=""),)), "deployed", ""),
    "two, one old": (
        node((INSTANCE, replace(INSTANCE, created="2020-01-01T00:00:00Z"))),
        "waiting",
        "of the previous version",
    ),
    "pending": (node(status="Pending"), "waiting", "the app is Pending"),
}


@pytest.mark.parametrize(("found", "state", "reason"), VERDICTS.values(), ids=VERDICTS)
def test_verdicts(found, state, reason):
    verdict = judge(found, APP)
    assert (verdict.state, reason in verdict.reason) == (state, True), verdict


class Scene:
    """A control plane that shows a node's states one after the other; the last one stays."""

    def __init__(self, *states):
        self.states = list(states)
        self.looks = 0

    def nodes(self, selector):
        assert selector == "serves=x"
        return [self.states[0]]

    def node(self, _name):
        self.looks += 1
        return self.states[0] if len(self.states) == 1 else self.states.pop(0)


def arrive(*states, timeout_s=100.0, **other):
    scene, clock = Scene(*states), ManualClock()
    (arrival,) = wait_deployed(scene, [APP], timeout_s=timeout_s, clock=clock, **other)
    return arrival.verdict.state, clock.elapsed, scene


def test_one_good_report_is_not_enough():
    state, elapsed, scene = arrive(node(time="t1"))
    assert (state, elapsed) == ("waiting", 100), "the report never changed, so time ran out on it"
    state, _, scene = arrive(node(time="t1"), node(time="t1"), node(time="t2"))
    assert (state, scene.looks) == ("deployed", 3)


def test_one_bad_report_is_not_enough_either():
    bad = node(cause="the download broke off", time="t1")
    assert arrive(bad, node(time="t2"), node(time="t3"))[0] == "deployed"
    state, elapsed, _ = arrive(bad, replace(bad, report=replace(bad.report, time="t2")))
    assert (state, elapsed < 100) == ("failed", True)


def test_what_the_version_before_suffered_from_is_no_failure_of_the_one_that_mends_it():
    before = [node(accepted="0", version="0", cause="no such image", time=f"t{i}") for i in range(2)]
    assert arrive(*before, node(time="t2"), node(time="t3"))[0] == "deployed"
    state, _, scene = arrive(*before, *(replace(before[0], report=replace(before[0].report, time=t)) for t in "ab"))
    assert (state, scene.looks) == ("failed", 4)


def test_a_good_report_between_bad_ones_starts_over():
    flapping = [node(time=f"t{i}", cause="no" if i % 2 else "") for i in range(6)]
    state, _, scene = arrive(*flapping, node(time="t6"), node(time="t7"))
    assert (state, scene.looks) == ("deployed", 8)


def test_time_is_over():
    assert arrive(node(ready="offline"), timeout_s=30)[:2] == ("waiting", 30)


def test_a_node_that_was_deleted_meanwhile_is_not_waited_for_to_the_end():
    state, elapsed, scene = arrive(node(time="t1", accepted="old"), None)
    assert (state, elapsed < 100, scene.looks) == ("failed", True, 3)


def test_offline_nodes_can_be_left_out():
    scene = Scene(node(ready="offline"))
    assert wait_deployed(scene, [APP], timeout_s=30, clock=ManualClock(), skip_offline=True) == []


def test_an_app_that_matches_nothing_is_there_at_once():
    assert wait_deployed(Scene(node()), [replace(APP, selector="")], timeout_s=30, clock=ManualClock()) == []


def test_a_job_is_done_when_its_containers_ended():
    ended = node((container("Terminated", "Completed"),), status="Succeeded")
    assert judge(ended, replace(APP, workload="job")).state == "deployed"


def test_versions_of_another_kind_say_nothing_of_time():
    old = replace(INSTANCE, created="2020-01-01T00:00:00Z")
    assert (
        judge(node((old,), desired="1000", accepted="1000", version="1000"), replace(APP, version="1000")).state
        == "deployed"
    )
