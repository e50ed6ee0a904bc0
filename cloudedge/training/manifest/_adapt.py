"""Adaptation of a job to its cluster: adds the fields it needs there, each as a finding.

It removes and changes nothing that the author wrote, and adds only what is missing. The one exception is a misspelt
field that the API server would drop silently.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cloudedge.findings import Finding, note, warning
from cloudedge.training.manifest._paddlejob import GROUP_ANNOTATION, link_to_group
from cloudedge.training.manifest._pods import env_names, first_container, pod_spec, roles, section
from cloudedge.training.manifest._values import Flavour, Manifest

__all__ = ["OUTPUT", "Surroundings", "adapted"]

OUTPUT = "cloudedge/output"
"""The annotation with the location of the trained model."""
OUTPUT_ENV = "CLOUDEDGE_OUTPUT"
_SERVICE_PORT = "36000"
_ISTIO = "sidecar.istio.io/inject"


@dataclass(frozen=True)
class Surroundings:
    """The known facts about the cluster and namespace a job goes to.

    Args:
        flavour: The cluster's PaddleJob; None: unknown.
        injects_sidecars: Whether the namespace injects Istio's sidecar into every pod.
        companions: The objects applied together with the job.
    """

    flavour: Flavour | None = None
    injects_sidecars: bool = False
    companions: Sequence[Manifest] = ()


def adapted(manifest: Manifest, around: Surroundings) -> tuple[Manifest, list[Finding]]:
    """Return the manifest to send, and a finding for each addition."""
    result = copy.deepcopy(manifest)
    steps = _FOR_PADDLE_JOBS if manifest.get("kind") == "PaddleJob" else ()
    found = [finding for step in (*steps, *_FOR_ALL) for finding in step(result, around)]
    return result, found


def _rename_clean_policy(job: Manifest, _: Surroundings) -> list[Finding]:
    spec = section(job, "spec")
    if "cleanPolicy" not in spec:
        return []
    value = spec.pop("cleanPolicy")
    if "cleanPodPolicy" in spec:
        more = f"cleanPodPolicy: {spec['cleanPodPolicy']} applies."
    else:
        spec["cleanPodPolicy"] = value
        more = f"It is sent as cleanPodPolicy: {value}."
    where = "spec.cleanPolicy"
    return [
        warning(
            "clean-policy",
            where,
            "PaddleJob has no such field; the API server would drop it and keep the default.",
            f"Write cleanPodPolicy. {more}",
        )
    ]


def _gloo_by_service(job: Manifest, around: Surroundings) -> list[Finding]:
    spec = section(job, "spec")
    wants_gloo = isinstance(spec.get("withGloo"), int) and spec["withGloo"] > 0 and "ps" in spec
    if around.flavour is not Flavour.OPERATOR or not wants_gloo or "intranet" in spec:
        return []
    spec["intranet"] = "Service"
    for _, _, role in roles(job):
        # With intranet Service the controller would restart failed workers in place, and the job would never fail.
        pod_spec(role).setdefault("restartPolicy", "Never")
    why = "paddle-operator 0.3.5 gives gloo the first server's own port unless pods find each other by service"
    return [note("gloo-port", "spec.intranet", f"set to Service: {why}.")]


def _service_port(job: Manifest, around: Surroundings) -> list[Finding]:
    if around.flavour is not Flavour.OPERATOR or section(job, "spec").get("intranet") != "Service":
        return []
    added = [where for _, where, role in roles(job) if _add_env(role, "PADDLE_PORT", _SERVICE_PORT)]
    why = "the controller announces a random port, while endpoints and services use 36000"
    return [note("service-port", where, f"PADDLE_PORT={_SERVICE_PORT} added: {why}.") for where in added]


def _annotation_for_host(job: Manifest, around: Surroundings) -> list[Finding]:
    has_any = bool(section(job, "metadata", "annotations"))
    if around.flavour is Flavour.OPERATOR or section(job, "spec").get("intranet") != "Host" or has_any:
        return []
    job.setdefault("metadata", {})["annotations"] = {"cloudedge/intranet": "Host"}
    why = "this controller crashes, which stops all jobs, on a host-network job without annotations"
    return [note("host-annotation", "metadata.annotations", f"an annotation was added: {why}.")]


def _link_pod_group(job: Manifest, around: Surroundings) -> list[Finding]:
    name = section(job, "metadata").get("name")
    groups = [each for each in around.companions if each.get("kind") == "PodGroup"]
    if not any(section(group, "metadata").get("name") == name for group in groups):
        return []
    unlinked = [
        where
        for _, where, role in roles(job)
        if section(role, "template", "metadata", "annotations").get(GROUP_ANNOTATION) != name
        or pod_spec(role).get("schedulerName") != "volcano"
    ]
    if unlinked:
        job["spec"] = link_to_group(job, str(name))["spec"]
    why = f"annotation {GROUP_ANNOTATION} and schedulerName volcano added: only they link its pods to the PodGroup"
    return [note("pod-group-link", f"{where}.template", f"{why}.") for where in unlinked]


def _no_sidecar(job: Manifest, around: Surroundings) -> list[Finding]:
    if not around.injects_sidecars:
        return []
    found = []
    for _, where, role in roles(job):
        if _ISTIO not in section(role, "template", "metadata", "annotations"):
            template = role.setdefault("template", {})
            template.setdefault("metadata", {}).setdefault("annotations", {})[_ISTIO] = "false"
            why = "this namespace injects Istio's sidecar, behind which training hangs and pods never end"
            found.append(note("sidecar", f"{where}.template", f"annotation {_ISTIO}: false added: {why}."))
    return found


def _output_env(job: Manifest, _around: Surroundings) -> list[Finding]:
    output = section(job, "metadata", "annotations").get(OUTPUT, "")
    if not str(output).startswith("pvc://"):
        return []
    found = []
    for _, where, role in roles(job):
        folder = written_at(role, str(output))
        if folder and _add_env(role, OUTPUT_ENV, folder):
            found.append(note("output", where, f"{OUTPUT_ENV} added: the folder to write the model to."))
    return found


def written_at(role: Manifest, output: str) -> str:
    """Return the path at which a role's first container can write ``pvc://claim/path``; empty if it cannot."""
    claim, _, rest = output.removeprefix("pvc://").partition("/")
    path = rest.strip("/")
    volumes = [v for v in pod_spec(role).get("volumes") or [] if isinstance(v, dict)]
    names = {v.get("name") for v in volumes if section(v, "persistentVolumeClaim").get("claimName") == claim}
    for mount in first_container(role).get("volumeMounts") or []:
        if not isinstance(mount, dict) or mount.get("name") not in names or mount.get("readOnly"):
            continue
        # A container that mounts a folder of the claim sees that folder as the root, and nothing beside it.
        top = str(mount.get("subPath") or "").strip("/")
        if not top or f"{path}/".startswith(f"{top}/"):
            below = path.removeprefix(top).strip("/")
            return f"{str(mount.get('mountPath')).rstrip('/')}/{below}".rstrip("/")
    return ""


def _add_env(role: Manifest, name: str, value: str) -> bool:
    container = first_container(role)
    if not container or name in env_names(container):
        return False
    container.setdefault("env", []).append({"name": name, "value": value})
    return True


_Step = Callable[[Manifest, Surroundings], list[Finding]]
_FOR_PADDLE_JOBS: tuple[_Step, ...] = (
    _rename_clean_policy,
    _gloo_by_service,
    _service_port,
    _annotation_for_host,
    _link_pod_group,
)
_FOR_ALL: tuple[_Step, ...] = (_no_sidecar, _output_env)
