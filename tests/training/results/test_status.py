"""From what a cluster says of a job to what the job is doing: phases that lag, flip, vanish or never come."""

from datetime import datetime, timedelta, timezone

import pytest

from cloudedge.kube import Notice
from cloudedge.training.cluster._submit import DIGEST, decide
from cloudedge.training.results import _explain
from cloudedge.training.results._status import Debounce, status_of
from tests.training.samples import BUILT

pytestmark = pytest.mark.rules

NOW = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)


def ago(seconds):
    return (NOW - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def job(status=None, *, sample="ps", age=5, **metadata):
    found = {**BUILT[sample].manifest}
    found["metadata"] = {"name": "ctr", "namespace": "ads", "uid": "u", "creationTimestamp": ago(age), **metadata}
    return found | ({"status": status} if status is not None else {})


def pod(role, index, phase, *, ready=True, age=5, ip="10.0.0.1", state=None, **more):
    status = {"phase": phase, "containerStatuses": [{"ready": ready, "state": state or {}}], "podIP": ip, **more}
    labels = {"paddle-res-type": role, "volcano.sh/task-spec": role}
    return {
        "metadata": {"name": f"ctr-{role}-{index}", "labels": labels, "creationTimestamp": ago(age)},
        "status": status,
    }


def look(found, pods=(), **more):
    return status_of(found, name="ctr", namespace="ads", pods=pods, now=NOW, **more)


SUCCEEDED = [pod("worker", i, "Succeeded", ready=False) for i in (0, 1)]
SERVING = [pod("ps", i, "Running") for i in (0, 1)]


@pytest.mark.parametrize(
    ("status", "pods", "state"),
    [
        (None, [], "waiting"),
        ({}, [], "waiting"),
        ({"phase": "Pending"}, [], "waiting"),
        ({"phase": "Starting"}, [], "waiting"),
        ({"phase": "Running"}, [], "running"),
        ({"phase": "Completed"}, [], "succeeded"),
        ({"phase": "Succeed"}, [], "succeeded"),
        ({"phase": "Failed"}, [], "failed"),
        ({"phase": "Terminated"}, [], "failed"),
        ({"phase": "Scaling"}, [], "unknown"),
        # The phase lags behind the pods by one step.
        ({"phase": "Running"}, [*SUCCEEDED, *(pod("ps", i, "Succeeded") for i in (0, 1))], "succeeded"),
        ({"phase": "Running"}, [*SERVING, pod("worker", 0, "Failed")], "failed"),
        ({"phase": "Starting"}, [*SERVING, pod("worker", 0, "Failed")], "failed"),
        # Servers never end.
        ({"phase": "Running"}, [*SERVING, *SUCCEEDED], "running"),
        # Counters instead of pods; zeros are left out.
        ({"phase": "Running", "ps": {"succeeded": 2}, "worker": {"succeeded": 2}}, [], "succeeded"),
        ({"phase": "Running", "ps": {"running": 2}, "worker": {"running": 1, "failed": 1}}, [], "failed"),
        # Pods of a completed job are cleaned away, and their counters with them.
        ({"phase": "Completed", "mode": "PS"}, [], "succeeded"),
    ],
)
def test_paddle_jobs(status, pods, state):
    assert look(job(status), pods).state == state


@pytest.mark.parametrize(
    ("phase", "state"),
    [
        ("", "waiting"),
        ("Pending", "waiting"),
        ("Restarting", "waiting"),
        ("Running", "running"),
        ("Aborting", "running"),
        ("Aborted", "stopped"),
        ("Completed", "succeeded"),
        ("Failed", "failed"),
        ("Terminated", "failed"),
        ("Odd", "unknown"),
    ],
)
def test_volcano_jobs(phase, state):
    found = look(job({"state": {"phase": phase}} if phase else None, sample="ctr"), [pod("trainer", 0, "Failed")])
    assert found.state == state
    assert found.roles["trainer"].failed == 1


def test_volcano_counts_without_looking_at_pods():
    counts = {"trainer": {"phase": {"Running": 1, "Succeeded": 1}}}
    found = look(job({"state": {"phase": "Running"}, "taskStatusCount": counts}, sample="ctr"))
    assert str(found.roles["trainer"]) == "1 running, 1 succeeded of 2"


def test_done_with_servers_that_never_end():
    found = look(job({"phase": "Running"}), [*SERVING, *SUCCEEDED], ps_done_when_workers_done=True)
    assert found.state == "succeeded"
    half = look(job({"phase": "Running"}), [*SERVING, SUCCEEDED[0]], ps_done_when_workers_done=True)
    assert half.state == "running"


def test_not_ready_is_starting():
    found = look(job({"phase": "Starting"}), [pod("worker", 0, "Running", ready=False), pod("worker", 1, "Running")])
    assert str(found.roles["worker"]) == "1 starting, 1 running of 2"


def test_gone_and_going():
    assert look(None).state == "gone"
    held = job({"phase": "Terminating"}, deletionTimestamp=ago(60), finalizers=["finalizers.paddlepaddle.org"])
    found = look(held)
    assert found.state == "deleting"
    assert "finalizers.paddlepaddle.org" in found.reasons[0]
    assert "null" in found.reasons[0]
    fresh = job({"phase": "Terminating"}, deletionTimestamp=ago(1), finalizers=["finalizers.paddlepaddle.org"])
    assert look(fresh).reasons == ()


WAITING_FOR_CONFIG = {"waiting": {"reason": "CreateContainerConfigError", "message": 'configmap "ctr" not found'}}


def test_waiting_for_the_configuration_is_normal_at_first():
    young = [pod("worker", 0, "Pending", state=WAITING_FOR_CONFIG, age=100)]
    assert look(job({"phase": "Pending"}), young).reasons == ()
    old = [pod("worker", 0, "Pending", state=WAITING_FOR_CONFIG, age=121), pod("ps", 1, "Pending", ip="")]
    (reason,) = look(job({"phase": "Pending"}), old).reasons
    assert "Without an address: ctr-ps-1" in reason


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (pod("worker", 0, "Pending", state={"waiting": {"reason": "ImagePullBackOff"}}), "imagePullSecrets"),
        (pod("worker", 0, "Running", state={"waiting": {"reason": "CrashLoopBackOff"}}), "again and again"),
        (pod("worker", 0, "Failed", state={"terminated": {"exitCode": 137, "reason": "OOMKilled"}}), "more memory"),
        (pod("worker", 0, "Failed", state={"terminated": {"exitCode": 2, "reason": "Error"}}), "ended with 2"),
        (pod("worker", 0, "Failed", reason="Evicted", message="disk"), "Evicted: disk"),
        (
            pod(
                "worker", 0, "Pending", conditions=[{"type": "PodScheduled", "status": "False", "message": "0/1 nodes"}]
            ),
            "has no node: 0/1 nodes",
        ),
    ],
)
def test_pods_say_why(found, words):
    assert words in " ".join(look(job({"phase": "Pending"}), [found]).reasons)


def test_nothing_happens():
    assert look(job(age=10)).reasons == ()
    (reason,) = look(job(age=30)).reasons
    assert "no controller watches the namespace ads" in reason
    assert "paddle-system" in reason
    (reason,) = look(job(age=30, sample="ctr")).reasons
    assert "Volcano's controller" in reason
    (reason,) = look(job({"phase": "Pending"}, age=30, sample="gang")).reasons
    assert "--scheduling=volcano" in reason


def test_a_full_queue_and_warnings_are_told():
    group = {
        "metadata": {"name": "ctr"},
        "spec": {"queue": "ads"},
        "status": {"phase": "Pending", "conditions": [{"reason": "NotEnoughResources", "message": "0/2 free"}]},
    }
    notice = Notice("Warning", "Create", "sampleset criteo is not exists", "PaddleJob/ctr", "t")
    reasons = look(job({"phase": "Pending"}, age=30), groups=[group], events=[notice]).reasons
    assert "queue ads" in reasons[0]
    assert "NotEnoughResources" in reasons[0]
    assert "sampleset criteo" in reasons[1]
    assert look(job({"phase": "Completed"}), events=[notice]).reasons == ()
    assert _explain.GRACE_S == 120


def test_flips_are_not_told_and_ends_are_told_at_once():
    news, told = Debounce(2.0), []
    seen = ["waiting", "running", "waiting", "running", "waiting", "running", "running", "running", "succeeded"]
    for second, state in enumerate(seen):
        if news.settled(state, float(second)):
            told.append((second, state))
    assert told == [(0, "waiting"), (7, "running"), (8, "succeeded")]


def test_what_becomes_of_a_namesake():
    mine = BUILT["ps"]
    same = {"metadata": {"annotations": {DIGEST: mine.digest}}}
    other = {"metadata": {"annotations": {DIGEST: "x"}}}
    going = {"metadata": {"deletionTimestamp": "t"}}
    assert decide(mine, None, replace=False)[0] == "create"
    assert decide(mine, same, replace=False)[0] == "keep"
    assert decide(mine, same, replace=True)[0] == "replace"
    assert decide(mine, other, replace=False)[0] == "refuse"
    assert decide(mine, {"metadata": {}}, replace=False)[0] == "refuse"
    assert decide(mine, other, replace=True)[0] == "replace"
    assert decide(mine, going, replace=False)[0] == "refuse"
    assert decide(mine, going, replace=True)[0] == "replace"


def test_a_group_that_is_left_behind_is_explained():
    group = {"metadata": {"name": "ctr"}, "status": {"phase": "Running"}}
    for phase in ("Completed", "Failed"):
        reasons = look(job({"phase": phase}), groups=[group]).reasons
        assert [reason for reason in reasons if "PodGroup ctr is left behind" in reason]
    assert not look(job({"phase": "Running"}), groups=[group]).reasons
    volcano = {"state": {"phase": "Completed"}}
    assert not look(job(volcano, sample="volcano"), groups=[group]).reasons
