"""Data operations at fixed times. SampleJob has no schedule, so a CronJob runs cloudedge, which makes one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from cloudedge.errors import InputError
from cloudedge.kube import Kind

__all__ = ["CRON_VERSIONS", "MANAGED", "SCHEDULE", "SCHEDULE_VARIABLE", "scheduled"]

CRON_VERSIONS = ("batch/v1", "batch/v1beta1")
"""Where CronJob is: it came to batch/v1 with Kubernetes 1.21, and left the other with 1.25."""
MANAGED = {"app.kubernetes.io/managed-by": "cloudedge"}
"""What tells our objects from those of others."""

SCHEDULE = "cloudedge/schedule"
"""The label of SampleJobs that a schedule made: its name. The next run removes those of the runs before."""
SCHEDULE_VARIABLE = "CLOUDEDGE_DATASET_SCHEDULE"
"""Tells the pod of a run which schedule it belongs to."""

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
    """Return the objects that run ``cloudedge dataset ...`` at fixed times, with an account that may do no more.

    Args:
        name: Of the CronJob and of its account.
        cron: Five fields: ``0 3 * * *`` is every night at three.
        command: What follows ``cloudedge dataset``: ``["warmup", "criteo"]``; it works on the cluster it runs in.
        image: An image with cloudedge in it, by digest.
        namespace: Where all of it lives.
        version: Of the CronJob; see `CRON_VERSIONS`.

    Raises:
        InputError: the name cannot be, the schedule is none, or the command is no operation on a data set.
    """
    if not _NAME.fullmatch(name) or len(name) > _NAME_MAX:
        raise InputError(
            f"{name!r} is not the name of a CronJob",
            hint=f"At most {_NAME_MAX} of a-z, 0-9 and '-', a letter first.",
        )
    if len(cron.split()) != _FIELDS:
        raise InputError(f"{cron!r} is not a schedule", hint="Five fields, such as '0 3 * * *'.")
    if not command or command[0] not in _OPERATIONS:
        raise InputError(
            f"{' '.join(command)!r} is not what can be done at fixed times",
            hint=f"Name one of {', '.join(_OPERATIONS)}, and what to: warmup criteo train",
        )
    if not image:
        raise InputError("a schedule needs an image with cloudedge in it", hint="Name one, by digest.")
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
                # A run that takes longer than the interval is not overtaken: operations of one runtime queue up.
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
