"""Jobs that tests share: one of every kind, and the CRDs' schemas."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import jsonschema
import yaml

from cloudedge.kube import Kind
from cloudedge.training import (
    CleanPodPolicy,
    Elastic,
    Gang,
    HostMount,
    Intranet,
    JobStatus,
    LifecyclePolicy,
    PvcMount,
    Role,
    Run,
    Samples,
    Task,
    TrainingJob,
)
from tests import ROOT

MANIFESTS = Path(__file__).parent / "manifests"
CRDS = ROOT / "tests" / "data" / "crds"
SEEDS = sorted(MANIFESTS.glob("*.yaml"))

PYTHON = ["python", "train.py"]


def role(**more):
    return Role(**({"image": "demo:1", "command": PYTHON} | more))


FULL = role(
    replicas=3,
    args=["--epochs", "3"],
    env={"A": "1"},
    cpu="500m",
    memory="1Gi",
    gpus=2,
    shm="1Gi",
    volumes=[
        PvcMount("data", "/data", read_only=True),
        PvcMount("models", "/out", sub_path="a"),
        HostMount("/x", "/y"),
    ],
    node_selector={"zone": "a"},
    service_account="trainer",
    image_pull_secrets=["registry"],
    working_dir="/job",
    pod_overrides={"metadata": {"labels": {"team": "ads"}}, "spec": {"tolerations": [{"operator": "Exists"}]}},
)

BUILT = {
    "single": TrainingJob.single("single", role()),
    "collective": TrainingJob.collective("coll", FULL, intranet=Intranet.SERVICE),
    "ps": TrainingJob.ps("ctr", ps=role(replicas=2), worker=role(replicas=2), with_gloo=1, namespace="ads"),
    "host": TrainingJob.ps("hosts", ps=role(), worker=role(), intranet=Intranet.HOST, clean_pod_policy=None),
    "heter": TrainingJob.heter("mix", ps=role(), worker=role(), heter=role(replicas=2)),
    "elastic": TrainingJob.collective("grows", role(replicas=2), elastic=Elastic("etcd:2379")),
    "gang": TrainingJob.ps(
        "gang",
        ps=role(replicas=2),
        worker=role(replicas=2),
        gang=Gang("q", priority_class="high", min_resources={"cpu": "4"}),
    ),
    "podgroup": TrainingJob.ps("group", ps=role(), worker=role(), gang=Gang("q", how="podgroup")),
    "guaranteed": TrainingJob.collective("first", role(replicas=2)).with_class("guaranteed"),
    "opportunistic": TrainingJob.ps("last", ps=role(), worker=role()).with_class("opportunistic"),
    "output": TrainingJob.single("keeps", role(volumes=[PvcMount("models", "/out")])).with_output("pvc://models/ctr"),
    "never": TrainingJob.single("stays", role(), clean_pod_policy=CleanPodPolicy.NEVER),
    "volcano": TrainingJob.volcano(
        "tasks",
        [
            Task("prepare", role(), max_retry=2),
            Task(
                "train", role(replicas=2), depends_on=["prepare"], iteration="all", min_available=2, labels={"a": "b"}
            ),
        ],
        queue="q",
        policies=[LifecyclePolicy("RestartJob", ["PodFailed", "PodEvicted"]), LifecyclePolicy("AbortJob", exit_code=3)],
        plugins={"env": [], "svc": []},
        volumes=[PvcMount("models", "/out")],
        max_retry=5,
        min_success=1,
        ttl_s=600,
        priority_class="high",
    ),
    "ctr": TrainingJob.ctr(
        "ctr",
        pserver=role(replicas=2, command=(), service_account="ctr"),
        trainer=role(replicas=2, command=(), service_account="ctr"),
        entry="cd ctr && python train.py",
        output=PvcMount("models", "/workspace/ctr/models"),
    ),
}
WITH_SAMPLES = TrainingJob.ps("cached", ps=role(), worker=role(), samples=Samples("criteo", "/mnt/criteo"))


def click_job(image: str = "ctr-trainer:1") -> TrainingJob:
    """The CTR example's own job, on fewer impressions."""
    job = TrainingJob.from_yaml(ROOT / "examples" / "ctr" / "job.yaml")
    container = job.manifest["spec"]["worker"]["template"]["spec"]["containers"][0]
    container |= {"image": image, "command": [*container["command"], "--count", "2000"]}
    return job


def completed(run: Run, *, timeout_s: float) -> JobStatus:
    """Wait until a job's pods are done, and then until its controller says so too, which it does later."""
    run.wait(timeout_s=timeout_s)

    def is_completed(job: dict | None) -> bool:
        return (job or {}).get("status", {}).get("phase") == "Completed"

    run.cluster.wait(Kind.PADDLE_JOB, run.name, is_completed, timeout_s=timeout_s, what=f"completing {run.name}")
    return run.status()


def check_click_lines(said: dict[int, list[str]]) -> None:
    """Check what its two workers wrote: each had clicks of its own, and what they learned is the same."""
    starts = [f"pass {epoch} over 1000 impressions, AUC " for epoch in range(2)]
    scores = {
        rank: [line.removeprefix(f"worker {rank} of 2: {start}") for line, start in zip(lines, starts, strict=True)]
        for rank, lines in said.items()
    }
    assert scores[0] == scores[1]
    assert all(0 < float(score) < 1 for score in scores[0])


@cache
def schema(name):
    """The object schema of a CRD file of tests/data/crds."""
    return yaml.load((CRDS / name).read_text(), yaml.CSafeLoader)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


OPERATOR = "paddlejobs.batch.paddlepaddle.org.operator-0.3.5.yaml"
PADDLECLOUD = "paddlejobs.batch.paddlepaddle.org.paddlecloud-0.4.yaml"
VOLCANO = {("Job", version): f"jobs.batch.volcano.sh.volcano-{version}.yaml" for version in ("1.12.0", "1.15.1")} | {
    ("PodGroup", version): f"podgroups.scheduling.volcano.sh.volcano-{version}.yaml" for version in ("1.12.0", "1.15.1")
}


@cache
def validator(name):
    """What an API server checks of an object, but for fields it does not know."""
    text = json.dumps(schema(name)).replace('"type": "integer", "x-kubernetes-int', '"x-kubernetes-int')
    return jsonschema.Draft202012Validator(json.loads(text))


def unknown_fields(value, rules, where=""):
    """What an API server would drop from an object, by the rules of pruning."""
    if rules.get("x-kubernetes-preserve-unknown-fields"):
        return []
    if isinstance(value, list):
        each = rules.get("items") or {}
        return [f for i, item in enumerate(value) for f in unknown_fields(item, each, f"{where}[{i}]")]
    if not isinstance(value, dict):
        return []
    known, rest = rules.get("properties") or {}, rules.get("additionalProperties")
    if not where:
        value = {k: v for k, v in value.items() if k not in {"apiVersion", "kind", "metadata"}}
    found = []
    for key, item in value.items():
        path = f"{where}.{key}"
        if key in known:
            found += unknown_fields(item, known[key], path)
        elif isinstance(rest, dict):
            found += unknown_fields(item, rest, path)
        elif not rest:
            found.append(path)
    return found
