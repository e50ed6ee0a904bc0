"""Rules for the pods of both kinds of jobs: names, replicas, containers, volumes.

The API server accepts a job whose pods it would refuse one by one; the job then waits for ever. These rules find such
pods before the job is sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from cloudedge.findings import Finding, error, warning
from cloudedge.training.manifest import Manifest, containers, first_container, pod_spec, section

__all__ = ["check_name", "check_namespace", "check_role", "is_count"]

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_NAME_LIMIT = 63
_GPU = re.compile(r".*/(gpu|mlu|npu|xpu|vgpu.*|gpu.*)")


def is_count(value: Any) -> bool:
    """Return whether a value from YAML is a whole number; Python counts True as one."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_name(name: Any, where: str, longest_suffix: int) -> Iterator[Finding]:
    """Check a name that becomes part of pod names, and through them of host names, service names and label values."""
    if not isinstance(name, str) or not name:
        yield error("name", where, "a job needs a name.")
        return
    if "." in name or not _LABEL.fullmatch(name) or not name[0].isalpha():
        why = "it becomes part of host and service names: lower-case letters, digits and dashes, a letter first"
        yield error("name", where, f"{name!r} cannot be a job's name: {why}.")
    if len(name) + longest_suffix > _NAME_LIMIT:
        room = _NAME_LIMIT - longest_suffix
        why = f"its pods' names would be longer than {_NAME_LIMIT} characters, and none could be created"
        yield error("name-length", where, f"{len(name)} characters: {why}.", f"Use at most {room}.")


def check_namespace(namespace: Any) -> Iterator[Finding]:
    """Check a namespace, if there is one."""
    if namespace is not None and (not isinstance(namespace, str) or not _LABEL.fullmatch(namespace)):
        yield error("namespace", "metadata.namespace", f"{namespace!r} is not a valid namespace name.")


def check_role(where: str, role: Manifest) -> Iterator[Finding]:
    """Check the pods of a role."""
    replicas = role.get("replicas")
    if not is_count(replicas) or replicas < 1:  # type: ignore[operator]
        why = "the other pods would wait for ever, and some controllers crash, which stops all jobs"
        yield error("replicas", f"{where}.replicas", f"{replicas!r} pods: {why}.", "Write 1 or more.")
    path = f"{where}.template.spec"
    if not containers(role):
        why = "the controller crashes on a role without containers, which stops all jobs"
        yield error("containers", f"{path}.containers", f"there are none: {why}.")
        return
    yield from _check_containers(path, role)
    yield from _check_mounts(path, role)
    yield from _check_restarts(path, role)
    yield from _check_shared_memory(path, role)


def _check_containers(path: str, role: Manifest) -> Iterator[Finding]:
    found = pod_spec(role)["containers"]
    seen = set()
    for number, container in enumerate(found):
        where = f"{path}.containers[{number}]"
        if not isinstance(container, dict):
            yield error("containers", where, f"{container!r} is not a container.")
            continue
        name = container.get("name")
        if not isinstance(name, str) or not _LABEL.fullmatch(name) or len(name) > _NAME_LIMIT:
            yield error(
                "container-name", f"{where}.name", f"{name!r} is not a valid container name: no pod could be created."
            )
        elif name in seen:
            yield error("container-name", f"{where}.name", f"{name!r} is used twice: no pod could be created.")
        seen.add(str(name))
        image = container.get("image")
        if not isinstance(image, str) or not image.strip() or image != image.strip():
            yield error("image", f"{where}.image", f"{image!r} is not an image: no pod could be created.")
    if len(found) > 1:
        why = "a pod succeeds only once all its containers have ended with 0; Paddle's is the first"
        yield warning("sidecar-container", f"{path}.containers", f"{len(found)} containers: {why}.")


def _check_mounts(path: str, role: Manifest) -> Iterator[Finding]:
    volumes = pod_spec(role).get("volumes") or []
    names = [v.get("name") for v in volumes if isinstance(v, dict)] if isinstance(volumes, list) else []
    for name in {str(name) for name in names if names.count(name) > 1}:
        yield error("volume-name", f"{path}.volumes", f"{name!r} is used twice: no pod could be created.")
    for number, container in enumerate(containers(role)):
        mounts = [m for m in container.get("volumeMounts") or [] if isinstance(m, dict)]
        where = f"{path}.containers[{number}].volumeMounts"
        for mount in mounts:
            if mount.get("name") not in names:
                known = f"The pod's volumes are: {', '.join(map(str, names)) or 'none'}."
                problem = f"{mount.get('name')!r} is not one of the pod's volumes: no pod could be created."
                yield error("volume-mount", where, problem, known)
        paths = [mount.get("mountPath") for mount in mounts]
        for twice in {str(p) for p in paths if paths.count(p) > 1}:
            yield error("volume-mount", where, f"two volumes are mounted at {twice}: no pod could be created.")


def _check_restarts(path: str, role: Manifest) -> Iterator[Finding]:
    policy = pod_spec(role).get("restartPolicy")
    where = f"{path}.restartPolicy"
    if policy == "Always":
        why = "a container that always restarts never ends, so the job would never complete"
        yield error("restart-always", where, f"Always: {why}.", "Write Never, or OnFailure.")
    elif policy not in {None, "Never", "OnFailure"}:
        yield error("restart-policy", where, f"{policy!r}: wanted Never or OnFailure.")


def _check_shared_memory(path: str, role: Manifest) -> Iterator[Finding]:
    container = first_container(role)
    limits = section(container, "resources", "limits") | section(container, "resources", "requests")
    mounts = [m.get("mountPath") for m in container.get("volumeMounts") or [] if isinstance(m, dict)]
    if any(_GPU.fullmatch(str(name)) for name in limits) and "/dev/shm" not in mounts:  # noqa: S108
        why = "a container has 64 MB of shared memory, and data loaders of GPU training need more"
        hint = "Mount an emptyDir with medium Memory at /dev/shm."
        yield warning("shared-memory", f"{path}.volumes", f"GPUs without a memory volume at /dev/shm: {why}.", hint)
