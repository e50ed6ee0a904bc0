"""Rules for PaddleJobs: mistakes that would crash the controller, hang the job or change its meaning.

The API server checks almost none of this: most fields are plain strings and numbers to it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

from cloudedge.findings import Finding, error, warning
from cloudedge.training.checks._pods import check_name, check_namespace, check_role, is_count
from cloudedge.training.manifest import (
    ELASTIC_SERVER,
    OUTPUT,
    CleanPodPolicy,
    Flavour,
    Intranet,
    Manifest,
    Surroundings,
    env_names,
    first_container,
    pod_spec,
    roles,
    section,
    written_at,
)

__all__ = ["check_paddle_job"]

_FIELDS = (
    "cleanPodPolicy intranet withGloo elastic schedulingPolicy sampleSetRef ps worker heter".split()  # noqa: SIM905
)
_ROLE_FIELDS = {"replicas", "requests", "limits", "template"}
_OPERATOR_WINS = ("POD_IP", "PADDLE_TRAINER_ID", "TRAINING_ROLE", "PADDLE_TRAINING_ROLE")
_FROM_CONFIG_MAP = (
    "PADDLE_PSERVERS_IP_PORT_LIST",
    "PADDLE_TRAINER_ENDPOINTS",
    "PADDLE_TRAINERS",
    "PADDLE_TRAINERS_NUM",
    "PADDLE_HETER_ENDPOINTS",
)
_SUFFIX = len("-worker-")
_GLOO = (0, 1, 2)


def check_paddle_job(job: Manifest, around: Surroundings) -> Iterator[Finding]:
    """Check a PaddleJob, with regard to the cluster it goes to as far as that is known."""
    spec = section(job, "spec")
    metadata = section(job, "metadata")
    counts = [role["replicas"] for _, _, role in roles(job) if is_count(role.get("replicas"))]
    digits = len(str(max([*counts, 1]) - 1))
    yield from check_name(metadata.get("name"), "metadata.name", _SUFFIX + digits)
    yield from check_namespace(metadata.get("namespace"))
    yield from _check_unknown(spec)
    yield from _check_roles(spec)
    for name, where, role in roles(job):
        yield from check_role(where, role)
        yield from _check_paddle_role(name, where, role, spec)
    yield from _check_words(spec, around)
    yield from _check_elastic(spec)
    yield from _check_gang(job, spec)
    yield from _check_samples(job, spec, around)
    yield from _check_output(job)


def _check_unknown(spec: Manifest) -> Iterator[Finding]:
    for field in spec:
        if field not in _FIELDS and field != "cleanPolicy":
            near = difflib.get_close_matches(str(field), _FIELDS, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"It has: {', '.join(_FIELDS)}."
            problem = "PaddleJob has no such field; the API server would drop it silently."
            yield warning("unknown-field", f"spec.{field}", problem, hint)
    for name in ("ps", "worker", "heter"):
        for field in section(spec, name):
            if field not in _ROLE_FIELDS:
                problem = "a role has no such field; the API server would drop it silently."
                yield warning("unknown-field", f"spec.{name}.{field}", problem, "It has: replicas, template.")


def _check_roles(spec: Manifest) -> Iterator[Finding]:
    given = {name for name in ("ps", "worker", "heter") if spec.get(name) is not None}
    if not given:
        yield error(
            "roles", "spec", "there is neither worker nor ps: nothing would run, and the job would wait for ever."
        )
    elif "ps" in given and "worker" not in given:
        yield error("roles", "spec.worker", "parameter servers without workers would wait for ever.")
    elif "worker" not in given:
        yield error("roles", "spec.worker", "there are no workers.")
    if "heter" in given and "ps" not in given:
        yield error("roles", "spec.heter", "heter workers need parameter servers: add ps.")


def _check_paddle_role(name: str, where: str, role: Manifest, spec: Manifest) -> Iterator[Finding]:
    container = first_container(role)
    path = f"{where}.template.spec"
    for bound in ("requests", "limits"):
        if bound in role:
            problem = "no controller reads this field: it limits and requests nothing."
            yield warning("role-bounds", f"{where}.{bound}", problem, "Put resources into the container.")
    env = env_names(container)
    for key in _OPERATOR_WINS:
        if key in env:
            yield warning(
                "env-lost", f"{path}.containers[0].env", f"the controller sets {key} and overrides this value."
            )
    for key in _FROM_CONFIG_MAP:
        if key in env:
            problem = f"{key} overrides the controller's value; pods may not find each other."
            yield warning("env-hides", f"{path}.containers[0].env", problem)
    scheduler = pod_spec(role).get("schedulerName")
    if scheduler not in {None, "", "volcano"}:
        problem = f"{scheduler!r} switches Volcano off for the whole job, all roles."
        yield warning("scheduler", f"{path}.schedulerName", problem)
    restart = pod_spec(role).get("restartPolicy")
    restarts = restart == "OnFailure" or (restart is None and name == "worker" and spec.get("intranet") == "Service")
    if restarts and "elastic" not in spec:
        problem = "a worker that fails is started again in place for ever, and the job never becomes Failed."
        yield warning("restart-in-place", f"{path}.restartPolicy", problem, "Write Never to see failures.")
    if name == "heter" and "HETER_TRAINER" not in " ".join(map(str, _command(container))):
        problem = "the controller gives heter pods a role (HETER) that Paddle does not know, and no env can change it."
        hint = "Translate it in an explicit command, as TrainingJob.heter does; the image's own command cannot."
        yield warning("heter-role", f"{path}.containers[0].command", problem, hint)


def _command(container: Manifest) -> list[Any]:
    return [word for key in ("command", "args") for word in container.get(key) or []]


def _check_words(spec: Manifest, around: Surroundings) -> Iterator[Finding]:
    policy, ways = spec.get("cleanPodPolicy"), [each.value for each in CleanPodPolicy]
    if policy is not None and policy not in ways:
        problem = f"{policy!r} is unknown and behaves as Never."
        yield warning("clean-pod-policy", "spec.cleanPodPolicy", problem, f"Known: {', '.join(ways)}.")
    if policy == "Never":
        problem = "pods stay, with their logs; a pod of the finished job that is deleted runs again."
        yield warning("pods-rerun", "spec.cleanPodPolicy", problem, "To clean up, delete the job, not its pods.")
    intranet, words = spec.get("intranet"), [each.value for each in Intranet]
    if intranet is not None and intranet not in words:
        problem = f"{intranet!r} is unknown and would behave as PodIP."
        yield error("intranet", "spec.intranet", problem, f"Known: {', '.join(words)}.")
    if intranet == "Host" and around.flavour is not Flavour.OPERATOR:
        problem = "PaddleCloud and the sampleset branch announce the wrong port: pods cannot connect."
        yield warning("host-ports", "spec.intranet", problem, "Use PodIP.")
    gloo = spec.get("withGloo")
    if gloo is not None and (not is_count(gloo) or gloo not in _GLOO):
        yield error("with-gloo", "spec.withGloo", f"{gloo!r}: wanted 0 (off), 1 (workers) or 2 (workers and servers).")
    elif gloo and "ps" not in spec:
        yield warning("gloo-without-ps", "spec.withGloo", "it has no effect without ps.")
    elif gloo and intranet in {"PodIP", "Host"} and around.flavour in {None, Flavour.OPERATOR}:
        problem = "paddle-operator 0.3.4 and 0.3.5 give gloo the port of the first server: they clash."
        yield warning("gloo-port", "spec.intranet", problem, "Use Service with gloo, or leave intranet out.")
    elif gloo and intranet == "Service" and around.flavour is Flavour.SAMPLESET:
        yield warning("gloo-service", "spec.withGloo", "this controller sets up gloo only without Service.")


def _check_elastic(spec: Manifest) -> Iterator[Finding]:
    if "elastic" not in spec:
        return
    where = "spec.elastic"
    if not is_count(spec["elastic"]):
        yield error("elastic", where, f"{spec['elastic']!r}: wanted a number; 1 is customary.")
    elif spec["elastic"] == 0:
        yield warning("elastic-zero", where, "its presence alone turns elastic on, even as 0.", "Leave it out.")
    if not isinstance(spec.get("worker"), dict):
        why = "the controller crashes on an elastic job without workers, for all jobs"
        yield error("elastic-worker", where, f"there are no workers: {why}.")
    if "ps" in spec:
        yield warning("elastic-ps", where, "Paddle's elastic training is for Collective only; servers cannot change.")
    server = env_names(first_container(section(spec, "worker"))).get(ELASTIC_SERVER, "")
    if not server:
        problem = "workers get no etcd address: paddle-operator 0.3.3 and newer do not pass on --etcd-server."
        yield warning("elastic-etcd", where, problem, f"Set {ELASTIC_SERVER}=host:port in the worker's env.")
    elif "://" in str(server) or "," in str(server) or str(server).count(":") != 1:
        problem = f"{server!r}: Paddle wants one host:port, without a scheme."
        yield error("elastic-etcd", "spec.worker.template.spec.containers[0].env", problem)


def _check_gang(job: Manifest, spec: Manifest) -> Iterator[Finding]:
    policy = section(spec, "schedulingPolicy")
    total = sum(role["replicas"] for _, _, role in roles(job) if is_count(role.get("replicas")))
    least = policy.get("minAvailable")
    where = "spec.schedulingPolicy.minAvailable"
    if least is not None and (not is_count(least) or least > total or least < 1):
        yield error("min-available", where, f"{least!r} of {total} pods: the job would never be scheduled.")
    elif least is not None and least < total:
        problem = f"{least} of {total} pods: Paddle's pods wait for each other, so the rest must fit too."
        yield warning("min-available", where, problem, f"Write {total}, or leave it out.")
    if policy.get("queue") == "root":
        yield error("queue", "spec.schedulingPolicy.queue", "Volcano takes no jobs into the root queue.")
    if "priorityClassName" in policy:
        problem = "the field is priorityClass here; the API server would drop this one."
        yield error("priority-class", "spec.schedulingPolicy.priorityClassName", problem)


def _check_samples(job: Manifest, spec: Manifest, around: Surroundings) -> Iterator[Finding]:
    if "sampleSetRef" not in spec:
        return
    where, ref = "spec.sampleSetRef", section(spec, "sampleSetRef")
    if around.flavour is Flavour.OPERATOR:
        problem = (
            "this cluster's PaddleJob (paddle-operator 0.3.5) has no such field: the job would run without its data."
        )
        yield error("samples-flavour", where, problem, "Install PaddleCloud 0.4, or mount the volume claim yourself.")
    for key in ("name", "mountPath"):
        if not isinstance(ref.get(key), str) or not ref[key]:
            yield error("samples", f"{where}.{key}", f"{ref.get(key)!r}: a SampleSet needs a {key}.")
    if isinstance(ref.get("mountPath"), str) and not ref["mountPath"].startswith("/"):
        yield error("samples", f"{where}.mountPath", f"{ref['mountPath']!r}: wanted an absolute path.")
    if ref.get("namespace") not in {None, "", section(job, "metadata").get("namespace") or "default"}:
        problem = (
            f"{ref['namespace']!r}: the volume claim is looked up in the job's own namespace; pods would wait for it."
        )
        yield error("samples-namespace", f"{where}.namespace", problem, "Leave it out.")
    for _, path, role in roles(job):
        required = "requiredDuringSchedulingIgnoredDuringExecution"
        if section(pod_spec(role), "affinity", "nodeAffinity", required):
            problem = (
                "the controller adds the cache's node as an alternative: pods may land on nodes that fit only one."
            )
            yield warning("samples-affinity", f"{path}.template.spec.affinity", problem, "Use nodeSelector.")
    if "ps" in spec:
        problem = "ps-i and worker-i run on the same node, that of cache i; size them together."
        yield warning("samples-nodes", where, problem)


def _check_output(job: Manifest) -> Iterator[Finding]:
    output = section(job, "metadata", "annotations").get(OUTPUT)
    if not isinstance(output, str) or not output.startswith("pvc://"):
        return
    if not any(written_at(role, output) for _, _, role in roles(job)):
        claim = output.removeprefix("pvc://").partition("/")[0]
        problem = f"no role mounts this part of the claim {claim!r} for writing: nothing could be written there."
        yield error("output", f"metadata.annotations[{OUTPUT}]", problem)
