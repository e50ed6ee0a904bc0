"""Jobs of both modes complete in our trainer image, with the real paddle-operator. Minutes: CLOUDEDGE_TEST_DOCKER=1."""

from pathlib import Path

import pytest
from lab_images import built, needs_docker

from cloudedge import training
from cloudedge.training import CleanPodPolicy, Role, TrainingJob

HERE = Path(__file__).parent
SCRIPTS = ("training_allreduce.py", "training_servers.py")
WAIT_S = 600
"""Importing Paddle in several pods at once takes its time on a small machine."""

pytestmark = [needs_docker, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def trainer(cluster):
    """Say how a role runs one of our scripts in our image."""
    data = {name: (HERE / name).read_text() for name in SCRIPTS}
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

    def role(*command, **more):
        return Role(image, replicas=2, command=[*command], pod_overrides=overrides, **more)

    return role


def test_workers_train_together(cluster, operator, trainer):
    """Paddle's launcher finds the other worker by what the controller tells it; gloo adds up their tensors."""
    launch = ["python", "-m", "paddle.distributed.launch", "--nproc_per_node", "1"]
    worker = trainer(*launch, "/scripts/training_allreduce.py", env={"CLOUDEDGE_OUTPUT": "/job"})
    job = TrainingJob.collective("ours-collective", worker, clean_pod_policy=CleanPodPolicy.NEVER)
    run = training.submit(job, cluster=cluster)
    done = run.wait(timeout_s=WAIT_S)
    assert (done.state, done.mode, done.phase) == ("succeeded", "Collective", "Completed")
    for rank in (0, 1):
        assert f"rank {rank} of 2 has 3" in [line.text for line in run.logs(role="worker", index=rank)]


def test_workers_reach_their_servers(cluster, operator, trainer):
    role = trainer("python", "/scripts/training_servers.py")
    run = training.submit(
        TrainingJob.ps("ours-servers", ps=role, worker=role, clean_pod_policy=CleanPodPolicy.NEVER), cluster=cluster
    )
    done = run.wait(timeout_s=WAIT_S)
    assert (done.state, done.mode, done.phase) == ("succeeded", "PS", "Completed")
    for number in (0, 1):
        assert [line.text for line in run.logs(role="ps", index=number)] == [f"server {number} saw 2 workers"]
        assert [line.text for line in run.logs(role="worker", index=number)] == [f"worker {number} reached 2 servers"]
