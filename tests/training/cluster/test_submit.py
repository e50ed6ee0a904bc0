"""Against a real API server with upstream's definitions: nothing is dropped, twice is once, names do not collide."""

import copy
import os
import re
import secrets
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone

import pytest

from cloudedge import training
from cloudedge.clock import ManualClock
from cloudedge.errors import Conflict, DeadlineExceeded, InputError, NotFound, Unavailable
from cloudedge.kube import Cluster, Kind
from cloudedge.training import Flavour, Gang, PvcMount, Samples, TrainingJob
from cloudedge.training.results._volume_claim import copy_from_claim
from tests.kube.fault_proxy import faults, status
from tests.kube.real_cluster import definition, kubeconfig, serve
from tests.training.samples import BUILT, OPERATOR, PADDLECLOUD, SEEDS, VOLCANO, WITH_SAMPLES, role

pytestmark = pytest.mark.cluster

JOBS = {**{f"built-{n}": job for n, job in BUILT.items()}, **{f.stem: TrainingJob.from_yaml(f) for f in SEEDS}}


@contextmanager
def beside(cluster, file):
    """Install one of upstream's definitions under a group of its own, beside the others of its name."""
    crd, own = definition(file.removesuffix(".yaml")), f"t{secrets.token_hex(4)}.cloudedge.test"
    group = crd["spec"]["group"]
    crd["metadata"]["name"], crd["spec"]["group"] = f"{crd['spec']['names']['plural']}.{own}", own
    crd["metadata"].get("annotations", {}).pop("api-approved.kubernetes.io", None)
    crd["spec"]["names"].pop("shortNames", None)
    serve(cluster, crd)
    yield group, own
    cluster.delete(Kind.CRD, crd["metadata"]["name"])


@pytest.fixture(scope="module", params=[Flavour.OPERATOR, Flavour.PADDLECLOUD], ids=lambda f: f.value)
def flavour(request, cluster):
    """Both of upstream's PaddleJobs, one after the other."""
    with beside(cluster, OPERATOR if request.param is Flavour.OPERATOR else PADDLECLOUD) as (_, group):
        yield request.param, group


@pytest.fixture(scope="module", params=["1.12.0", "1.15.1"])
def volcano(request, cluster):
    """Volcano's definitions of two versions, one after the other: by group, where they are instead."""
    with (
        beside(cluster, VOLCANO["Job", request.param]) as job,
        beside(cluster, VOLCANO["PodGroup", request.param]) as pod,
    ):
        yield dict([job, pod])


@pytest.mark.parametrize("name", [n for n, job in JOBS.items() if not job.is_volcano])
def test_paddle_jobs_are_taken_whole_and_twice_is_once(cluster, flavour, name):
    which, group = flavour
    job = JOBS[name].in_namespace(cluster.namespace)
    if "sampleSetRef" in job.manifest["spec"] and not which.has_samples:
        with pytest.raises(InputError, match="without its data"):
            job.to_manifest(which)
        return
    for manifest in job.to_manifest(which):
        custom = manifest["kind"] == "PaddleJob"
        sent = manifest | ({"apiVersion": f"{group}/v1"} if custom else {})
        once = cluster.apply(sent)  # raises if a field would be dropped
        again = cluster.apply(sent)
        assert once["metadata"]["resourceVersion"] == again["metadata"]["resourceVersion"]
        assert _covers(again["spec"], manifest["spec"])


@pytest.mark.parametrize("name", [n for n, job in JOBS.items() if job.is_volcano])
def test_volcano_jobs_are_taken_whole_and_twice_is_once(cluster, volcano, name):
    for manifest in JOBS[name].in_namespace(cluster.namespace).to_manifest():
        group, _, version = manifest["apiVersion"].partition("/")
        sent = manifest | {"apiVersion": f"{volcano.get(group, group)}/{version}"}
        once = cluster.apply(sent)
        again = cluster.apply(sent)
        assert once["metadata"]["resourceVersion"] == again["metadata"]["resourceVersion"]
        assert _covers(again["spec"], manifest["spec"])


def _covers(found, sent):
    if isinstance(sent, dict):
        return isinstance(found, dict) and all(key in found and _covers(found[key], sent[key]) for key in sent)
    if isinstance(sent, list):
        return len(found) == len(sent) and all(map(_covers, found, sent))
    return found == sent


def test_the_same_job_twice_is_once_and_another_is_a_conflict(cluster):
    job = TrainingJob.single("twice", role())
    run = training.submit(job, cluster=cluster)
    assert training.submit(job, cluster=cluster).uid == run.uid
    other = TrainingJob.single("twice", role(env={"A": "2"}))
    with pytest.raises(Conflict, match=r"another job has that name.*waiting") as caught:
        training.submit(other, cluster=cluster)
    assert "--replace" in caught.value.hint
    again = training.submit(other, cluster=cluster, replace=True)
    assert again.uid != run.uid
    # The old run never takes the new one's state for its own.
    assert run.status().state == "gone"
    assert again.status().state == "waiting"
    again.delete()
    again.delete()
    assert again.status().state == "gone"


class Deaf(Cluster):
    """Loses the answer to every creation of a job that was carried out."""

    def create(self, obj, *, dry_run=False):
        found = super().create(obj, dry_run=dry_run)
        if obj["kind"] == "PaddleJob":
            raise Unavailable("the connection broke")
        return found


def test_an_answer_that_is_lost_does_not_lose_the_job(cluster):
    deaf = Deaf.connect(kubeconfig=_kubeconfig(), namespace=cluster.namespace)
    with deaf:
        run = training.submit(TrainingJob.single("heard", role()), cluster=deaf)
    assert run.uid == cluster.get(Kind.PADDLE_JOB, "heard")["metadata"]["uid"]


def test_a_finalizer_nobody_removes_is_named(cluster):
    run = training.submit(TrainingJob.single("held", role()), cluster=cluster)
    cluster.patch(Kind.PADDLE_JOB, "held", {"metadata": {"finalizers": ["finalizers.paddlepaddle.org"]}})
    with pytest.raises(DeadlineExceeded, match=r"finalizers\.paddlepaddle\.org"):
        run.delete(wait_s=1)
    with Cluster.connect(kubeconfig=_kubeconfig(), namespace=cluster.namespace, clock=_later()) as later:
        status = training.attach("held", cluster=later).status()
    assert status.state == "deleting"
    assert "patch metadata.finalizers to null" in status.reasons[0]
    with pytest.raises(Conflict, match="being deleted"):
        training.submit(TrainingJob.single("held", role()), cluster=cluster)
    cluster.patch(Kind.PADDLE_JOB, "held", {"metadata": {"finalizers": None}})
    assert training.submit(TrainingJob.single("held", role()), cluster=cluster, replace=True).uid != run.uid


def test_where_no_controller_watches_the_status_says_so(cluster):
    training.submit(TrainingJob.single("silent", role()), cluster=cluster)
    with Cluster.connect(kubeconfig=_kubeconfig(), namespace=cluster.namespace, clock=_later()) as later:
        run = training.attach("silent", cluster=later)
        (reason,) = run.status().reasons
        assert "no controller watches" in reason
        with pytest.raises(DeadlineExceeded, match="no controller watches"):
            run.wait(timeout_s=1)


def _later():
    return ManualClock(at=datetime.now(timezone.utc) + timedelta(minutes=5))


def _kubeconfig():
    return os.environ["CLOUDEDGE_TEST_KUBECONFIG"]


def test_pods_the_server_would_refuse_are_found_before(cluster):
    wrong = {
        "resources": {
            "spec": {
                "containers": [{"name": "paddle", "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}]
            }
        },
        "memory": {"spec": {"containers": [{"name": "paddle", "resources": {"requests": {"memory": "lots"}}}]}},
        "misspelt": {"spec": {"containers": [{"name": "paddle", "volumeMount": []}]}},
    }
    for name, over in wrong.items():
        with pytest.raises(InputError) as caught:
            training.submit(TrainingJob.single(f"bad-{name}", role(pod_overrides=over)), cluster=cluster)
        # What the job's own definition knows is left to it.
        assert name == "misspelt" or caught.value.findings[0]["rule"] == "pod"
        assert cluster.get(Kind.PADDLE_JOB, f"bad-{name}") is None


def test_waiting_goes_on_while_the_server_does_not_answer(cluster, tmp_path):
    training.submit(TrainingJob.single("patient", role()), cluster=cluster)
    refused = []

    def broken(_state):
        """Let the server be away for a while, and the job end meanwhile."""
        if not refused:
            proxy.script = [status(503, "ServiceUnavailable")] * 20
            refused.extend(proxy.script)
            cluster.patch(Kind.PADDLE_JOB, "patient", {"status": {"phase": "Completed"}}, subresource="status")

    with faults(kubeconfig()) as proxy:
        config = proxy.kubeconfig(tmp_path / "config")
        with Cluster.connect(kubeconfig=config, namespace=cluster.namespace, clock=ManualClock()) as client:
            run = training.attach("patient", cluster=client)
            assert run.wait(timeout_s=600, on_change=broken).state == "succeeded"
            assert (len(refused), proxy.script) == (20, [])
            proxy.otherwise = status(503, "ServiceUnavailable")
            with pytest.raises(Unavailable):
                run.wait(timeout_s=600)


def test_a_queue_with_queues_below_it_takes_no_jobs(cluster):
    parent, leaf = (f"{cluster.namespace}-{end}" for end in ("team", "ads"))
    queue = {"apiVersion": Kind.QUEUE.api_version, "kind": "Queue"}
    try:
        cluster.apply(queue | {"metadata": {"name": parent}, "spec": {"weight": 1}})
        cluster.apply(queue | {"metadata": {"name": leaf}, "spec": {"weight": 1, "parent": parent}})
        with pytest.raises(InputError, match=f"only in leaves. Use one of: {leaf}"):
            training.plan_submit(TrainingJob.single("queued", role()).with_queue(parent), cluster=cluster)
        plan = training.plan_submit(TrainingJob.single("queued", role()).with_queue(leaf), cluster=cluster)
        assert plan.manifests[-1]["spec"]["schedulingPolicy"]["queue"] == leaf
    finally:
        for name in (leaf, parent):
            cluster.delete(Kind.QUEUE, name)


def test_what_is_missing_on_the_cluster_is_named(cluster):
    job = TrainingJob.ps(
        "lacks",
        ps=role(),
        worker=role(volumes=[PvcMount("nowhere", "/out")]),
        gang=Gang("no-such-queue"),
    ).with_class("guaranteed")
    with pytest.raises(InputError) as caught:
        training.submit(job, cluster=cluster)
    rules = {finding["rule"] for finding in caught.value.findings}
    priority = cluster.get(Kind.PRIORITY_CLASS, "cloudedge-guaranteed")
    assert rules == {"no-queue"} | (set() if priority else {"no-priority-class"})
    absent = TrainingJob.single("lost", role(), namespace=f"none-{secrets.token_hex(4)}")
    with pytest.raises(InputError, match=r"the namespace .* does not exist"):
        training.submit(absent, cluster=cluster)
    plan = training.plan_submit(TrainingJob.single("waits", role(volumes=[PvcMount("nowhere", "/o")])), cluster=cluster)
    assert [f.rule for f in plan.findings if f.severity == "warning"] == ["no-claim"]
    assert cluster.get(Kind.PADDLE_JOB, "waits") is None


def test_samples_that_are_not_there_are_named(cluster):
    job = TrainingJob.single("cached", role(), samples=Samples("no-such-set", "/mnt/data"))
    with pytest.raises(InputError, match=re.compile(r"the SampleSet .* does not exist|without its data")):
        training.submit(job, cluster=cluster)
    assert WITH_SAMPLES.validate(Flavour.OPERATOR)[0].rule == "samples-flavour"


def test_the_priority_classes_are_taken(cluster):
    for each in training.JOB_CLASSES.values():
        found = cluster.apply(each.to_priority_class(), dry_run=True)
        assert found["preemptionPolicy"] == each.preemption


def test_a_group_goes_with_its_job(cluster):
    run = training.submit(
        TrainingJob.ps("grouped", ps=role(), worker=role(), gang=Gang(how="podgroup")), cluster=cluster
    )
    group = cluster.get(Kind.POD_GROUP, "grouped")
    assert [owner["uid"] for owner in group["metadata"]["ownerReferences"]] == [run.uid]
    assert (
        training.submit(
            TrainingJob.ps("grouped", ps=role(), worker=role(), gang=Gang(how="podgroup")), cluster=cluster
        ).uid
        == run.uid
    )


def test_a_group_whose_submitter_was_killed_goes_with_its_job_too(cluster):
    job = TrainingJob.ps("orphan", ps=role(), worker=role(), gang=Gang(how="podgroup"))

    class Killed(Cluster):
        """Ends between the creation of a job and what follows."""

        def create(self, obj, *, dry_run=False):
            found = super().create(obj, dry_run=dry_run)
            if obj["kind"] == "PaddleJob":
                raise KeyboardInterrupt
            return found

    with (
        Killed.connect(kubeconfig=_kubeconfig(), namespace=cluster.namespace) as dying,
        pytest.raises(KeyboardInterrupt),
    ):
        training.submit(job, cluster=dying)
    assert not cluster.get(Kind.POD_GROUP, "orphan")["metadata"].get("ownerReferences")
    run = training.submit(job, cluster=cluster)
    group = cluster.get(Kind.POD_GROUP, "orphan")
    assert [owner["uid"] for owner in group["metadata"]["ownerReferences"]] == [run.uid]
    training.submit(job, cluster=cluster)
    assert cluster.get(Kind.POD_GROUP, "orphan")["metadata"]["resourceVersion"] == group["metadata"]["resourceVersion"]
    cluster.delete(Kind.POD_GROUP, "orphan")
    training.submit(job, cluster=cluster)
    assert cluster.get(Kind.POD_GROUP, "orphan") is None, "the job's end took it away, as paddle-operator does"


def test_a_group_that_somebody_made_is_warned_about(cluster):
    group = {"apiVersion": Kind.POD_GROUP.api_version, "kind": "PodGroup", "metadata": {"name": "adopted"}}
    cluster.apply(group | {"spec": {"minMember": 7}})
    plan = training.plan_submit(TrainingJob.single("adopted", role()), cluster=cluster)
    (found,) = [each for each in plan.findings if each.rule == "pod-group-adopted"]
    assert "minMember 7" in found.message
    uid = training.carry_out(plan, cluster).uid
    owner = {"apiVersion": Kind.PADDLE_JOB.api_version, "kind": "PaddleJob", "name": "adopted", "uid": uid}
    cluster.patch(Kind.POD_GROUP, "adopted", {"metadata": {"ownerReferences": [owner]}})
    again = training.plan_submit(TrainingJob.single("adopted", role()), cluster=cluster)
    assert "pod-group-adopted" not in [each.rule for each in again.findings], "the controller's own"


def test_what_is_in_no_namespace_may_lie_beside_a_job(cluster):
    name = f"lister-{cluster.namespace}"
    role_of_all = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}}
    role_of_all["rules"] = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    urgent = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": 7}
    job = TrainingJob.single("beside", role(pod_overrides={"spec": {"priorityClassName": name}}))
    try:
        training.submit(TrainingJob(job.manifest, (role_of_all, urgent)), cluster=cluster)
        assert cluster.get(Kind.PRIORITY_CLASS, name)["value"] == 7
        assert cluster.get(cluster.kind_of(role_of_all), name)["rules"] == role_of_all["rules"]
    finally:
        cluster.delete(Kind.PRIORITY_CLASS, name)
        cluster.delete(cluster.kind_of(role_of_all), name)


def test_a_pod_whose_creation_was_not_answered_is_deleted_too(cluster, tmp_path):
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    cluster.apply({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "out"}, "spec": claim})

    class DeafToPods(Cluster):
        def create(self, obj, *, dry_run=False):
            super().create(obj, dry_run=dry_run)
            raise Unavailable("the connection broke")

    with DeafToPods.connect(kubeconfig=_kubeconfig(), namespace=cluster.namespace) as deaf:  # noqa: SIM117
        with pytest.raises(Unavailable):
            copy_from_claim(deaf, cluster.namespace, "out", "", tmp_path / "out", image="i")
    left = cluster.list(Kind.POD, selector="app.kubernetes.io/managed-by=cloudedge")
    assert [pod for pod in left if not pod["metadata"].get("deletionTimestamp")] == []


def test_sidecars_are_kept_out_of_namespaces_that_inject_them(cluster):
    cluster.patch(Kind.NAMESPACE, cluster.namespace, {"metadata": {"labels": {"istio-injection": "enabled"}}})
    try:
        training.submit(TrainingJob.single("alone", role()), cluster=cluster)
    finally:
        cluster.patch(Kind.NAMESPACE, cluster.namespace, {"metadata": {"labels": {"istio-injection": None}}})
    sent = cluster.get(Kind.PADDLE_JOB, "alone")["spec"]["worker"]["template"]["metadata"]
    assert sent["annotations"] == {"sidecar.istio.io/inject": "false"}


def test_jobs_are_listed_and_found(cluster):
    training.submit(TrainingJob.single("listed", role()), cluster=cluster)
    training.submit(copy.deepcopy(BUILT["ctr"]).in_namespace(cluster.namespace), cluster=cluster, replace=True)
    found = {each.name: each for each in training.list_runs(cluster=cluster)}
    assert found["listed"].state == "waiting"
    assert found["ctr"].mode == "Tasks"
    assert training.attach("listed", cluster=cluster).kind == Kind.PADDLE_JOB
    with pytest.raises(NotFound, match=r"the training job .* does not exist"):
        training.attach("never-submitted", cluster=cluster)
    with pytest.raises(NotFound, match="no such pods"):
        training.attach("listed", cluster=cluster).logs()
    with pytest.raises(InputError, match="not elastic"):
        training.attach("listed", cluster=cluster).scale(3)
    with pytest.raises(NotFound, match="does not name the location"):
        training.attach("listed", cluster=cluster).outputs.fetch("x")
    grows = training.submit(BUILT["elastic"].in_namespace(cluster.namespace), cluster=cluster, replace=True)
    grows.scale(5)
    assert cluster.get(Kind.PADDLE_JOB, "grows")["spec"]["worker"]["replicas"] == 5
