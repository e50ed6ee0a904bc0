"""Data sets of a real API server with upstream's definitions; what the controller would write, the test writes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from cloudedge.cache import (
    MOUNT_OPTIONS,
    SYNC_OPTIONS,
    ClusterDatasets,
    Level,
    SampleJob,
    SampleSet,
    SecretRef,
    source_secret,
)
from cloudedge.errors import Conflict, DeadlineExceeded, InputError, NotFound, Rejected
from cloudedge.kube import PADDLE_SERVICES, Cluster, Kind, dropped
from tests.kube.real_cluster import account, kubeconfig, lab

SECRET = SecretRef("fs")
_LONG_S = 300  # nothing waits so long unless it is broken; how busy the machine is says nothing
SEEDS = sorted(Path(__file__).with_name("manifests").glob("*.yaml"))


@pytest.fixture(scope="module")
def cluster():
    with lab("samplesets", "samplejobs") as found:
        yield found


@pytest.fixture
def datasets(cluster):
    return ClusterDatasets(cluster)


@pytest.fixture
def there(cluster):
    """Run `cloudedge dataset` in the namespace of the test."""

    def run(*words, **env):
        command = [sys.executable, "-m", "cloudedge", "dataset", *words, "--namespace", cluster.namespace]
        subprocess.run(command, env=os.environ | {"KUBECONFIG": kubeconfig()} | env, check=True)

    return run


def named(cluster, end: str) -> SampleSet:
    # The name has to be unique in the whole cluster, which others use too.
    name = f"s{cluster.namespace.removeprefix('test-')}{end}"
    return SampleSet(name, SECRET, partitions=2, source="s3://bucket/criteo/", levels=(Level("/data/jfs", 1024),))


def is_now(cluster, kind: Kind, name: str, **status) -> None:
    cluster.patch(kind, name, {"status": status}, subresource="status")


def warn(cluster, obj, reason: str, message: str) -> None:
    metadata = obj["metadata"]
    involved = {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "name": metadata["name"]}
    involved |= {"namespace": metadata["namespace"], "uid": metadata["uid"]}
    cluster.create(
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": "warning-", "namespace": metadata["namespace"]},
            "involvedObject": involved,
            "type": "Warning",
            "reason": reason,
            "message": message,
        }
    )


@contextmanager
def controller(cluster, *phases: str, reason: str = "", message: str = "it did not work", seen: list | None = None):
    """Move the next SampleJob through some phases, as the controller does."""

    def act() -> None:
        for event in cluster.watch(Kind.SAMPLE_JOB, timeout_s=_LONG_S):
            if event.type == "ADDED" and not event.object.get("status"):  # those of before stay as they are
                if seen is not None:
                    seen.append(event.object)
                for phase in phases:
                    is_now(cluster, Kind.SAMPLE_JOB, event.object["metadata"]["name"], phase=phase)
                if reason:
                    warn(cluster, event.object, reason, message)
                    is_now(cluster, Kind.SAMPLE_JOB, event.object["metadata"]["name"], phase="Failed")
                return

    thread = threading.Thread(target=act)
    thread.start()
    yield
    thread.join(_LONG_S + 10)
    assert not thread.is_alive()


@pytest.mark.cluster
def test_nothing_is_dropped_and_twice_is_once(cluster, datasets):
    wanted = named(cluster, "a")
    first = datasets.create(wanted)
    again = datasets.create(wanted)
    assert first["metadata"]["resourceVersion"] == again["metadata"]["resourceVersion"]
    assert SampleSet.from_manifest(again).manifest()["spec"] == wanted.manifest()["spec"]
    cluster.apply(source_secret("none"))


@pytest.mark.cluster
@pytest.mark.parametrize("file", SEEDS, ids=lambda file: file.stem)
def test_seed_manifests_are_taken_whole_and_twice_is_once(cluster, file):
    seed = yaml.safe_load(file.read_text())
    seed["metadata"]["namespace"] = cluster.namespace
    is_job = seed["kind"] == "SampleJob"
    read = SampleJob.from_manifest(seed, confirmed=True) if is_job else SampleSet.from_manifest(seed)
    assert read.manifest() == seed, "nothing is lost on the way through"
    first = cluster.apply(read.manifest())  # raises if a field would be dropped
    assert not dropped(seed, first, is_custom=True)
    assert cluster.apply(read.manifest())["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    cluster.delete(cluster.kind_of(seed), seed["metadata"]["name"], wait_s=30)


@pytest.mark.rules
def test_seed_manifests_say_everything_there_is_to_say():
    seeds = [yaml.safe_load(file.read_text())["spec"] for file in SEEDS]
    options = {key for seed in seeds for key in (seed.get("csi") or {}).get("juiceFSMountOptions") or ()}
    assert options == set(MOUNT_OPTIONS)
    assert {key for seed in seeds for key in seed.get("syncOptions") or ()} == set(SYNC_OPTIONS)
    assert {"nodeAffinity", "tolerations", "cache", "csi", "noSync", "source"} <= {
        key for seed in seeds for key in seed
    }


@pytest.mark.cluster
def test_a_name_that_the_sampleset_branch_stalls_on_is_refused_there(cluster, datasets, monkeypatch):
    wanted = SampleSet(f"{named(cluster, 'l').name}-is-longer", SECRET, levels=(Level("/data/jfs", 1024),))
    can = cluster.capabilities()  # of the job's kind, what others have installed there by now
    cloud = replace(can, kinds=can.kinds | {Kind.PADDLE_JOB, PADDLE_SERVICES[1]}, sample_set_ref=True)
    branch = replace(cloud, kinds=cloud.kinds - {PADDLE_SERVICES[1]})
    assert (cloud.paddle_flavour, branch.paddle_flavour) == ("paddlecloud", "sampleset")
    monkeypatch.setattr(cluster, "capabilities", lambda: branch)
    with pytest.raises(InputError, match="port name"):
        datasets.create(wanted)
    monkeypatch.setattr(cluster, "capabilities", lambda: cloud)
    assert datasets.create(wanted, dry_run=True)["metadata"]["name"] == wanted.name


@pytest.mark.cluster
def test_a_schedule_removes_what_its_runs_before_left(cluster, datasets):
    wanted = named(cluster, "k")
    datasets.create(wanted)
    is_now(cluster, Kind.SAMPLE_SET, wanted.name, phase="Ready")
    for schedule, name in (("hourly", "failed"), ("", "by-hand")):
        with controller(cluster, reason="ErrorDoWarmupJob"), pytest.raises(Rejected):
            datasets.run(SampleJob.warmup(name, wanted.name), schedule=schedule, timeout_s=_LONG_S)
    killed = SampleJob.warmup("killed", wanted.name).manifest()
    killed["metadata"]["labels"] = cluster.get(Kind.SAMPLE_JOB, "failed")["metadata"]["labels"]
    cluster.create(killed)
    is_now(cluster, Kind.SAMPLE_JOB, "killed", phase="Running")
    with controller(cluster, "Succeeded"):
        assert datasets.run(SampleJob.warmup("next", wanted.name), schedule="hourly", timeout_s=_LONG_S).is_done
    ours = ("failed", "killed", "next", "by-hand")
    assert [name for name in ours if cluster.get(Kind.SAMPLE_JOB, name)] == ["by-hand"]


@pytest.mark.cluster
def test_a_run_of_a_schedule_knows_it(cluster, datasets, there):
    wanted = named(cluster, "m")
    datasets.create(wanted)
    is_now(cluster, Kind.SAMPLE_SET, wanted.name, phase="Ready")
    *_, cron = datasets.schedule("weekly", "0 3 * * 0", ["clear", wanted.name], image="i", dry_run=True)
    (container,) = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    env = {each["name"]: each["value"] for each in container["env"]}
    seen = []
    with controller(cluster, "Succeeded", seen=seen):
        there(*container["command"][2:], **env)
    assert seen[0]["metadata"]["labels"] == {"cloudedge/schedule": "weekly"}


@pytest.mark.cluster
def test_a_schedule_is_there_in_the_version_the_cluster_has(cluster, datasets):
    told = datasets.schedule("nightly", "0 3 * * *", ["warmup", "criteo"], image="i@sha256:0", dry_run=True)
    kinds = [cluster.kind_of(each) for each in told]
    assert [cluster.get(kind, "nightly") for kind in kinds] == [None] * 4, "nothing was made yet"
    datasets.schedule("nightly", "0 3 * * *", ["warmup", "criteo"], image="i@sha256:0")
    made = [cluster.get(kind, "nightly") for kind in kinds]
    assert [each["kind"] for each in made] == ["ServiceAccount", "Role", "RoleBinding", "CronJob"]
    pod = made[3]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["command"] == ["cloudedge", "dataset", "warmup", "criteo", "--cluster"]
    datasets.schedule("nightly", "0 3 * * *", ["warmup", "criteo"], image="i@sha256:0")
    again = [cluster.get(kind, "nightly")["metadata"]["resourceVersion"] for kind in kinds]
    assert again == [each["metadata"]["resourceVersion"] for each in made], "twice is once"
    datasets.unschedule("nightly")
    assert [cluster.get(kind, "nightly") for kind in kinds] == [None] * 4
    with pytest.raises(NotFound, match=r"the schedule .* does not exist"):
        datasets.unschedule("nightly")


@pytest.mark.cluster
def test_a_schedule_does_not_take_what_is_somebody_elses(cluster, datasets):
    cluster.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "theirs"}})
    with pytest.raises(Conflict, match="cloudedge did not make"):
        datasets.schedule("theirs", "0 3 * * *", ["clear", "criteo"], image="i")


@pytest.mark.cluster
@pytest.mark.parametrize(("flags", "option"), [((), "update"), (("--verify",), "force-update")])
def test_a_copy_sees_changes_that_keep_the_size(cluster, datasets, there, flags, option):
    wanted = named(cluster, option[0])
    datasets.create(wanted)
    is_now(cluster, Kind.SAMPLE_SET, wanted.name, phase="Ready")
    seen = []
    with controller(cluster, "Succeeded", seen=seen):
        there("sync", wanted.name, "--cluster", "--secret", "none", *flags)
    assert seen[0]["spec"]["syncOptions"] == {"threads": 10, option: True}


@pytest.mark.cluster
def test_waiting_goes_through_partial_ready(cluster, datasets):
    wanted = named(cluster, "b")
    datasets.create(wanted)
    is_now(cluster, Kind.SAMPLE_SET, wanted.name, phase="PartialReady", runtimeStatus={"runtimeReady": "1/2"})
    timer = threading.Timer(0.5, lambda: is_now(cluster, Kind.SAMPLE_SET, wanted.name, phase="Ready"))
    timer.start()
    assert datasets.wait(wanted.name, timeout_s=20).is_ready
    timer.join()
    assert wanted.name in [each.name for each in datasets.list()]


@pytest.mark.cluster
def test_a_stall_is_explained_by_its_event(cluster, datasets):
    wanted = named(cluster, "c")
    warn(cluster, datasets.create(wanted), "ErrorSecretNotExist", "secret fs is not there")
    assert "secret fs is not there" in datasets.status(wanted.name).why
    with pytest.raises(DeadlineExceeded, match="secret fs is not there"):
        datasets.wait(wanted.name, timeout_s=1)
    is_now(cluster, Kind.SAMPLE_SET, wanted.name, phase="SyncFailed")
    with pytest.raises(Rejected, match="copying from the source failed"):
        datasets.wait(wanted.name, timeout_s=20)


@pytest.mark.cluster
def test_partial_ready_that_lasts_is_explained_by_its_pods(cluster, datasets):
    wanted = named(cluster, "f")
    warn(cluster, datasets.create(wanted), "ErrorSecretNotExist", "of long ago")
    is_now(cluster, Kind.SAMPLE_SET, wanted.name, phase="PartialReady", runtimeStatus={"runtimeReady": "1/2"})
    assert "of long ago" not in datasets.status(wanted.name).why
    for number, ready in ((0, "True"), (1, "False")):
        pod = runtime_pod(cluster, wanted.name, number)
        warn(cluster, pod, "FailedMount", f"driver csi.juicefs.com not found by {number}")
        conditions = [{"type": "Ready", "status": ready}]
        is_now(cluster, Kind.POD, pod["metadata"]["name"], conditions=conditions)
    why = datasets.status(wanted.name).why
    assert "driver csi.juicefs.com not found by 1" in why
    assert "by 0" not in why, "one that is ready has nothing to explain"


def runtime_pod(cluster, name: str, number: int) -> dict:
    labels = {f"paddlepaddle.org/juicefs-{name}": "true"}
    container = {"name": "runtime", "image": "none", "imagePullPolicy": "Never"}
    # No node has that name: nothing runs, whatever the cluster.
    spec = {
        "containers": [container],
        "nodeSelector": {"cloudedge/none": "none"},
        "automountServiceAccountToken": False,
    }
    metadata = {"name": f"{name}-runtime-{number}", "labels": labels}
    return cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


@pytest.mark.cluster
def test_a_warm_up_that_another_one_blocks_says_how_to_unblock_it(cluster, datasets):
    wanted = named(cluster, "g")
    datasets.create(wanted)
    is_now(cluster, Kind.SAMPLE_SET, wanted.name, phase="Ready")
    with (
        controller(cluster, reason="ErrorDoWarmupJob", message="mkdir /mnt/criteo/.warmup: file exists"),
        pytest.raises(Rejected) as refused,
    ):
        datasets.run(SampleJob.warmup("blocked", wanted.name), timeout_s=_LONG_S)
    assert refused.value.hint.endswith(f"`cloudedge dataset unblock {wanted.name}`.")


@pytest.mark.cluster
def test_a_job_runs_in_the_namespace_it_names(cluster, datasets):
    wanted = named(cluster, "h")
    datasets.create(wanted)
    is_now(cluster, Kind.SAMPLE_SET, wanted.name, phase="Ready")
    job = SampleJob.clear("there", wanted.name, namespace=cluster.namespace)
    elsewhere = Cluster.connect(kubeconfig=kubeconfig(), namespace="default")
    with elsewhere, controller(cluster, "Pending", "Succeeded"):
        assert ClusterDatasets(elsewhere).run(job, timeout_s=_LONG_S).is_done
    assert cluster.get(Kind.SAMPLE_JOB, "there") is None


@pytest.mark.cluster
def test_who_may_look_at_one_namespace_only_can_create(cluster):
    rules = [{"apiGroups": ["batch.paddlepaddle.org"], "resources": ["samplesets"], "verbs": ["*"]}]
    with account(cluster, rules) as limited:
        wanted = named(cluster, "i")
        with pytest.raises(Rejected):
            limited.list(Kind.SAMPLE_SET, everywhere=True)
        assert ClusterDatasets(limited).create(wanted)["metadata"]["name"] == wanted.name


@pytest.mark.cluster
def test_the_name_of_another_namespaces_data_set_is_taken(cluster, datasets):
    wanted = named(cluster, "j")
    datasets.create(wanted)
    with (
        Cluster.connect(kubeconfig=kubeconfig(), namespace="default") as elsewhere,
        pytest.raises(Conflict, match="volume"),
    ):
        ClusterDatasets(elsewhere).create(wanted)


@pytest.mark.cluster
def test_an_operation_runs_once_and_leaves_nothing(cluster, datasets):
    wanted = named(cluster, "d")
    datasets.create(wanted)
    job = SampleJob.warmup("warm", wanted.name, paths=["train"])
    with pytest.raises(Conflict, match="not ready"):
        datasets.run(job)
    is_now(cluster, Kind.SAMPLE_SET, wanted.name, phase="Ready")
    seen: list[str] = []
    with controller(cluster, "Pending", "Running", "Succeeded"):
        assert datasets.run(job, timeout_s=30, on_change=lambda state: seen.append(state.phase)).is_done
    assert seen[-1] == "Succeeded"
    assert cluster.get(Kind.SAMPLE_JOB, "warm") is None


@pytest.mark.cluster
def test_an_operation_that_fails_says_why(cluster, datasets):
    wanted = named(cluster, "e")
    datasets.create(wanted)
    is_now(cluster, Kind.SAMPLE_SET, wanted.name, phase="Ready")
    with controller(cluster, "Pending", reason="ErrorDoWarmupJob"), pytest.raises(Rejected, match="it did not work"):
        datasets.run(SampleJob.warmup("fails", wanted.name), timeout_s=_LONG_S)


@pytest.mark.cluster
def test_a_data_set_that_is_not_there(datasets):
    with pytest.raises(NotFound):
        datasets.status("absent")
    with pytest.raises(NotFound):
        datasets.run(SampleJob.warmup("w", "absent"))
    datasets.delete("absent")


@pytest.mark.cluster
def test_a_schedule_that_upstream_would_drop_is_refused(cluster):
    job = SampleJob.warmup("w", "criteo").manifest()
    job["spec"]["schedule"] = "* * * * *"
    with pytest.raises(InputError, match="schedule"):
        cluster.create(job)
