"""The steps against a real API server with upstream's definitions; what controllers would write, a thread writes."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pytest
import yaml

from cloudedge.errors import CloudEdgeError, Conflict, NotFound, Rejected
from cloudedge.kube import PADDLE_SERVICES, Kind, dropped
from cloudedge.pipeline import (
    ClusterSteps,
    DatasetInputs,
    ModelHubInputs,
    ModelRecord,
    ServingInputs,
    TrainingInputs,
    VisualDLInputs,
    objects_of,
)
from cloudedge.pipeline import _cluster as module
from tests import ROOT
from tests.kube.real_cluster import collected, lab, serve
from tests.serving.knative.controller_double import REVISION_DEFINITION, KnativeDouble

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def cluster():
    with lab("paddlejobs", "samplesets", "samplejobs", "paddleservices", "services.serving") as found:
        serve(found, REVISION_DEFINITION)
        found.capabilities(again=True)
        with collected(found, Kind.PADDLE_JOB, Kind.JOB, Kind.SAMPLE_JOB, Kind.DEPLOYMENT, Kind.SERVICE):
            yield found


class Controllers:
    """Everything that would act on a step's objects, in one thread: each runs to its end at once, or fails."""

    def __init__(self, cluster) -> None:
        self._cluster = cluster
        self._stop = threading.Event()
        self.done: set[str] = set()
        """Uids of what was run."""
        self.ran: list[str] = []
        """Names of what was run, in order; the same twice if it was made anew."""
        self.fail: dict[str, str] = {}
        """Names of what fails, with what its event says."""
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            for kind in (Kind.SAMPLE_SET, Kind.SAMPLE_JOB, Kind.PADDLE_JOB, Kind.JOB, Kind.DEPLOYMENT):
                for each in self._cluster.list(kind):
                    try:
                        self._act(kind, each)
                    except CloudEdgeError:  # deleted meanwhile
                        continue

    def _act(self, kind: Kind, obj) -> None:
        name, uid = obj["metadata"]["name"], obj["metadata"]["uid"]
        if obj["metadata"].get("deletionTimestamp"):
            # Nobody collects garbage here: what waits for it is let go.
            self._cluster.patch(kind, name, {"metadata": {"finalizers": None}})
            return
        if kind == Kind.DEPLOYMENT:
            count = {"replicas": 1, "updatedReplicas": 1, "availableReplicas": 1, "readyReplicas": 1}
            self._is(kind, name, **count, observedGeneration=obj["metadata"]["generation"])
            return
        if uid in self.done:
            return
        self.done.add(uid)
        self.ran.append(name)
        failed = name in self.fail
        if kind == Kind.SAMPLE_SET:
            self._is(kind, name, phase="Ready")
        elif kind == Kind.SAMPLE_JOB:
            if failed:
                self._warn(obj, self.fail[name])
            self._is(kind, name, phase="Failed" if failed else "Succeeded")
        elif kind == Kind.PADDLE_JOB:
            self._is(kind, name, phase="Failed" if failed else "Completed", mode="Single")
        else:
            condition = {"type": "Failed" if failed else "Complete", "status": "True"}
            self._is(kind, name, conditions=[condition])

    def _is(self, kind: Kind, name: str, **status) -> None:
        self._cluster.patch(kind, name, {"status": status}, subresource="status")

    def _warn(self, obj, message: str) -> None:
        metadata = obj["metadata"]
        involved = {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "name": metadata["name"]}
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": "warning-", "namespace": metadata["namespace"]},
            "involvedObject": involved | {"namespace": metadata["namespace"], "uid": metadata["uid"]},
            "type": "Warning",
            "reason": "ErrorDoRmrJob",
            "message": message,
        }
        self._cluster.create(event)


@pytest.fixture(autouse=True)
def center(cluster, monkeypatch):
    """The shared SampleSet's name has to be unique in the whole cluster, which others test on too."""
    name = f"dc-{cluster.namespace.removeprefix('test-')}"
    monkeypatch.setattr("cloudedge.pipeline._objects.DATA_CENTER", name)
    return name


@pytest.fixture
def world(cluster):
    with Controllers(cluster) as controllers:
        yield ClusterSteps(cluster), controllers


@pytest.fixture
def data(cluster):
    def made(**more):
        given = {"name": "clicks", "source_uri": "s3://bucket/clicks/", "source_secret": "none"}
        return DatasetInputs(**(given | {"namespace": cluster.namespace, "timeout_minutes": 1} | more))

    return made


@pytest.fixture
def trained(cluster):
    def made(**more):
        given = {"name": "ocr", "project": "PaddleOCR", "image": "ocr:1", "config_path": "c.yml", "dataset": "clicks"}
        given |= {"pvc_name": "claim", "worker_replicas": 2, "namespace": cluster.namespace, "timeout_minutes": 1}
        return TrainingInputs(**(given | more))

    return made


def left(cluster) -> list[str]:
    kinds = (Kind.SAMPLE_JOB, Kind.PADDLE_JOB, Kind.JOB, Kind.DEPLOYMENT)
    found = [f"{kind.kind}/{each['metadata']['name']}" for kind in kinds for each in cluster.list(kind)]
    return found + [s["metadata"]["name"] for s in cluster.list(Kind.SERVICE)]


def test_the_server_keeps_every_field_of_every_object(cluster, data, trained):
    common = {"name": "ocr", "namespace": cluster.namespace}
    steps = [
        data(),
        data(action="delete"),
        trained(
            use_visualdl=True, worker_replicas=1, ps_replicas=1, gpu_per_node=2, pretrain_model="https://h/w.pdparams"
        ),
        ModelHubInputs(**common, model_name="ocr", pvc_name="claim"),
        VisualDLInputs(**common, pvc_name="claim", logdir="/mnt/task-center/l", api_only=True),
    ]
    checked = [each for step in steps for each in objects_of(step)]
    for kind in PADDLE_SERVICES:
        checked += objects_of(ServingInputs(**common, image="h:5000/s:1", model_name="ocr"), kind=kind)
    for each in checked:
        made = cluster.apply(each, dry_run=True)
        assert not dropped(each, made, is_custom=cluster.kind_of(each).is_custom), each["kind"]
    assert {each["kind"] for each in checked} == {
        *("SampleSet", "SampleJob", "PaddleJob", "Job", "Deployment", "Service", "PaddleService"),
    }


def test_what_a_cluster_needs_before_is_taken(cluster):
    file = ROOT / "examples/ocr/cluster.yaml"
    for each in yaml.safe_load_all(file.read_text().replace("namespace: kubeflow", f"namespace: {cluster.namespace}")):
        cluster.apply(each, dry_run=True)


def test_dataset_twice_then_deleted_twice(cluster, center, world, data):
    steps, controllers = world
    steps.run(data())
    steps.run(data(partitions=2))
    assert controllers.ran == [center, *("clicks-sync", "clicks-warmup") * 2]
    kept = cluster.get(Kind.SAMPLE_SET, center)
    assert kept["spec"]["partitions"] == 2
    cluster.create(objects_of(data())[1])
    with pytest.raises(Conflict):
        steps.run(data(action="create"))
    steps.run(data(action="patch", partitions=1))
    assert cluster.get(Kind.SAMPLE_SET, center)["spec"]["partitions"] == 1

    steps.run(data(action="delete"))
    controllers.fail["clicks-rmr"] = "path /mnt/data-center/clicks does not exist"
    steps.run(data(action="delete"))
    assert cluster.get(Kind.SAMPLE_SET, center)["metadata"]["uid"] == kept["metadata"]["uid"]
    assert left(cluster) == []
    controllers.fail["clicks-rmr"] = "the disk is on fire"
    with pytest.raises(Rejected, match="on fire"):
        steps.run(data(action="delete"))
    controllers.fail.clear()
    steps.run(data(action="delete"))


def test_training_twice_then_deleted_twice(cluster, world, data, trained):
    steps, controllers = world
    steps.run(data())
    controllers.ran.clear()
    for _ in range(2):
        told = steps.run(trained(use_visualdl=True, worker_replicas=1))
        assert told["address"] == f"http://ocr-visualdl.{cluster.namespace}:8040"
    assert controllers.ran == ["ocr", "ocr-inference-convert", "ocr-serving-convert"] * 2
    assert left(cluster) == ["Deployment/ocr-visualdl", "ocr-visualdl"]
    for _ in range(2):
        steps.run(trained(action="delete", use_visualdl=True))
    assert left(cluster) == []
    with pytest.raises(NotFound, match="does not exist"):
        steps.run(trained(action="patch"))


def test_a_result_of_before_is_not_taken_for_this_ones(cluster, world, data, trained):
    steps, controllers = world
    steps.run(data())
    controllers.fail["ocr"] = ""
    with pytest.raises(CloudEdgeError, match="failed"):
        steps.run(trained(save_inference=False, need_convert=False))
    assert left(cluster) == ["PaddleJob/ocr"]  # kept, to be looked at
    before = cluster.get(Kind.PADDLE_JOB, "ocr")["metadata"]["uid"]
    with pytest.raises(Conflict, match="already"):
        steps.run(trained(action="create", save_inference=False, need_convert=False))
    controllers.fail.clear()
    controllers.ran.clear()
    steps.run(trained(save_inference=False, need_convert=False))
    assert controllers.ran == ["ocr"]
    assert before not in str(cluster.list(Kind.PADDLE_JOB))
    assert left(cluster) == []


def test_a_job_that_still_runs_is_waited_for(cluster, world):
    steps, controllers = world
    inputs = ModelHubInputs(name="m", namespace=cluster.namespace, model_name="m", pvc_name="claim", timeout_minutes=1)
    # As a launcher leaves it whose pod is lost while its Job goes on.
    before = cluster.create(module.with_digest(objects_of(inputs)[0]))["metadata"]["uid"]
    controllers.ran.clear()
    steps.run(inputs)
    assert controllers.done & {before}
    assert controllers.ran.count("m-model-hub") <= 1
    assert left(cluster) == []


def test_a_job_whose_template_changed_is_made_anew(cluster, world):
    steps, controllers = world
    given = {"name": "n", "namespace": cluster.namespace, "model_name": "m", "pvc_name": "claim", "timeout_minutes": 1}
    cluster.create(objects_of(ModelHubInputs(**given, model_version="1"))[0])  # of somebody else, or of yesterday
    steps.run(ModelHubInputs(**given, model_version="2"))
    assert left(cluster) == []
    controllers.fail["n-model-hub"] = ""
    with pytest.raises(Rejected, match="Job n-model-hub failed"):
        steps.run(ModelHubInputs(**given))
    steps.run(ModelHubInputs(**given, action="delete"))
    steps.run(ModelHubInputs(**given, action="delete"))
    assert left(cluster) == []


@contextmanager
def pushed(monkeypatch, sha256: str):
    with monkeypatch.context() as patched:
        patched.setattr(module, "read_record", lambda *_: ModelRecord(sha256, 1))
        yield


def test_serving_is_replaced_without_an_outage(cluster, monkeypatch):
    given = {"name": "ocr", "namespace": cluster.namespace, "image": "h:5000/s:1", "model_name": "ocr"}
    inputs = ServingInputs(**given, timeout_minutes=1)
    steps = ClusterSteps(cluster)
    with KnativeDouble(cluster, PADDLE_SERVICES[0]) as double:
        with pushed(monkeypatch, "a" * 64):
            with pytest.raises(NotFound):
                steps.run(ServingInputs(**given, action="patch"))
            assert steps.run(inputs)["url"] == "http://ocr.example.com"
            before = cluster.get(PADDLE_SERVICES[0], "ocr")["metadata"]["resourceVersion"]
            steps.run(inputs)
            assert cluster.get(PADDLE_SERVICES[0], "ocr")["metadata"]["resourceVersion"] == before
            with pytest.raises(Conflict):
                steps.run(ServingInputs(**given, action="create"))
        with pushed(monkeypatch, "b" * 64):  # the same version, pushed anew
            steps.run(inputs)
        spec = cluster.get(PADDLE_SERVICES[0], "ocr")["spec"]
        assert "b" * 64 in spec["default"]["arg"]
        assert "canary" not in spec
        assert not double.outages
        for _ in range(2):
            steps.run(ServingInputs(**given, action="delete"))
        assert cluster.get(PADDLE_SERVICES[0], "ocr") is None


def test_visualdl_twice_then_deleted_twice(cluster, world):
    steps, _ = world
    given = {"name": "vdl", "namespace": cluster.namespace, "pvc_name": "claim", "logdir": "/mnt/task-center/l"}
    with pytest.raises(NotFound):
        steps.run(VisualDLInputs(**given, action="patch"))
    steps.run(VisualDLInputs(**given, action="create"))
    with pytest.raises(Conflict):
        steps.run(VisualDLInputs(**given, action="create"))
    generation = cluster.get(Kind.DEPLOYMENT, "vdl")["metadata"]["generation"]
    steps.run(VisualDLInputs(**given))
    assert cluster.get(Kind.DEPLOYMENT, "vdl")["metadata"]["generation"] == generation
    steps.run(VisualDLInputs(**given, language="en", action="patch"))
    words = cluster.get(Kind.DEPLOYMENT, "vdl")["spec"]["template"]["spec"]["containers"][0]["command"]
    assert words[-2:] == ["--language", "en"]
    for _ in range(2):
        steps.run(VisualDLInputs(**given, action="delete"))
    assert left(cluster) == []
