"""The Kubernetes objects of each step. Pure: sends nothing.

Shell commands are built from lists of words and quoted. Files appear by a rename, so that a killed pod leaves nothing
half written behind.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from cloudedge.cache import SampleJob, SampleSet, SecretRef
from cloudedge.errors import InputError
from cloudedge.kube import Kind
from cloudedge.pipeline._components import LAUNCHER, launcher_image
from cloudedge.pipeline._inputs import (
    DatasetInputs,
    ModelHubInputs,
    ServingInputs,
    StepInputs,
    TrainingInputs,
    VisualDLInputs,
)
from cloudedge.pipeline._modelhub import ModelRecord, archive_key, archive_url
from cloudedge.pipeline._suites import ON_CLUSTER, Suite, find_suite
from cloudedge.serving.knative import Endpoint, PaddleService
from cloudedge.training import CleanPodPolicy, Intranet, PvcMount, Role, Samples, TrainingJob

__all__ = [
    "DATA_CENTER",
    "UNKNOWN",
    "VISUALDL_ALIVE",
    "convert_job",
    "export_job",
    "objects_of",
    "paddle_service",
    "remove_job",
    "sample_set",
    "sync_job",
    "training_job",
    "upload_job",
    "visualdl_command",
    "visualdl_inputs",
    "visualdl_objects",
    "warmup_job",
]

DATA_CENTER = "data-center"
"""The SampleSet whose folders are the data sets, and the secret of its file system."""
UNKNOWN = ModelRecord("0" * 64, 0)
"""A placeholder for the record that the hub has when the step runs."""
VISUALDL_ALIVE = "/alive"
"""VisualDL's health check; its pages fail for clients that name no language."""
_LABEL = "cloudedge/step"
_RETRIES = 2
_FETCH = (
    "import shutil, sys, urllib.request; "
    "shutil.copyfileobj(urllib.request.urlopen(sys.argv[1], timeout=60), sys.stdout.buffer)"
)

Manifest = dict[str, Any]


def sample_set(inputs: DatasetInputs) -> SampleSet:
    """Return the shared SampleSet."""
    secret = SecretRef(DATA_CENTER)
    return SampleSet(DATA_CENTER, secret, inputs.partitions, no_sync=True, namespace=inputs.namespace)


def sync_job(inputs: DatasetInputs) -> SampleJob:
    """Return the copy from the source into the data set's folder."""
    secret = SecretRef(inputs.source_secret)
    return SampleJob.sync(
        f"{inputs.name}-sync",
        DATA_CENTER,
        secret=secret,
        source=inputs.source_uri,
        destination=inputs.name,
        update=True,  # otherwise a runtime compares only sizes, and misses changes that keep the size
        namespace=inputs.namespace,
    )


def warmup_job(inputs: DatasetInputs) -> SampleJob:
    """Return the warm-up of the data set's folder."""
    return SampleJob.warmup(f"{inputs.name}-warmup", DATA_CENTER, paths=[inputs.name], namespace=inputs.namespace)


def remove_job(inputs: DatasetInputs) -> SampleJob:
    """Return the removal of the data set's folder; the SampleSet itself is shared."""
    return SampleJob.remove(
        f"{inputs.name}-rmr", DATA_CENTER, paths=[inputs.name], confirmed=True, namespace=inputs.namespace
    )


def training_job(inputs: TrainingInputs) -> TrainingJob:
    """Return the PaddleJob."""
    suite, place = find_suite(inputs.project), ON_CLUSTER
    image = _image(inputs, suite)
    fetch = []
    if inputs.pretrain_model:
        target = place.pretrained(inputs.pretrain_model)
        ending = inputs.pretrain_model.rpartition(".")[2]
        fetch = [
            shlex.join(["mkdir", "-p", f"{place.task}/pretrain_model"]),
            # Another worker may do the same: each writes its own file, and the name appears at once.
            f"{_fetch('python', inputs.pretrain_model)} > {shlex.quote(target)}.$HOSTNAME",
            f"mv {shlex.quote(target)}.$HOSTNAME {shlex.quote(f'{target}.{ending}')}",
        ]
    command = ("/bin/bash", "-c", " && ".join([*fetch, shlex.join(suite.train_command(inputs, place))]))
    worker = Role(
        image,
        inputs.worker_replicas,
        command,
        gpus=inputs.gpu_per_node,
        shm=True,
        volumes=[PvcMount(inputs.pvc_name, place.task)],
    )
    return TrainingJob.paddle(
        inputs.name,
        worker=worker,
        ps=Role(image, inputs.ps_replicas, command) if inputs.ps_replicas else None,
        namespace=inputs.namespace,
        clean_pod_policy=CleanPodPolicy.ON_COMPLETION,
        intranet=Intranet.POD_IP,
        with_gloo=1,
        samples=Samples(DATA_CENTER, place.data),
    )


def export_job(inputs: TrainingInputs) -> Manifest:
    """Return the Job that turns the trained weights into an inference model."""
    suite = find_suite(inputs.project)
    command = shlex.join(suite.export_command(inputs, ON_CLUSTER))
    return _job(f"{inputs.name}-inference-convert", inputs, _image(inputs, suite), ["/bin/bash", "-c", command])


def convert_job(inputs: TrainingInputs) -> Manifest:
    """Return the Job that packs the inference model for Paddle Serving."""
    name, place = inputs.name, ON_CLUSTER
    suite = find_suite(inputs.project)
    convert = suite.convert_command(inputs, place)
    # The same model always gives the same bytes: a version pushed again is recognised.
    pack = f"tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf - {name} | gzip -n > {name}.tar.gz.part"
    steps = [f"cd {place.task}", f"rm -rf {name}", shlex.join(convert), pack, f"mv {name}.tar.gz.part {name}.tar.gz"]
    command = "set -o pipefail; " + " && ".join(steps)
    return _job(f"{name}-serving-convert", inputs, _image(inputs, suite), ["/bin/bash", "-c", command])


def upload_job(inputs: ModelHubInputs) -> Manifest:
    """Return the Job that pushes a packed model into the hub."""
    words = {
        "--file": f"{ON_CLUSTER.task}/{inputs.model_name}.tar.gz",
        "--endpoint": inputs.endpoint,
        "--model-name": inputs.model_name,
        "--model-version": inputs.model_version,
    }
    keys = {"AWS_ACCESS_KEY_ID": "access-key", "AWS_SECRET_ACCESS_KEY": "secret-key"}
    env = [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": DATA_CENTER, "key": key}}} for name, key in keys.items()
    ]
    command = [*LAUNCHER, "upload", *(word for pair in words.items() for word in pair)]
    archive_key(inputs.model_name, inputs.model_version)  # refuses unsafe names
    return _job(f"{inputs.name}-model-hub", inputs, launcher_image(), command, env=env)


def paddle_service(inputs: ServingInputs, record: ModelRecord) -> PaddleService:
    """Return the service: it fetches the model, verifies it against the record, and answers with it.

    Args:
        inputs: The step's inputs.
        record: The hub's record of the version. A version pushed anew gives another command, so that the service is
            really replaced.
    """
    model, file = inputs.model_name, f"{inputs.model_name}.tar.gz"
    server = {
        "paddle-serving": ["python3", "-m", "paddle_serving_server.serve", "--model", f"{model}/server"],
        "cloudedge": ["cloudedge", "serve", f"{model}/server", "--hub", "hub", "--open", "--host", "0.0.0.0"],  # noqa: S104
    }[inputs.server]
    steps = [
        'cd "$(mktemp -d)"',  # an image's working folder may not be writable
        f"{_fetch('python3', archive_url(inputs.endpoint, model, inputs.model_version))} > {shlex.quote(file)}",
        f"echo {shlex.quote(f'{record.sha256}  {file}')} | sha256sum -c -",
        shlex.join(["tar", "xzf", file]),
        shlex.join(["rm", file]),
        f"exec {shlex.join([*server, '--port', str(inputs.port)])}",
    ]
    endpoint = Endpoint(inputs.image, inputs.port, " && ".join(steps))
    return PaddleService(inputs.name, endpoint, namespace=inputs.namespace)


def visualdl_inputs(inputs: TrainingInputs) -> VisualDLInputs:
    """Return the inputs that show a training with Use VisualDL."""
    return VisualDLInputs(
        name=f"{inputs.name}-visualdl",
        namespace=inputs.namespace,
        action=inputs.action,
        timeout_minutes=inputs.timeout_minutes,
        pvc_name=inputs.pvc_name,
        logdir=ON_CLUSTER.logs,
    )


def visualdl_objects(inputs: VisualDLInputs) -> list[Manifest]:
    """Return the Deployment and the Service."""
    labels = {"visualdl": inputs.name}
    container: Manifest = {
        "name": "visualdl",
        "image": inputs.image or launcher_image(),
        "command": visualdl_command(inputs, inputs.logdir, "0.0.0.0"),  # noqa: S104 - in a pod
        "ports": [{"name": "http", "containerPort": inputs.port, "protocol": "TCP"}],
        "readinessProbe": {"httpGet": {"path": VISUALDL_ALIVE, "port": inputs.port}, "periodSeconds": 5},
        "volumeMounts": [{"name": "task-center", "mountPath": inputs.mount_path, "readOnly": True}],
    }
    pod = {
        "automountServiceAccountToken": False,
        "containers": [container],
        "volumes": [{"name": "task-center", "persistentVolumeClaim": {"claimName": inputs.pvc_name}}],
    }
    deployment = {
        "replicas": 1,
        "selector": {"matchLabels": dict(labels)},
        "template": {"metadata": {"labels": dict(labels)}, "spec": pod},
    }
    service = {
        "selector": labels,
        "ports": [{"name": "http", "port": inputs.port, "targetPort": inputs.port, "protocol": "TCP"}],
    }
    return [
        _object(Kind.DEPLOYMENT, inputs.name, inputs, deployment),
        _object(Kind.SERVICE, inputs.name, inputs, service),
    ]


def visualdl_command(inputs: VisualDLInputs, logdir: str, host: str) -> list[str]:
    """Return the command that starts VisualDL."""
    words = ["visualdl", "--logdir", logdir, "--host", host, "--port", str(inputs.port), "--disable-telemetry"]
    optional = {
        "--model": inputs.model,
        "--cache-timeout": str(inputs.cache_timeout) if inputs.cache_timeout else "",
        "--language": inputs.language,
        "--public-path": inputs.public_path,
    }
    words += [word for flag, value in optional.items() if value for word in (flag, value)]
    return words + (["--api-only"] if inputs.api_only else [])


def objects_of(inputs: StepInputs, *, record: ModelRecord = UNKNOWN, kind: Kind | None = None) -> list[Manifest]:
    """Return every object a step makes, in order; for display and tests.

    Args:
        inputs: The step's inputs.
        record: The hub's record of the served version.
        kind: PaddleService with its group; ElasticServing's if left out.

    Raises:
        InputError: the objects could not work; the message says why.
    """
    if isinstance(inputs, DatasetInputs):
        if inputs.action == "delete":
            return [remove_job(inputs).manifest()]
        return [each.manifest() for each in (sample_set(inputs), sync_job(inputs), warmup_job(inputs))]
    if isinstance(inputs, TrainingInputs):
        found = training_job(inputs).to_manifest()
        found += [export_job(inputs)] if inputs.save_inference else []
        found += [convert_job(inputs)] if inputs.need_convert else []
        return found + (visualdl_objects(visualdl_inputs(inputs)) if inputs.use_visualdl else [])
    if isinstance(inputs, ModelHubInputs):
        return [upload_job(inputs)]
    if isinstance(inputs, ServingInputs):
        group = kind or Kind("elasticserving.paddlepaddle.org", "v1", "paddleservices", "PaddleService")
        return [paddle_service(inputs, record).manifest(group)]
    if isinstance(inputs, VisualDLInputs):
        return visualdl_objects(inputs)
    raise AssertionError(inputs)


def _fetch(python: str, url: str) -> str:
    """Return a command that prints a URL's content: an image with Paddle has Python, but not always wget."""
    return shlex.join([python, "-c", _FETCH, url])


def _image(inputs: TrainingInputs, suite: Suite) -> str:
    found = inputs.image or suite.default_image
    if not found:
        raise InputError(f"training {inputs.name} names no image, and {suite.name} has no default")
    return found


def _job(
    name: str,
    inputs: TrainingInputs | ModelHubInputs,
    image: str,
    command: Sequence[str],
    *,
    env: Sequence[Mapping[str, Any]] = (),
) -> Manifest:
    container: Manifest = {
        "name": "step",
        "image": image,
        "command": list(command),
        "volumeMounts": [{"name": "task-center", "mountPath": ON_CLUSTER.task}],
    }
    container |= {"env": [dict(each) for each in env]} if env else {}
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "containers": [container],
        "volumes": [{"name": "task-center", "persistentVolumeClaim": {"claimName": inputs.pvc_name}}],
    }
    labels = {_LABEL: inputs.step}
    return _object(
        Kind.JOB, name, inputs, {"backoffLimit": _RETRIES, "template": {"metadata": {"labels": labels}, "spec": pod}}
    )


def _object(kind: Kind, name: str, inputs: StepInputs, spec: Manifest) -> Manifest:
    metadata = {"name": name, "namespace": inputs.namespace, "labels": {_LABEL: inputs.step}}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": spec}
