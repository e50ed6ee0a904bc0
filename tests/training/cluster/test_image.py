"""Jobs of both modes complete in our trainer image, with the real paddle-operator. Minutes: CLOUDEDGE_TEST_DOCKER=1."""

import secrets
import subprocess
from pathlib import Path

import pytest

from cloudedge import training
from cloudedge.kube import Kind
from cloudedge.training import CleanPodPolicy, Role, TrainingJob
from tests.images.built_images import ROOT, built, needs_docker
from tests.training.samples import check_click_lines, click_job, completed

HERE = Path(__file__).parent
SCRIPT = "server_job.py"
WAIT_S = 600
"""Importing Paddle in several pods at once takes its time on a small machine."""

pytestmark = [pytest.mark.cluster, needs_docker, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def trainer(cluster):
    """Say how a role runs our script in our image."""
    data = {SCRIPT: (HERE / SCRIPT).read_text()}
    cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "scripts"}, "data": data})
    image = built("trainer")
    mount = {"name": "scripts", "mountPath": "/scripts"}
    overrides = {
        "spec": {
            "securityContext": {"runAsNonRoot": True, "runAsUser": 10001},
            "volumes": [{"name": "scripts", "configMap": {"name": "scripts"}}],
            "containers": [{"name": "paddle", "imagePullPolicy": "Never", "volumeMounts": [mount]}],
        }
    }

    return Role(image, replicas=2, command=["python", f"/scripts/{SCRIPT}"], pod_overrides=overrides)


def test_workers_reach_their_servers(cluster, operator, trainer):
    job = TrainingJob.ps("ours-servers", ps=trainer, worker=trainer, clean_pod_policy=CleanPodPolicy.NEVER)
    run = training.submit(job, cluster=cluster)
    done = completed(run, timeout_s=WAIT_S)
    assert (done.state, done.mode, done.phase) == ("succeeded", "PS", "Completed")
    for number in (0, 1):
        assert [line.text for line in run.logs(role="ps", index=number)] == [f"server {number} saw 2 workers"]
        assert [line.text for line in run.logs(role="worker", index=number)] == [f"worker {number} reached 2 servers"]


@pytest.fixture
def models(cluster, tmp_path):
    """The claim that the click model's job names, on a folder of the node, which is this machine."""
    volume = f"models-{secrets.token_hex(4)}"
    size = {"accessModes": ["ReadWriteMany"], "storageClassName": volume}
    folder = tmp_path / "models"
    folder.mkdir()
    folder.chmod(0o777)  # the pods' user is nobody here
    spec = {**size, "capacity": {"storage": "1Gi"}, "hostPath": {"path": str(folder)}}
    cluster.apply(
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume}, "spec": spec},
    )
    spec = {**size, "resources": {"requests": {"storage": "1Gi"}}}
    cluster.apply({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "models"}, "spec": spec})
    yield
    cluster.delete(Kind.PVC, "models")
    cluster.delete(Kind.PV, volume)


def test_the_click_model_is_trained_by_two_pods_and_becomes_a_bundle(cluster, operator, models, hub):
    """As the example's README says: its image on top of ours, its job, its model fetched, split and packed.

    Paddle's launcher finds the other worker by what the controller tells it; gloo adds up their gradients.
    """
    ctr, image = ROOT / "examples" / "ctr", "cloudedge-test/ctr-trainer:1"
    options = ["--tag", image, "--build-arg", f"BASE={built('trainer')}", "--file", ctr / "trainer.Dockerfile"]
    subprocess.run(["docker", "build", "--quiet", *options, ctr], check=True)
    run = training.submit(click_job(image), cluster=cluster)
    done = completed(run, timeout_s=WAIT_S)
    assert (done.state, done.mode, done.phase) == ("succeeded", "Collective", "Completed")
    said = {rank: [line.text for line in run.logs(role="worker", index=rank)] for rank in (0, 1)}
    check_click_lines({rank: [line for line in lines if line.startswith("worker")] for rank, lines in said.items()})
    bundle = run.outputs.pack("ctr", split=True, hub=hub)
    assert list(bundle.sparse) == ["embedding"]
    assert (bundle.lineage.job, bundle.lineage.code) == (f"{run.namespace}/ctr@{run.uid}", image)
    assert bundle.lineage.metrics["auc"] > 0.5
