"""Checks of a job against its cluster: missing objects that would make it wait for ever, found before it is sent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from cloudedge.errors import InputError, NotFound, Rejected
from cloudedge.findings import Finding, error, warning
from cloudedge.training.job import TrainingJob
from cloudedge.training.manifest import Flavour, Manifest, Surroundings, adapted, pod_spec, roles, section

if TYPE_CHECKING:
    from cloudedge.kube import Cluster

__all__ = ["check_against_cluster", "surroundings"]


def surroundings(cluster: Cluster, namespace: str) -> Surroundings:
    """Read the facts about a cluster's namespace that matter to jobs; without permission, they stay unknown."""
    flavour = cluster.capabilities().paddle_flavour
    injects = False
    with suppress(Rejected):
        found = cluster.get(_kind().NAMESPACE, namespace)
        labels = section(found or {}, "metadata", "labels")
        injects = labels.get("istio-injection") == "enabled" or "istio.io/rev" in labels
    return Surroundings(flavour=Flavour(flavour) if flavour else None, injects_sidecars=injects)


def check_against_cluster(cluster: Cluster, job: TrainingJob, around: Surroundings) -> list[Finding]:
    """Check that everything the job names exists; objects that may not be read count as existing."""
    found: list[Finding] = []
    for look in (_namespace, _queues, _priorities, _claims, _samples, _groups, _addresses, _pods):
        with suppress(Rejected):
            found += look(cluster, job, around)
    return list(dict.fromkeys(found))


def _namespace(cluster: Cluster, job: TrainingJob, _: Surroundings) -> Iterator[Finding]:
    if cluster.get(_kind().NAMESPACE, job.namespace) is None:
        problem = f"the namespace {job.namespace!r} does not exist."
        yield error("no-namespace", "metadata.namespace", problem, f"Run `kubectl create namespace {job.namespace}`.")


def _queues(cluster: Cluster, job: TrainingJob, _: Surroundings) -> Iterator[Finding]:
    spec = section(job.manifest, "spec")
    where = "spec.queue" if job.is_volcano else "spec.schedulingPolicy.queue"
    name = spec.get("queue") if job.is_volcano else section(spec, "schedulingPolicy").get("queue")
    if not name or name in _beside(job, "Queue") or not cluster.capabilities().has(_kind().QUEUE):
        return
    queue = cluster.get(_kind().QUEUE, str(name))
    if queue is None:
        yield error("no-queue", where, f"the queue {name!r} does not exist: the job would wait for ever.")
    elif section(queue, "status").get("state") in {"Closed", "Closing"}:
        yield error(
            "queue-closed", where, f"the queue {name!r} is {section(queue, 'status')['state']}: it takes no jobs."
        )
    else:
        queues = cluster.list(_kind().QUEUE)
        below = [section(q, "metadata")["name"] for q in queues if section(q, "spec").get("parent") == name]
        if below:
            problem = f"the queue {name!r} has queues below it, and Volcano accepts jobs only in leaves."
            yield error("queue-parent", where, problem, f"Use one of: {', '.join(sorted(below))}.")


def _priorities(cluster: Cluster, job: TrainingJob, _: Surroundings) -> Iterator[Finding]:
    spec = section(job.manifest, "spec")
    named = {
        "spec.priorityClassName": spec.get("priorityClassName"),
        "spec.schedulingPolicy.priorityClass": section(spec, "schedulingPolicy").get("priorityClass"),
    } | {
        f"{at}.template.spec.priorityClassName": pod_spec(r).get("priorityClassName")
        for _, at, r in roles(job.manifest)
    }
    for name in {str(value) for value in named.values() if value} - _beside(job, "PriorityClass"):
        if cluster.get(_kind().PRIORITY_CLASS, name) is None:
            where = next(path for path, value in named.items() if value == name)
            problem = f"the priority class {name!r} does not exist: no pod could be created."
            yield error(
                "no-priority-class",
                where,
                problem,
                "Run `cloudedge train render --priority-classes` for its definition.",
            )


def _claims(cluster: Cluster, job: TrainingJob, _: Surroundings) -> Iterator[Finding]:
    own = _beside(job, "PersistentVolumeClaim")
    for _name, where, role in roles(job.manifest):
        for volume in pod_spec(role).get("volumes") or []:
            claim = section(volume, "persistentVolumeClaim").get("claimName") if isinstance(volume, dict) else None
            if claim and claim not in own and cluster.get(_kind().PVC, str(claim), job.namespace) is None:
                problem = f"the volume claim {claim!r} does not exist in {job.namespace}: pods wait until it does."
                yield warning("no-claim", f"{where}.template.spec.volumes", problem)


def _samples(cluster: Cluster, job: TrainingJob, around: Surroundings) -> Iterator[Finding]:
    name = section(job.manifest, "spec", "sampleSetRef").get("name")
    if not name or around.flavour is Flavour.OPERATOR or not cluster.capabilities().has(_kind().SAMPLE_SET):
        return
    found = cluster.get(_kind().SAMPLE_SET, str(name), job.namespace)
    if found is None and name in _beside(job, "SampleSet"):
        return
    if found is None:
        problem = f"the SampleSet {name!r} does not exist in {job.namespace}: no pod would be created."
        yield error("no-samples", "spec.sampleSetRef.name", problem, f"Run `cloudedge dataset create {name} ...`.")
    elif section(found, "status").get("phase") != "Ready":
        phase = section(found, "status").get("phase") or "without a phase"
        problem = f"SampleSet {name!r} is {phase}, and the controller does not wait for it: pods wait for the volume."
        yield warning("samples-not-ready", "spec.sampleSetRef.name", problem)


def _groups(cluster: Cluster, job: TrainingJob, _: Surroundings) -> Iterator[Finding]:
    """Look for a PodGroup with the job's name: the controller takes any such group for the job's own."""
    if job.is_volcano or job.name in _beside(job, "PodGroup") or not cluster.capabilities().has(_kind().POD_GROUP):
        return
    found = cluster.get(_kind().POD_GROUP, job.name, job.namespace)
    owners = [
        (each.get("kind"), each.get("name")) for each in section(found or {}, "metadata").get("ownerReferences") or []
    ]
    if found is not None and ("PaddleJob", job.name) not in owners:
        least = section(found, "spec").get("minMember")
        problem = f"a PodGroup {job.name!r} (minMember {least}) exists, which a controller with Volcano adopts as it is"
        hint = "Delete it, put it into the job's own file, or give the job another name."
        yield warning("pod-group-adopted", "metadata.name", f"{problem}, and paddle-operator deletes at the end.", hint)


def _beside(job: TrainingJob, kind: str) -> set[str]:
    """Return the names of the companions of one kind."""
    return {str(section(each, "metadata").get("name")) for each in job.companions if each.get("kind") == kind}


def _addresses(cluster: Cluster, job: TrainingJob, _: Surroundings) -> Iterator[Finding]:
    service = cluster.get(_kind().SERVICE, "kubernetes", "default")
    if not job.is_volcano and ":" in str(section(service or {}, "spec").get("clusterIP") or ""):
        why = "the controller never writes the pods' configuration when their addresses are IPv6"
        yield error("ipv6", "spec", f"this cluster's network is IPv6: {why}.")


def _pods(cluster: Cluster, job: TrainingJob, around: Surroundings) -> Iterator[Finding]:
    """Create one pod of each role as a dry run: the API server accepts jobs whose pods it would refuse."""
    for name, where, role in roles(adapted(job.manifest, around)[0]):
        template = section(role, "template")
        spec = {"restartPolicy": "Never"} | section(template, "spec")
        if "priorityClassName" in spec:
            spec = {key: value for key, value in spec.items() if key != "priorityClassName"}  # looked up above
        metadata: Manifest = {
            key: value for key, value in section(template, "metadata").items() if key in {"labels", "annotations"}
        }
        pod: Manifest = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata | {"generateName": f"{job.name}-{name}-", "namespace": job.namespace},
            "spec": spec,
        }
        try:
            cluster.create(pod, dry_run=True)
        except InputError as refused:
            yield error("pod", f"{where}.template", f"the API server would refuse its pods: {refused.message}")
        except NotFound:
            return  # the namespace is missing, which another check reports


def _kind() -> type[Kind]:
    from cloudedge.kube import Kind  # noqa: PLC0415 - the client is slow to import

    return Kind


if TYPE_CHECKING:
    from cloudedge.kube import Kind
