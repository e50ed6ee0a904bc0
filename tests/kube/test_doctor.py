"""The doctor: decided from what was found, and run against a real cluster and against one that shows nothing."""

import json
import os
import subprocess
import sys

import pytest

from cloudedge.kube import PADDLE_SERVICES, Capabilities, Cluster, Kind
from cloudedge.kube.doctor import COMPONENTS, Examined, Workload, diagnose, examine
from tests.kube.fault_proxy import faults, forward, status
from tests.kube.real_cluster import kubeconfig

OPERATOR = Workload(
    "paddle-system",
    "paddle-controller-manager",
    images=("registry.example:5000/paddle-operator/controller:v0.3.5",),
    words=("--leader-elect", "--namespace=paddle-system"),
)


def examined(*kinds, version=(1, 27), workloads=(), sample_set_ref=False, **more):
    service = next((kind for kind in PADDLE_SERVICES if kind in kinds), None)
    can = Capabilities("v1", version, kinds=frozenset(kinds), paddle_service=service, sample_set_ref=sample_set_ref)
    return Examined(can, workloads=workloads, **more)


def found(name, facts):
    return next(each for each in diagnose(facts) if each.name.startswith(name))


@pytest.mark.rules
def test_an_empty_cluster_has_nothing_and_is_told_how_to_get_it():
    findings = diagnose(examined())
    assert {each.state for each in findings} == {"missing"}
    assert all(each.install and each.enables for each in findings)
    assert len({each.name for each in findings}) == len(COMPONENTS) == 9


@pytest.mark.rules
def test_what_runs_it_says_the_version():
    job = found("PaddleJob", examined(Kind.PADDLE_JOB, workloads=(OPERATOR,)))
    assert (job.state, job.version, job.install) == ("found", "v0.3.5", "")
    assert job.where == "paddle-system/paddle-controller-manager"


@pytest.mark.rules
@pytest.mark.parametrize(
    ("image", "labels", "version"),
    [
        ("volcanosh/vc-scheduler:v1.12.0", {}, "v1.12.0"),
        ("registry.example:5000/volcanosh/vc-scheduler", {}, ""),
        ("volcanosh/vc-scheduler@sha256:0123456789abcdef", {"app.kubernetes.io/version": "1.15.1"}, "1.15.1"),
        ("volcanosh/vc-scheduler@sha256:0123456789abcdef", {}, "sha256:0123456789ab"),
        ("volcanosh/vc-scheduler:v1.12.0@sha256:0123456789abcdef", {}, "v1.12.0"),
    ],
)
def test_versions_of_images(image, labels, version):
    workload = Workload("volcano-system", "volcano-scheduler", images=("sidecar:1", image), labels=labels)
    facts = examined(Kind.POD_GROUP, Kind.VOLCANO_JOB, workloads=(workload,))
    assert found("Volcano", facts).version == version


NOTES = {
    "a job that cannot name a sample set": (
        "PaddleJob",
        examined(Kind.PADDLE_JOB, workloads=(OPERATOR,)),
        ["defined by paddle-operator", "cannot name a SampleSet", "jobs in paddle-system", "Volcano is off"],
    ),
    "a job that can": (
        "PaddleJob",
        examined(Kind.PADDLE_JOB, Kind.SAMPLE_SET, PADDLE_SERVICES[1], sample_set_ref=True),
        ["defined by PaddleCloud", "no workload looks like its controller"],
    ),
    "a job of the branch": (
        "PaddleJob",
        examined(Kind.PADDLE_JOB, Kind.SAMPLE_SET, sample_set_ref=True),
        ["defined by paddle-operator's sampleset branch"],
    ),
    "a version that does not work": (
        "PaddleJob",
        examined(Kind.PADDLE_JOB, workloads=(Workload("p", "c", images=("paddle-operator:v0.3.4",)),)),
        ["install 0.3.5"],
    ),
    "gangs": (
        "PaddleJob",
        examined(
            Kind.PADDLE_JOB,
            workloads=(Workload("p", "c", images=("paddle-operator:1",), words=("--scheduling=volcano",)),),
            groups=frozenset({"kubeflow.org"}),
        ),
        ["Volcano is on", "jobs in all namespaces", "Kubeflow's own PaddleJob"],
    ),
    "both groups of PaddleService": (
        "PaddleService",
        examined(*PADDLE_SERVICES),
        [
            "group elasticserving.paddlepaddle.org",
            "serving.paddlepaddle.org exists too",
            "needs Knative",
            "would refuse the definition",
        ],
    ),
    "PaddleCloud's group": (
        "PaddleService",
        examined(PADDLE_SERVICES[1], Kind.KNATIVE_SERVICE),
        ["group serving.paddlepaddle.org"],
    ),
    "sample sets without their driver": (
        "SampleSet",
        examined(Kind.SAMPLE_SET, Kind.SAMPLE_JOB),
        ["need the JuiceFS CSI driver"],
    ),
}


@pytest.mark.rules
@pytest.mark.parametrize("name", NOTES)
def test_what_a_user_should_know(name):
    component, facts, said = NOTES[name]
    note = found(component, facts).note
    assert [each for each in said if each not in note] == []


@pytest.mark.rules
def test_a_note_that_does_not_apply_is_not_made():
    assert "install" not in found("PaddleJob", examined(Kind.PADDLE_JOB, workloads=(OPERATOR,))).note
    facts = examined(PADDLE_SERVICES[1], Kind.KNATIVE_SERVICE, Kind.SAMPLE_SET, Kind.SAMPLE_JOB)
    assert "Knative" not in found("PaddleService", facts).note
    with_driver = examined(Kind.SAMPLE_SET, Kind.SAMPLE_JOB, csi_drivers=frozenset({"csi.juicefs.com"}))
    assert "CSI" not in found("SampleSet", with_driver).note


@pytest.mark.rules
def test_things_that_only_show_as_what_runs():
    workloads = (
        Workload("kubeflow", "ml-pipeline", images=("gcr.example/ml-pipeline/api-server:2.0.5",)),
        Workload("hub", "hub", images=("quay.example/jupyterhub/k8s-hub:4.1.0",)),
        Workload("ads", "ctr-curves", images=("python:3.11",), words=("visualdl", "--logdir", "/logs")),
    )
    facts = examined(workloads=workloads)
    names = ("Kubeflow", "JupyterHub", "VisualDL")
    assert [(found(name, facts).state, found(name, facts).version) for name in names] == [
        ("found", "2.0.5"),
        ("found", "4.1.0"),
        ("found", ""),
    ]


@pytest.mark.rules
def test_what_may_not_be_seen_is_unknown():
    facts = examined(workloads=None, csi_drivers=None)
    states = {each.name: each.state for each in diagnose(facts)}
    assert [name for name, state in states.items() if state == "unknown"] == [
        "JuiceFS CSI driver",
        "Kubeflow Pipelines",
        "JupyterHub",
        "VisualDL",
    ]


@pytest.mark.cluster
def test_a_cluster_that_shows_little(cluster, tmp_path):
    """The real server, to somebody who may list kinds and nothing else."""
    with faults(kubeconfig()) as proxy:
        proxy.choose = lambda _, path: forward if path.startswith("/version") or _is_discovery(path) else None
        proxy.otherwise = status(403, "Forbidden")
        with Cluster.connect(kubeconfig=proxy.kubeconfig(tmp_path / "config")) as client:
            facts = examine(client)
    assert facts.workloads is None
    assert facts.csi_drivers is None
    assert facts.capabilities.sample_set_ref is None
    assert found("PaddleJob", facts).state == "found"
    assert found("JuiceFS", facts).state == "unknown"


def _is_discovery(path):
    return path.strip("/").count("/") <= 2 and path.startswith("/api")


def run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "cloudedge", "doctor", *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.cluster
def test_the_command(cluster, tmp_path):
    workload = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "ctr-visualdl"},
        "spec": {
            "selector": {"matchLabels": {"app": "v"}},
            "template": {
                "metadata": {"labels": {"app": "v"}},
                "spec": {"containers": [{"name": "v", "image": "visualdl:2.5"}]},
            },
        },
    }
    workload["spec"]["replicas"] = 0
    cluster.apply(workload)
    (tmp_path / "cloudedge.yaml").write_text(
        f"targets:\n  prod: {{kind: kubernetes, kubeconfig: {kubeconfig()}, namespace: ads}}\n  here: {{kind: local}}\n"
    )
    config = str(tmp_path / "cloudedge.yaml")
    done = run("--target", "prod", "--json", CLOUDEDGE_CONFIG=config)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["namespace"] == "ads"
    states = {each["name"]: each["state"] for each in said["components"]}
    assert states["PaddleJob"] == states["VisualDL"] == "found"
    done = run(KUBECONFIG=kubeconfig())
    assert "PaddleJob\tfound\ttraining" in done.stdout
    done = run("--target", "here", CLOUDEDGE_CONFIG=config)
    assert (done.returncode, "kind local" in done.stderr) == (1, True)
    done = run("--target", "nowhere", CLOUDEDGE_CONFIG=config)
    assert (done.returncode, "Targets: here, prod" in done.stderr) == (1, True)


@pytest.mark.parts
def test_no_cluster_at_all(tmp_path):
    done = run(KUBECONFIG=str(tmp_path / "nothing"))
    assert done.returncode == 1
    assert "cannot use the kubeconfig" in done.stderr
