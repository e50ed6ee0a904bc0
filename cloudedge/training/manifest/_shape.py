"""Types of a manifest's fields: mappings, lists and strings where its kind has them.

The other rules may then rely on these types. They check numbers themselves, with better messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cloudedge.findings import Finding, error
from cloudedge.training.manifest._values import Manifest

__all__ = ["check_shape"]

_CONTAINER: dict[str, Any] = {
    "name": str,
    "image": str,
    "command": [str],
    "args": [str],
    "env": [{"name": str, "value": str}],
    "resources": {"limits": {}, "requests": {}},
    "volumeMounts": [{"name": str, "mountPath": str}],
}
_ROLE: dict[str, Any] = {
    "template": {
        "metadata": {"labels": {}, "annotations": {}},
        "spec": {
            "containers": [_CONTAINER],
            "initContainers": [_CONTAINER],
            "volumes": [{"name": str, "persistentVolumeClaim": {"claimName": str}}],
            "restartPolicy": str,
            "schedulerName": str,
            "priorityClassName": str,
            "serviceAccountName": str,
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}},
        },
    },
}
_POLICIES: list[Any] = [{"event": str, "events": [str], "action": str, "timeout": str}]
_METADATA: dict[str, Any] = {"name": str, "namespace": str, "labels": {}, "annotations": {}}
_PADDLE_JOB: dict[str, Any] = {
    "metadata": _METADATA,
    "spec": {
        "cleanPodPolicy": str,
        "cleanPolicy": str,
        "intranet": str,
        "schedulingPolicy": {"queue": str, "priorityClass": str, "minResources": {}},
        "sampleSetRef": {"name": str, "namespace": str, "mountPath": str},
        "ps": _ROLE,
        "worker": _ROLE,
        "heter": _ROLE,
    },
}
_VOLCANO_JOB: dict[str, Any] = {
    "metadata": _METADATA,
    "spec": {
        "queue": str,
        "priorityClassName": str,
        "plugins": {},
        "policies": _POLICIES,
        "volumes": [{"mountPath": str, "volumeClaimName": str}],
        "tasks": [_ROLE | {"name": str, "policies": _POLICIES, "dependsOn": {"name": [str]}}],
    },
}
_TYPE_NAMES: dict[type, str] = {dict: "a mapping", list: "a list", str: "a string"}


def check_shape(job: Manifest) -> list[Finding]:
    """Return an error for every field of the wrong type; absent values are fine."""
    return list(_walk(job, _PADDLE_JOB if job.get("kind") == "PaddleJob" else _VOLCANO_JOB, ""))


def _walk(value: Any, shape: Any, where: str) -> Iterator[Finding]:
    wanted: type = shape if isinstance(shape, type) else type(shape)
    is_right: bool = isinstance(value, wanted)
    if not is_right:
        yield error(
            "shape", where.lstrip("."), f"{str(value)[:60]!r} is not {_TYPE_NAMES[wanted]}: no API server accepts it."
        )
    elif isinstance(shape, dict):
        for key, inner in shape.items():
            if value.get(key) is not None:
                yield from _walk(value[key], inner, f"{where}.{key}")
    elif isinstance(shape, list):
        for number, item in enumerate(value):
            yield from _walk(item, shape[0], f"{where}[{number}]")
