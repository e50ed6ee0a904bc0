"""Pod templates: built from a `Role`, read from a manifest."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cloudedge.training.manifest._values import Manifest, Role

__all__ = [
    "containers",
    "env_names",
    "first_container",
    "mappings",
    "merged",
    "pod_spec",
    "pod_template",
    "roles",
    "section",
    "without_nulls",
]

CONTAINER = "paddle"
_SHM = "dshm"


def pod_template(role: Role) -> Manifest:
    """Make the pod template of a role.

    A pod that fails stays failed (``restartPolicy: Never``): its controller would not notice a restart in place.
    Elastic jobs are restarted in place whatever this says.
    """
    container: Manifest = {"name": CONTAINER, "image": role.image}
    container |= {"command": list(role.command)} if role.command else {}
    container |= {"args": list(role.args)} if role.args else {}
    container |= {"workingDir": role.working_dir} if role.working_dir else {}
    container |= {"env": [_variable(k, v) for k, v in role.env.items()]} if role.env else {}
    asked = {"cpu": str(role.cpu) if role.cpu is not None else None, "memory": role.memory}
    requests = {name: value for name, value in asked.items() if value is not None}
    resources: Manifest = {"requests": requests} if requests else {}
    resources |= {"limits": {role.gpu_resource: role.gpus}} if role.gpus else {}
    container |= {"resources": resources} if resources else {}

    mounts, volumes = _volumes(role)
    container |= {"volumeMounts": mounts} if mounts else {}
    spec: Manifest = {"restartPolicy": "Never", "containers": [container]}
    spec |= {"volumes": volumes} if volumes else {}
    spec |= {"nodeSelector": dict(role.node_selector)} if role.node_selector else {}
    spec |= {"serviceAccountName": role.service_account} if role.service_account else {}
    spec |= (
        {"imagePullSecrets": [{"name": name} for name in role.image_pull_secrets]} if role.image_pull_secrets else {}
    )
    return merged({"spec": spec}, role.pod_overrides)


def _variable(name: str, value: str) -> Manifest:
    """Return a variable; an empty one has no value, which means the same and which every API server accepts."""
    return {"name": name, "value": value} if value else {"name": name}


def _volumes(role: Role) -> tuple[list[Manifest], list[Manifest]]:
    mounts: list[Manifest] = []
    volumes: list[Manifest] = []
    for number, mount in enumerate(role.volumes):
        source = mount.volume()
        known = next((v for v in volumes if {k: v[k] for k in v if k != "name"} == source), None)
        if known is None:
            known = {"name": f"volume-{number}", **source}
            volumes.append(known)
        at: Manifest = {"name": known["name"], "mountPath": mount.path}
        at |= {"subPath": mount.sub_path} if mount.sub_path else {}
        mounts.append(at | ({"readOnly": True} if mount.read_only else {}))
    if role.shm if role.shm is not None else role.gpus > 0:
        limit = {"sizeLimit": role.shm} if isinstance(role.shm, str) else {}
        volumes.append({"name": _SHM, "emptyDir": {"medium": "Memory", **limit}})
        mounts.append({"name": _SHM, "mountPath": "/dev/shm"})  # noqa: S108 - its path in every pod
    return mounts, volumes


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> Manifest:
    """Merge deeply: mappings by key, lists of named items by name; anything else is replaced, and None removes."""
    result: Manifest = copy.deepcopy(dict(base))
    for key, value in over.items():
        before = result.get(key)
        if value is None:
            result.pop(key, None)
        elif isinstance(before, Mapping) and isinstance(value, Mapping):
            result[key] = merged(before, value)
        elif isinstance(before, list) and isinstance(value, list) and _is_named([*before, *value]):
            result[key] = _merged_by_name(before, value)
        else:
            result[key] = copy.deepcopy(value)
    return result


def _is_named(value: list[Any]) -> bool:
    return all(isinstance(item, Mapping) and "name" in item for item in value)


def _merged_by_name(base: Sequence[Manifest], over: Sequence[Manifest]) -> list[Manifest]:
    more = {item["name"]: item for item in over}
    known = [merged(item, more.pop(item["name"], {})) for item in base]
    return [*known, *(copy.deepcopy(dict(item)) for item in more.values())]


def without_nulls(value: Any) -> Any:
    """Copy a manifest without keys whose value is null: an API server treats them as absent."""
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


def section(value: Any, *path: str) -> Manifest:
    """Return a mapping inside a manifest, or an empty one if it is missing: manifests come from outside."""
    for step in path:
        value = value.get(step) if isinstance(value, Mapping) else None
    return value if isinstance(value, dict) else {}


def roles(manifest: Mapping[str, Any]) -> Iterator[tuple[str, str, Manifest]]:
    """Yield the roles of a PaddleJob or the tasks of a Volcano Job: name, path in the manifest, content."""
    spec = section(manifest, "spec")
    if "tasks" in spec:
        tasks = spec["tasks"] if isinstance(spec["tasks"], list) else []
        for number, task in enumerate(tasks):
            if isinstance(task, dict):
                yield str(task.get("name") or f"default{number}"), f"spec.tasks[{number}]", task
        return
    for name in ("ps", "worker", "heter"):
        if isinstance(spec.get(name), dict):
            yield name, f"spec.{name}", spec[name]


def pod_spec(role: Mapping[str, Any]) -> Manifest:
    """Return the pod spec of a role or task."""
    return section(role, "template", "spec")


def containers(role: Mapping[str, Any]) -> list[Manifest]:
    """Return the containers of a role or task."""
    return mappings(pod_spec(role).get("containers"))


def mappings(value: Any) -> list[Manifest]:
    """Return the mappings in a list; none if the value is no list: manifests come from outside."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def first_container(role: Mapping[str, Any]) -> Manifest:
    """Return the container that the controller treats as Paddle's; an empty one if there is none."""
    return next(iter(containers(role)), {})


def env_names(container: Mapping[str, Any]) -> dict[str, Any]:
    """Return a container's environment: names and values, None for a value that comes from elsewhere."""
    return {str(item.get("name")): item.get("value") for item in mappings(container.get("env"))}
