"""The steps on a cluster. Each may be repeated wherever it stopped, by the user or by Kubeflow's retries.

Objects that run to an end (SampleJob, PaddleJob, Job) are recreated, so that an earlier run's result never counts for
this one; their templates could not change anyway. One that still runs with the same description is waited for instead.
Objects that stay (SampleSet, Deployment, Service) are applied; a PaddleService is replaced in an order that keeps it
answering. Deleting an object that does not exist succeeds.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from contextlib import suppress

from cloudedge.cache import ClusterDatasets, SampleJob
from cloudedge.errors import CloudEdgeError, Conflict, NotFound, Rejected
from cloudedge.hub import canonical_json
from cloudedge.kube import Cluster, Kind, Object
from cloudedge.pipeline import _objects as objects
from cloudedge.pipeline._inputs import (
    DatasetInputs,
    ModelHubInputs,
    ServingInputs,
    StepInputs,
    TrainingInputs,
    VisualDLInputs,
)
from cloudedge.pipeline._modelhub import read_record
from cloudedge.pipeline._steps import Result, Steps
from cloudedge.serving.knative import PaddleServices
from cloudedge.training import carry_out, plan_submit

__all__ = ["ClusterSteps", "with_digest"]

DIGEST = "cloudedge/digest"
"""The annotation that distinguishes descriptions of Jobs of the same name."""
_GONE_S = 600.0
_LAST_LINES = 20
_MISSING = re.compile(r"not exist|no such file|not found", re.IGNORECASE)


class ClusterSteps(Steps):
    """Runs steps on one cluster.

    Args:
        cluster: The cluster, in the namespace of the step.
        tell: Called with progress messages.
    """

    def __init__(self, cluster: Cluster, tell: Callable[[str], None] = lambda _: None) -> None:
        self._cluster = cluster
        self._tell = tell

    def _dataset(self, inputs: DatasetInputs) -> Result:
        datasets = ClusterDatasets(self._cluster)
        if inputs.action == "delete":
            self._remove_data(datasets, inputs)
            return {"removed": inputs.name}
        existing = self._cluster.get(Kind.SAMPLE_SET, objects.DATA_CENTER)
        wanted = objects.sample_set(inputs)
        if inputs.action == "patch":
            self._patch(Kind.SAMPLE_SET, wanted.manifest())
        elif existing is None or inputs.action == "apply":
            # Creating a data set creates its folder: the SampleSet is shared, and the first step to need it makes it.
            datasets.create(wanted)
        datasets.wait(objects.DATA_CENTER, timeout_s=_seconds(inputs))
        self._sample_job(datasets, objects.sync_job(inputs), inputs)
        self._sample_job(datasets, objects.warmup_job(inputs), inputs)
        return {"sample_set": objects.DATA_CENTER, "path": inputs.name}

    def _remove_data(self, datasets: ClusterDatasets, inputs: DatasetInputs) -> None:
        for job in (objects.sync_job(inputs), objects.warmup_job(inputs)):
            self._cluster.delete(Kind.SAMPLE_JOB, job.name, wait_s=_GONE_S)
        if self._cluster.get(Kind.SAMPLE_SET, objects.DATA_CENTER) is None:
            return
        try:
            self._sample_job(datasets, objects.remove_job(inputs), inputs)
        except Rejected as refused:
            # The runtime refuses to remove a folder that does not exist; that is the wanted state.
            if not _MISSING.search(refused.message):
                raise
            self._cluster.delete(Kind.SAMPLE_JOB, objects.remove_job(inputs).name, wait_s=_GONE_S)

    def _sample_job(self, datasets: ClusterDatasets, job: SampleJob, inputs: StepInputs) -> None:
        if inputs.action != "create":
            self._cluster.delete(Kind.SAMPLE_JOB, job.name, wait_s=_GONE_S)
        self._tell(f"{job.operation} of {inputs.name}")
        datasets.run(job, timeout_s=_seconds(inputs))

    def _training(self, inputs: TrainingInputs) -> Result:
        shown = objects.visualdl_inputs(inputs)
        jobs = [objects.export_job(inputs)] if inputs.save_inference else []
        jobs += [objects.convert_job(inputs)] if inputs.need_convert else []
        if inputs.action == "delete":
            self._cluster.delete(Kind.PADDLE_JOB, inputs.name, wait_s=_GONE_S, propagation="Foreground")
            for job in (objects.export_job(inputs), objects.convert_job(inputs)):
                self._delete(Kind.JOB, job)
            self._visualdl(shown)
            return {"removed": inputs.name}
        if inputs.action == "patch" and self._cluster.get(Kind.PADDLE_JOB, inputs.name) is None:
            raise _absent(Kind.PADDLE_JOB, inputs.name)
        self._paddle_job(inputs)
        for job in jobs:
            self._run_job(job, inputs)
        return self._visualdl(shown) if inputs.use_visualdl else {"job": inputs.name}

    def _paddle_job(self, inputs: TrainingInputs) -> None:
        job = objects.training_job(inputs)
        plan = plan_submit(job, cluster=self._cluster)
        if plan.action in {"keep", "refuse"} and inputs.action == "create":
            raise Conflict(f"a PaddleJob {inputs.name} exists already", hint="Use the action `apply` to replace it.")
        if plan.action == "refuse" or (plan.action == "keep" and carry_out(plan, self._cluster).status().is_final):
            plan = plan_submit(job, cluster=self._cluster, replace=True)
        for finding in plan.findings:
            self._tell(str(finding))
        self._tell(f"training {inputs.name}: {plan.why}")
        run = carry_out(plan, self._cluster)
        run.wait(
            timeout_s=_seconds(inputs),
            on_change=lambda now: self._tell(f"training {inputs.name} is {now.state}"),
            ps_done_when_workers_done=inputs.ps_replicas > 0,
        )
        run.delete()

    def _modelhub(self, inputs: ModelHubInputs) -> Result:
        job = objects.upload_job(inputs)
        if inputs.action == "delete":
            self._delete(Kind.JOB, job)  # versions stay: services may use them
            return {"removed": job["metadata"]["name"]}
        self._run_job(job, inputs)
        return {"model": inputs.model_name, "version": inputs.model_version}

    def _serving(self, inputs: ServingInputs) -> Result:
        services = PaddleServices(self._cluster, timeout_s=_seconds(inputs))
        if inputs.action == "delete":
            services.delete(inputs.name, wait_s=_GONE_S)
            return {"removed": inputs.name}
        record = read_record(inputs.endpoint, inputs.model_name, inputs.model_version)
        wanted = objects.paddle_service(inputs, record)
        try:
            current = services.status(inputs.name)
        except NotFound:
            if inputs.action == "patch":
                raise
            self._tell(f"starting {inputs.name}")
            services.deploy(wanted)
            current = services.status(inputs.name)
        else:
            if inputs.action == "create":
                hint = "Use the action `apply` to replace it."
                raise Conflict(f"a PaddleService {inputs.name} exists already", hint=hint)
            if current.canary is not None or current.default != wanted.default:
                self._tell(f"replacing the model of {inputs.name}")
                if current.canary != wanted.default:
                    services.canary(inputs.name, wanted.default, 0)
                current = services.promote(inputs.name)
            elif not current.ready:
                current = services.wait(inputs.name)
        return {"url": current.url, "address": current.address, "sha256": record.sha256}

    def _visualdl(self, inputs: VisualDLInputs) -> Result:
        deployment, service = objects.visualdl_objects(inputs)
        if inputs.action == "delete":
            self._delete(Kind.SERVICE, service)
            self._delete(Kind.DEPLOYMENT, deployment)
            return {"removed": inputs.name}
        for kind, each in ((Kind.DEPLOYMENT, deployment), (Kind.SERVICE, service)):
            if inputs.action == "patch":
                self._patch(kind, each)
            elif inputs.action == "create":
                self._cluster.create(each)
            else:
                self._cluster.apply(each)
        self._cluster.wait(
            Kind.DEPLOYMENT,
            inputs.name,
            _is_available,
            timeout_s=_seconds(inputs),
            what=f"starting {inputs.name}",
            pods=f"visualdl={inputs.name}",
        )
        return {"address": f"http://{inputs.name}.{inputs.namespace}:{inputs.port}{inputs.public_path}"}

    def _run_job(self, job: Object, inputs: StepInputs) -> None:
        """Run a Job to its end and remove it; an existing one that has ended, or differs, is recreated."""
        name, wanted = job["metadata"]["name"], with_digest(job)
        existing = self._cluster.get(Kind.JOB, name)
        if existing is not None and inputs.action == "create":
            raise Conflict(f"a Job {name} exists already", hint="Use the action `apply` to replace it.")
        if existing is not None and (_end_condition(existing) or _digest(existing) != _digest(wanted)):
            self._delete(Kind.JOB, job)
            existing = None
        uid = (existing or self._cluster.create(wanted))["metadata"]["uid"]
        self._tell(f"waiting for Job {name}")

        def ended(now: Object | None) -> bool:
            if now is None or now["metadata"]["uid"] != uid:
                raise NotFound(f"Job {name} was deleted while it ran")
            if _end_condition(now) == "Failed":
                raise Rejected(f"Job {name} failed{self._last_log_lines(name)}", job=name)
            return _end_condition(now) == "Complete"

        what, pods = f"Job {name}", f"job-name={name}"
        self._cluster.wait(Kind.JOB, name, ended, timeout_s=_seconds(inputs), what=what, pods=pods)
        self._cluster.delete(Kind.JOB, name, uid=uid, wait_s=_GONE_S, propagation="Foreground")

    def _last_log_lines(self, job: str) -> str:
        with suppress(CloudEdgeError):
            lines = [line.text for line in self._cluster.logs(f"job-name={job}", tail=_LAST_LINES)][-_LAST_LINES:]
            return "".join(f"\n  {line}" for line in lines)
        return ""

    def _patch(self, kind: Kind, manifest: Object) -> None:
        name = manifest["metadata"]["name"]
        if self._cluster.get(kind, name) is None:
            raise _absent(kind, name)
        self._cluster.patch(kind, name, {"spec": manifest["spec"]})

    def _delete(self, kind: Kind, manifest: Object) -> None:
        name = manifest["metadata"]["name"]
        self._cluster.delete(kind, name, wait_s=_GONE_S, propagation="Foreground")


def _absent(kind: Kind, name: str) -> NotFound:
    return NotFound(f"the {kind.kind} {name} does not exist", hint="Use the action `apply` to create it.")


def _seconds(inputs: StepInputs) -> float:
    return inputs.timeout_minutes * 60.0


def with_digest(job: Object) -> Object:
    """Return a Job with an annotation that distinguishes its description from others of the same name."""
    digest = hashlib.sha256(canonical_json(job)).hexdigest()[:16]
    return job | {"metadata": job["metadata"] | {"annotations": {DIGEST: digest}}}


def _digest(job: Object) -> str:
    return str((job["metadata"].get("annotations") or {}).get(DIGEST) or "")


def _end_condition(job: Object) -> str:
    """Return Complete or Failed, or an empty string while the Job runs."""
    for each in (job.get("status") or {}).get("conditions") or ():
        if each.get("type") in {"Complete", "Failed"} and each.get("status") == "True":
            return str(each["type"])
    return ""


def _is_available(now: Object | None) -> bool:
    """Return whether a Deployment runs its latest description."""
    if now is None:
        return False
    status = now.get("status") or {}
    seen = status.get("observedGeneration") == now["metadata"].get("generation")
    return bool(seen and status.get("updatedReplicas") == status.get("availableReplicas") == now["spec"]["replicas"])
