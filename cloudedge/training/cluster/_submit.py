"""Submission of a job to a cluster: a plan of the objects to send and the findings against them, then the writes."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from cloudedge.errors import Conflict, Interrupted, NotFound, Unavailable
from cloudedge.findings import Finding, refuse_errors
from cloudedge.kube import Cluster, Kind
from cloudedge.training.cluster._cluster_checks import check_against_cluster, surroundings
from cloudedge.training.cluster._run import Run, run_of
from cloudedge.training.job import TrainingJob
from cloudedge.training.manifest import Manifest, Surroundings, section
from cloudedge.training.results import status_of

__all__ = ["Submission", "plan_submit", "submit"]

DIGEST = "cloudedge/digest"
"""The annotation that distinguishes descriptions of the same name."""
_DELETE_S = 120.0
Action = Literal["create", "keep", "replace", "refuse"]


@dataclass(frozen=True)
class Submission:
    """The plan of a submission: the objects to send, the action and the findings."""

    job: TrainingJob
    action: Action
    why: str
    manifests: tuple[Manifest, ...]
    """In the order of sending; the job is the last."""
    findings: tuple[Finding, ...]
    existing_uid: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the plan for programs."""
        return {
            "action": self.action,
            "why": self.why,
            "manifests": list(self.manifests),
            "findings": [finding.to_json() for finding in self.findings],
        }


def plan_submit(job: TrainingJob, *, cluster: Cluster, replace: bool = False) -> Submission:
    """Plan a submission; changes nothing.

    Raises:
        InputError: the job would crash its controller, hang or be refused; the message names every reason.
    """
    placed = job.in_namespace(job.namespace or cluster.namespace)
    around = surroundings(cluster, placed.namespace)
    findings = [*placed.validate(around), *check_against_cluster(cluster, placed, around)]
    refuse_errors(placed.name, findings)
    run = run_of(placed, cluster, placed.namespace)
    existing = cluster.get(run.kind, placed.name, placed.namespace)
    action, why = decide(placed, existing, replace=replace)
    uid = str(section(existing or {}, "metadata").get("uid") or "")
    return Submission(placed, action, why, tuple(_manifests(placed, around, cluster)), tuple(findings), uid)


def decide(job: TrainingJob, existing: Manifest | None, *, replace: bool) -> tuple[Action, str]:
    """Decide what to do about an existing job of the same name; pure."""
    if existing is None:
        return "create", "no job has that name"
    metadata = section(existing, "metadata")
    if metadata.get("deletionTimestamp"):
        return (
            ("replace", "the existing job is being deleted")
            if replace
            else ("refuse", "the existing job is being deleted")
        )
    if replace:
        return "replace", "the existing job is replaced"
    if section(metadata, "annotations").get(DIGEST) == job.digest:
        return "keep", "the same job exists"
    return "refuse", "another job has that name"


def submit(job: TrainingJob, *, cluster: Cluster | None = None, replace: bool = False) -> Run:
    """Submit a job to a cluster. Idempotent.

    Args:
        job: The job.
        cluster: The cluster; the kubeconfig's current context if left out.
        replace: Delete a job of that name first and wait until it is gone.

    Raises:
        InputError: the job would crash its controller, hang or be refused; the message names every reason.
        Conflict: another job has that name.
        NotFound: the cluster does not serve this kind of job.
    """
    where = cluster or Cluster.connect()
    plan = plan_submit(job, cluster=where, replace=replace)
    return carry_out(plan, where)


def carry_out(plan: Submission, cluster: Cluster) -> Run:
    """Carry out a plan.

    Raises:
        Conflict: another job has that name, or took it since.
        Interrupted: the connection broke while the job was sent; submitting again resolves it.
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
            hint="Choose another name, or submit with `--replace`, which deletes the job and waits until it is gone.",
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
    """Make the job the owner of its PodGroups, so that they are deleted with it."""
    *beside, manifest = plan.manifests
    owner = {"apiVersion": manifest["apiVersion"], "kind": manifest["kind"], "name": plan.job.name, "uid": uid}
    for each in beside:
        if each.get("kind") != "PodGroup":
            continue
        metadata = section(each, "metadata")
        if plan.action == "keep":
            # The submitting process may have been killed before this. A group deleted at the job's end stays deleted.
            found = cluster.get(Kind.POD_GROUP, str(metadata["name"]), plan.job.namespace)
            if found is None or owner in (section(found, "metadata").get("ownerReferences") or []):
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
            f"the connection broke while {run.namespace}/{run.name} was created; it does not exist: {error.message}",
            hint="Submit it again. Submitting the same job twice does no harm.",
        ) from error


def _manifests(job: TrainingJob, around: Surroundings, cluster: Cluster) -> list[Manifest]:
    *beside, manifest = job.to_manifest(around)
    annotations = {**section(manifest, "metadata", "annotations"), DIGEST: job.digest}
    return [
        *(_with_scope(each, cluster) for each in beside),
        manifest | {"metadata": manifest["metadata"] | {"annotations": annotations}},
    ]


def _with_scope(companion: Manifest, cluster: Cluster) -> Manifest:
    """Return a companion as the cluster scopes it: a PriorityClass or a ClusterRole has no namespace."""
    with suppress(NotFound):  # the kind itself may come with the same file
        if not cluster.kind_of(companion).namespaced:
            metadata = {key: value for key, value in companion["metadata"].items() if key != "namespace"}
            return companion | {"metadata": metadata}
    return companion


def _state_of(run: Run) -> str:
    job = run.cluster.get(run.kind, run.name, run.namespace)
    return status_of(job, name=run.name, namespace=run.namespace, now=run.cluster.clock.now()).state
