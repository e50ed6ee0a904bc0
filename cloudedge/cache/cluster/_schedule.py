"""Scheduled data operations: a CronJob runs cloudedge, which makes a SampleJob, since SampleJob has no schedule."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from cloudedge.errors import InputError
from cloudedge.kube import Kind

__all__ = ["CRON_VERSIONS", "MANAGED", "SCHEDULE", "SCHEDULE_VARIABLE", "scheduled"]

CRON_VERSIONS = ("batch/v1", "batch/v1beta1")
"""The API versions of CronJob: it came to batch/v1 with Kubernetes 1.21, and left the other with 1.25."""
MANAGED = {"app.kubernetes.io/managed-by": "cloudedge"}
"""The label of objects that cloudedge made."""

SCHEDULE = "cloudedge/schedule"
"""The label of a schedule's SampleJobs: the schedule's name. Each run removes the SampleJobs of earlier runs."""
SCHEDULE_VARIABLE = "CLOUDEDGE_DATASET_SCHEDULE"
"""The environment variable with the schedule's name in the pod of a run."""

_FIELDS = 5
_OPERATIONS = ("sync", "warmup", "clear", "rm")
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_NAME_MAX = 52
"""Kubernetes adds eleven characters to the name of a CronJob."""


def scheduled(
    name: str,
    cron: str,
    command: Sequence[str],
    *,
    image: str,
    namespace: str,
    version: str = CRON_VERSIONS[0],
) -> list[dict[str, Any]]:
    """Return the objects that run ``cloudedge dataset ...`` at fixed times, with an account of minimal permissions.

    Args:
        name: The name of the CronJob and of its account.
        cron: Five fields: ``0 3 * * *`` is every night at three.
        command: The words after ``cloudedge dataset``: ``["warmup", "criteo"]``; they apply to the cluster it runs in.
        image: An image that contains cloudedge, by digest.
        namespace: The namespace of all objects.
        version: The API version of the CronJob; see `CRON_VERSIONS`.

    Raises:
        InputError: the name or the schedule is not valid, or the command is no operation on a data set.
    """
    if not _NAME.fullmatch(name) or len(name) > _NAME_MAX:
        raise InputError(
            f"{name!r} cannot be a CronJob's name",
            hint=f"Use at most {_NAME_MAX} of a-z, 0-9 and '-', a letter first.",
        )
    if len(cron.split()) != _FIELDS:
        raise InputError(f"{cron!r} is not a schedule", hint="Write five fields, such as `0 3 * * *`.")
    if not command or command[0] not in _OPERATIONS:
        raise InputError(
            f"{' '.join(command)!r} is not an operation that can be scheduled",
            hint=f"Name one of {', '.join(_OPERATIONS)} and its arguments, such as `warmup criteo train`.",
        )
    if not image:
        raise InputError("a schedule needs an image that contains cloudedge", hint="Name one, by digest.")
    words = ["cloudedge", "dataset", *command, *(["--cluster"] if "--cluster" not in command else [])]

    def metadata() -> dict[str, Any]:
        return {"name": name, "namespace": namespace, "labels": dict(MANAGED)}

    subjects = [{"kind": "ServiceAccount", "name": name, "namespace": namespace}]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    pod = {
        "serviceAccountName": name,
        "restartPolicy": "Never",
        "securityContext": {"runAsNonRoot": True},
        "containers": [
            {
                "name": "cloudedge",
                "image": image,
                "command": words,
                "env": [{"name": SCHEDULE_VARIABLE, "value": name}],
            }
        ],
    }
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata()},
        {"apiVersion": Kind.ROLE.api_version, "kind": "Role", "metadata": metadata(), "rules": _RULES},
        {
            "apiVersion": Kind.ROLE.api_version,
            "kind": "RoleBinding",
            "metadata": metadata(),
            "roleRef": role,
            "subjects": subjects,
        },
        {
            "apiVersion": version,
            "kind": "CronJob",
            "metadata": metadata(),
            "spec": {
                "schedule": cron,
                # A run longer than the interval is not overtaken: operations of one runtime queue up.
                "concurrencyPolicy": "Forbid",
                "successfulJobsHistoryLimit": 3,
                "failedJobsHistoryLimit": 3,
                "jobTemplate": {"spec": {"backoffLimit": 0, "template": {"spec": pod}}},
            },
        },
    ]


_GROUP = Kind.SAMPLE_JOB.group
_RULES: list[dict[str, Any]] = [
    {"apiGroups": [_GROUP], "resources": ["samplesets"], "verbs": ["get", "list", "watch"]},
    {
        "apiGroups": [_GROUP],
        "resources": ["samplejobs"],
        "verbs": ["get", "list", "watch", "create", "patch", "delete"],
    },
    {"apiGroups": [""], "resources": ["events", "pods"], "verbs": ["get", "list"]},
]
