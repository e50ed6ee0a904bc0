"""Putting a job on a cluster: first what would be sent and what stands against it, then sending it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from cloudedge.errors import Conflict, Interrupted, NotFound, Unavailable
from cloudedge.findings import Finding, refuse_errors
from cloudedge.kube import Cluster, Kind
from cloudedge.training.cluster._cluster_checks import surroundings, survey
from cloudedge.training.cluster._run import Run, run_of
from cloudedge.training.job import TrainingJob
from cloudedge.training.manifest import Manifest, Surroundings, section
from cloudedge.training.results import status_of

__all__ = ["Submission", "plan_submit", "submit"]

DIGEST = "cloudedge/digest"
"""The annotation that tells one description from another of the same name."""
_DELETE_S = 120.0
Action = Literal["create", "keep", "replace", "refuse"]


@dataclass(frozen=True)
class Submission:
    """What submitting a job would do."""

    job: TrainingJob
    action: Action
    why: str
    manifests: tuple[Manifest, ...]
    """In the order in which they are sent; the job is the last."""
    findings: tuple[Finding, ...]
    existing_uid: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it for programs."""
        return {
            "action": self.action,
            "why": self.why,
            "manifests": list(self.manifests),
            "findings": [finding.to_json() for finding in self.findings],
        }


def plan_submit(job: TrainingJob, *, cluster: Cluster, replace: bool = False) -> Submission:
    """Say what submitting would do; nothing is changed.

    Raises:
        InputError: the job would crash its controller, hang or be refused here; names every reason.
    """
    placed = job.in_namespace(job.namespace or cluster.namespace)
    around = surroundings(cluster, placed.namespace)
    findings = [*placed.validate(around), *survey(cluster, placed, around)]
    refuse_errors(placed.name, findings)
    run = run_of(placed, cluster, placed.namespace)
    existing = cluster.get(run.kind, placed.name, placed.namespace)
    action, why = decide(placed, existing, replace=replace)
    uid = str(section(existing or {}, "metadata").get("uid") or "")
    return Submission(placed, action, why, tuple(_manifests(placed, around, cluster)), tuple(findings), uid)


def decide(job: TrainingJob, existing: Manifest | None, *, replace: bool) -> tuple[Action, str]:
    """Decide what becomes of a job of the same name; pure."""
    if existing is None:
        return "create", "there is no job of that name"
    metadata = section(existing, "metadata")
    if metadata.get("deletionTimestamp"):
        return ("replace", "the one of that name is being deleted") if replace else ("refuse", "it is being deleted")
    if replace:
        return "replace", "it is there and is to be replaced"
    if section(metadata, "annotations").get(DIGEST) == job.digest:
        return "keep", "the same job is there already"
    return "refuse", "another job of that name is there"


def submit(job: TrainingJob, *, cluster: Cluster | None = None, replace: bool = False) -> Run:
    """Put a job on a cluster. The same job twice is once.

    Args:
        job: What to run.
        cluster: Where; the kubeconfig's current context if left out.
        replace: Delete a job of that name first and wait until it is gone.

    Raises:
        InputError: the job would crash its controller, hang or be refused here; names every reason.
        Conflict: another job has that name.
        NotFound: the cluster does not know this kind of job.
    """
    where = cluster or Cluster.connect()
    plan = plan_submit(job, cluster=where, replace=replace)
    return carry_out(plan, where)


def carry_out(plan: Submission, cluster: Cluster) -> Run:
    """Do what was planned.

    Raises:
        Conflict: another job has that name, or got it since.
        Interrupted: the connection broke while the job was sent; submitting again finds out.
    """
    job = plan.job
    run = run_of(job, cluster, job.namespace, plan.existing_uid)
    if plan.action == "keep":
        _own_groups(plan, cluster, plan.existing_uid)
        return run
    if plan.action == "refuse":
        state = _state_of(run)
        raise Conflict(
            f"{job.namespace} has a {run.kind.kind} {job.name} already ({plan.why}; it is {state})",
            hint="Choose another name, or submit with --replace: that deletes it, and waits until it is gone.",
            uid=plan.existing_uid,
            state=state,
        )
    if plan.action == "replace":
        cluster.delete(run.kind, job.name, namespace=job.namespace, uid=plan.existing_uid, wait_s=_DELETE_S)
    *beside, manifest = plan.manifests
    for each in beside:
        cluster.apply(each)
    created = _create(cluster, run, manifest, job.digest)
    uid = str(created["metadata"]["uid"])
    _own_groups(plan, cluster, uid)
    return run_of(job, cluster, job.namespace, uid)


def _own_groups(plan: Submission, cluster: Cluster, uid: str) -> None:
    """Have the job's PodGroups go with it."""
    *beside, manifest = plan.manifests
    owner = {"apiVersion": manifest["apiVersion"], "kind": manifest["kind"], "name": plan.job.name, "uid": uid}
    for each in beside:
        if each.get("kind") != "PodGroup":
            continue
        metadata = section(each, "metadata")
        if plan.action == "keep":
            # Who submitted it may have been killed before this. One that went at the job's end is not made anew.
            there = cluster.get(Kind.POD_GROUP, str(metadata["name"]), plan.job.namespace)
            if there is None or owner in (section(there, "metadata").get("ownerReferences") or []):
                continue
        cluster.apply(each | {"metadata": metadata | {"ownerReferences": [owner]}})


def _create(cluster: Cluster, run: Run, manifest: Manifest, digest: str) -> Manifest:
    try:
        return cluster.create(manifest)
    except Unavailable as error:
        found = cluster.get(run.kind, run.name, run.namespace)
        if found is not None and section(found, "metadata", "annotations").get(DIGEST) == digest:
            return found
        raise Interrupted(
            f"the connection broke while {run.namespace}/{run.name} was created, and it is not there: {error.message}",
            hint="Submit it again; the same job twice is once.",
        ) from error


def _manifests(job: TrainingJob, around: Surroundings, cluster: Cluster) -> list[Manifest]:
    *beside, manifest = job.to_manifest(around)
    annotations = {**section(manifest, "metadata", "annotations"), DIGEST: job.digest}
    return [
        *(_placed(each, cluster) for each in beside),
        manifest | {"metadata": manifest["metadata"] | {"annotations": annotations}},
    ]


def _placed(companion: Manifest, cluster: Cluster) -> Manifest:
    """Return what is beside the job as the cluster has it: a PriorityClass or a ClusterRole is in no namespace."""
    with suppress(NotFound):  # a kind that comes with the same file
        if not cluster.kind_of(companion).namespaced:
            metadata = {key: value for key, value in companion["metadata"].items() if key != "namespace"}
            return companion | {"metadata": metadata}
    return companion


def _state_of(run: Run) -> str:
    job = run.cluster.get(run.kind, run.name, run.namespace)
    return status_of(job, name=run.name, namespace=run.namespace, now=run.cluster.clock.now()).state
