"""With the real paddle-operator 0.3.5 and pods that really run: jobs complete, fail, hang and leave models behind."""

import secrets
import shutil
from pathlib import Path

import pytest

from cloudedge import training
from cloudedge.errors import NotFound
from cloudedge.hub import LocalHub
from cloudedge.kube import Kind
from cloudedge.training import CleanPodPolicy, Intranet, PvcMount, Role, TrainingFailed, TrainingJob
from tests.training.samples import MANIFESTS, completed

pytestmark = pytest.mark.cluster

ENV = "env | grep -E '^(PADDLE|TRAINING|CLOUDEDGE)'"
WAIT_S = 240
FOLDER = Path("/tmp/cloudedge-test")
"""On the node, which is this machine."""


@pytest.fixture(scope="module")
def claim(cluster):
    """A claim on a folder of the node, which is this machine's Docker engine's."""
    name = f"out-{secrets.token_hex(4)}"
    size = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "storageClassName": name}
    cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {**size, "hostPath": {"path": str(FOLDER / name), "type": "DirectoryOrCreate"}},
        }
    )
    cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteMany"],
                "storageClassName": name,
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }
    )
    yield name
    cluster.delete(Kind.PVC, name)
    cluster.delete(Kind.PV, name)
    shutil.rmtree(FOLDER / name, ignore_errors=True)


@pytest.fixture(scope="module")
def runs(cluster, operator, image, claim):
    """Every job of this module, submitted at once: the pods of one wait while those of another run."""

    def role(script, **more):
        return Role(image, command=["sh", "-c", script], **({"replicas": 2} | more))

    write = "mkdir -p $CLOUDEDGE_OUTPUT/deep; echo '{\"auc\": 0.75}' > $CLOUDEDGE_OUTPUT/metrics.json; "
    write += "dd if=/dev/zero of=$CLOUDEDGE_OUTPUT/deep/weights bs=1048576 count=17; echo written"
    keep = {"clean_pod_policy": CleanPodPolicy.NEVER}
    jobs = [
        TrainingJob.collective("collective", role(ENV), **keep),
        TrainingJob.ps("servers", ps=role(ENV), worker=role(ENV), with_gloo=1),
        TrainingJob.ps("endless", ps=role("sleep 600", replicas=1), worker=role("echo done", replicas=1), **keep),
        TrainingJob.collective("fails", role("echo about to fail; exit 3"), **keep),
        TrainingJob.heter("mixed", ps=role(ENV, replicas=1), worker=role(ENV, replicas=1), heter=role(ENV), **keep),
        TrainingJob.single("model", role(write, volumes=[PvcMount(claim, "/models")])).with_output(
            f"pvc://{claim}/ctr"
        ),
        TrainingJob.single("long", role("echo begun; sleep 600"), intranet=Intranet.POD_IP),
    ]
    return {job.name: training.submit(job, cluster=cluster) for job in jobs}


def environment(run, **which):
    return dict(line.text.split("=", 1) for line in run.logs(**which) if "=" in line.text)


def test_collective_completes(runs):
    seen = []
    done = runs["collective"].wait(timeout_s=WAIT_S, on_change=seen.append)
    assert (done.state, done.mode) == ("succeeded", "Collective")
    assert seen[-1].state == "succeeded"
    for rank in (0, 1):
        env = environment(runs["collective"], role="worker", index=rank)
        assert (env["PADDLE_TRAINER_ID"], env["PADDLE_TRAINERS_NUM"]) == (str(rank), "2")
        assert len(env["PADDLE_TRAINER_ENDPOINTS"].split(",")) == 2


def test_parameter_servers_complete_and_their_pods_go(runs):
    done = runs["servers"].wait(timeout_s=WAIT_S)
    assert (done.state, done.mode) == ("succeeded", "PS")  # the phase lags behind what pods say


def test_a_finished_job_is_not_restarted_by_submitting_it_again(runs, cluster):
    runs["collective"].wait(timeout_s=WAIT_S)
    again = training.submit(
        TrainingJob.collective(
            "collective",
            Role(runs["collective"].outputs.image, replicas=2, command=["sh", "-c", ENV]),
            clean_pod_policy=CleanPodPolicy.NEVER,
        ),
        cluster=cluster,
    )
    assert again.uid == runs["collective"].uid


def test_servers_that_never_end_do_not_keep_a_job_from_being_done(runs):
    done = runs["endless"].wait(timeout_s=WAIT_S, ps_done_when_workers_done=True)
    assert done.state == "succeeded"
    assert (done.roles["ps"].wanted, done.roles["ps"].succeeded) == (1, 0)
    assert done.phase != "Completed"
    runs["endless"].delete()


def test_a_failure_comes_with_what_was_written_last(runs):
    with pytest.raises(TrainingFailed, match="about to fail") as caught:
        runs["fails"].wait(timeout_s=WAIT_S)
    assert "ended with 3" in caught.value.message
    assert caught.value.status["state"] == "failed"


def test_heter_pods_are_told_what_paddle_understands(runs):
    runs["mixed"].wait(timeout_s=WAIT_S)
    env = environment(runs["mixed"], role="heter", index=0)
    assert env["TRAINING_ROLE"] == env["PADDLE_TRAINING_ROLE"] == "HETER_TRAINER"
    assert env["PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST"] == env["PADDLE_HETER_ENDPOINTS"]
    assert environment(runs["mixed"], role="worker")["TRAINING_ROLE"] == "TRAINER"


def test_the_model_is_fetched_from_its_claim_and_packed(runs, tmp_path, hub, claim):
    run = runs["model"]
    run.wait(timeout_s=WAIT_S)
    bundle = run.outputs.pack("ctr", folder=tmp_path / "model", hub=hub)
    assert (tmp_path / "model" / "deep" / "weights").stat().st_size == 17 << 20
    assert bundle.lineage.job == f"{run.namespace}/model@{run.uid}"
    assert bundle.lineage.metrics == {"auc": 0.75}
    assert isinstance(hub, LocalHub)
    left = [
        pod["metadata"]["name"] for pod in run.cluster.list(Kind.POD, selector="app.kubernetes.io/managed-by=cloudedge")
    ]
    assert all("deletionTimestamp" in run.cluster.get(Kind.POD, name)["metadata"] for name in left)
    nothing = training.Outputs(
        f"pvc://{claim}/nowhere", run.outputs.lineage, run.namespace, run.outputs.image, run.cluster
    )
    with pytest.raises(NotFound, match="nowhere"):
        nothing.fetch(tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_stopping_keeps_the_logs(runs):
    run = runs["long"]
    for line in run.logs(follow=True, timeout_s=WAIT_S):
        assert line.text == "begun"
        break
    kept = run.stop()
    assert "begun" in (kept / "long-worker-0.log").read_text()
    assert run.status().state == "gone"
    with pytest.raises(TrainingFailed, match="was deleted"):
        run.wait(timeout_s=5)


def test_a_seed_manifest_completes_with_an_image_of_ours(cluster, operator, image):
    text = (
        (MANIFESTS / "ps-gloo-clean-policy.yaml").read_text().replace("registry.example/demo-wide-and-deep:v1", image)
    )
    job = TrainingJob.from_yaml(text)
    for name in ("ps", "worker"):
        job.manifest["spec"][name]["template"]["spec"]["containers"][0]["command"] = ["echo", "trained"]
    run = training.submit(job, cluster=cluster)
    assert completed(run, timeout_s=WAIT_S).state == "succeeded"
