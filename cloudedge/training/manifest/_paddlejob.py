"""PaddleJob manifests, built from typed values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cloudedge.training.manifest._pods import merged, pod_template
from cloudedge.training.manifest._values import CleanPodPolicy, Elastic, Gang, Intranet, Manifest, Role, Samples

__all__ = ["HETER_WRAPPER", "PADDLE_JOB", "paddle_job", "pod_group", "total_replicas", "wrap_heter"]

PADDLE_JOB = "batch.paddlepaddle.org/v1"
GROUP_ANNOTATION = "scheduling.k8s.io/group-name"
ELASTIC_SERVER = "PADDLE_ELASTIC_SERVER"
HETER_WRAPPER = (
    "export TRAINING_ROLE=HETER_TRAINER PADDLE_TRAINING_ROLE=HETER_TRAINER "
    "PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST=$PADDLE_HETER_ENDPOINTS "
    'PADDLE_HETER_TRAINER_IP_PORT_LIST=$PADDLE_HETER_ENDPOINTS; exec "$@"'
)
"""The controller gives heter pods a role and a variable that Paddle does not know, and overrides any ``env``: the
command itself must translate."""


def paddle_job(
    name: str,
    *,
    worker: Role | None = None,
    ps: Role | None = None,
    heter: Role | None = None,
    namespace: str = "",
    clean_pod_policy: CleanPodPolicy | None = CleanPodPolicy.ON_COMPLETION,
    intranet: Intranet | None = None,
    with_gloo: int | None = None,
    elastic: Elastic | None = None,
    gang: Gang | None = None,
    samples: Samples | None = None,
) -> tuple[Manifest, Sequence[Manifest]]:
    """Make a PaddleJob and its companions."""
    spec: Manifest = {}
    spec |= {"cleanPodPolicy": clean_pod_policy.value} if clean_pod_policy else {}
    spec |= {"intranet": intranet.value} if intranet else {}
    spec |= {"withGloo": with_gloo} if with_gloo is not None else {}
    spec |= {"elastic": 1} if elastic else {}
    spec |= {"sampleSetRef": {"name": samples.name, "mountPath": samples.path}} if samples else {}
    given = {"ps": ps, "worker": worker, "heter": wrap_heter(heter) if heter else None}
    for key, role in given.items():
        if role is not None:
            spec[key] = {"replicas": role.replicas, "template": pod_template(role)}
            if elastic:
                # paddle-operator 0.3.3 and newer accept an etcd address and then do not pass it to the pods.
                server = {"name": ELASTIC_SERVER, "value": elastic.etcd}
                spec[key]["template"]["spec"]["containers"][0].setdefault("env", []).append(server)
    metadata: Manifest = {"name": name} | ({"namespace": namespace} if namespace else {})
    manifest: Manifest = {"apiVersion": PADDLE_JOB, "kind": "PaddleJob", "metadata": metadata, "spec": spec}
    return _in_gang(manifest, gang) if gang else (manifest, ())


def wrap_heter(role: Role) -> Role:
    """Return a heter role whose command translates the controller's variables for Paddle."""
    if not role.command or HETER_WRAPPER in role.command:
        return role
    return replace(role, command=("sh", "-c", HETER_WRAPPER, "--", *role.command))


def total_replicas(manifest: Manifest) -> int:
    """Count the pods of a PaddleJob."""
    given = [role for role in (manifest["spec"].get(name) for name in ("ps", "worker", "heter")) if role]
    return sum(role["replicas"] for role in given if isinstance(role.get("replicas"), int))


def _in_gang(manifest: Manifest, gang: Gang) -> tuple[Manifest, Sequence[Manifest]]:
    policy: Manifest = {"minAvailable": gang.min_available or total_replicas(manifest)}
    policy |= {"queue": gang.queue} if gang.queue else {}
    policy |= {"priorityClass": gang.priority_class} if gang.priority_class else {}
    policy |= {"minResources": dict(gang.min_resources)} if gang.min_resources else {}
    scheduled = merged(manifest, {"spec": {"schedulingPolicy": policy}})
    for name in ("ps", "worker", "heter"):
        if name in scheduled["spec"]:
            scheduled["spec"][name]["template"]["spec"]["schedulerName"] = "volcano"
    if gang.how == "operator":
        return scheduled, ()
    return link_to_group(scheduled, manifest["metadata"]["name"]), (pod_group(scheduled),)


def link_to_group(manifest: Manifest, group: str) -> Manifest:
    """Return a job whose every pod names its PodGroup; without that, a group made by hand has no effect."""
    over: Manifest = {"metadata": {"annotations": {GROUP_ANNOTATION: group}}, "spec": {"schedulerName": "volcano"}}
    spec = {
        name: merged(part, {"template": over}) if name in {"ps", "worker", "heter"} and isinstance(part, dict) else part
        for name, part in manifest["spec"].items()
    }
    return manifest | {"spec": spec}


def pod_group(manifest: Manifest) -> Manifest:
    """Make the PodGroup of a PaddleJob whose controller makes none."""
    policy = manifest["spec"].get("schedulingPolicy", {})
    spec: Manifest = {"minMember": policy.get("minAvailable") or total_replicas(manifest)}
    names = {"queue": "queue", "priorityClass": "priorityClassName", "minResources": "minResources"}
    spec |= {theirs: policy[ours] for ours, theirs in names.items() if policy.get(ours)}
    metadata = {key: manifest["metadata"][key] for key in ("name", "namespace") if manifest["metadata"].get(key)}
    return {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": metadata, "spec": spec}
