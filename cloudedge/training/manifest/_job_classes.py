"""Job classes: how jobs compete for a cluster.

A class names three things that must agree: a priority class, a queue, and whether a job may preempt others.
PriorityClass objects are cluster-wide; `to_priority_class` renders them for the cluster's owner to apply.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Literal

from cloudedge.errors import InputError
from cloudedge.training.manifest._pods import roles
from cloudedge.training.manifest._values import Manifest

__all__ = ["GUARANTEED", "JOB_CLASSES", "OPPORTUNISTIC", "JobClass", "job_class", "with_class", "with_queue"]

CLASS_LABEL = "cloudedge/class"


@dataclass(frozen=True)
class JobClass:
    """A job's priority, queue and preemption.

    Args:
        name: The class's name.
        priority_class: The PriorityClass of its pods and their group.
        value: The rank of that PriorityClass; a higher one goes first.
        preemption: Whether pods of this class may preempt pods of lower rank.
        queue: The Volcano queue; Volcano's default if empty.
        preemptable: Whether Volcano may take its pods away for others.
    """

    name: str
    priority_class: str
    value: int
    preemption: Literal["PreemptLowerPriority", "Never"]
    queue: str = ""
    preemptable: bool = False

    def to_priority_class(self) -> Manifest:
        """Render the PriorityClass, for the cluster's owner."""
        return {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": self.priority_class},
            "value": self.value,
            "preemptionPolicy": self.preemption,
            "globalDefault": False,
            "description": f"Training jobs of the class {self.name}.",
        }


GUARANTEED = JobClass("guaranteed", "cloudedge-guaranteed", 100_000, "PreemptLowerPriority")
"""Runs before others, and preempts opportunistic jobs when nothing else fits."""
OPPORTUNISTIC = JobClass("opportunistic", "cloudedge-opportunistic", -100_000, "Never", preemptable=True)
"""Uses what is left, preempts nothing and may be preempted: the job must be able to start again."""
JOB_CLASSES = {each.name: each for each in (GUARANTEED, OPPORTUNISTIC)}


def job_class(name: str, *, queue: str = "") -> JobClass:
    """Return one of the two classes by name.

    Args:
        name: The class's name.
        queue: Its queue on this cluster; the classes themselves name none, since queues differ between clusters.

    Raises:
        InputError: the class does not exist.
    """
    if name not in JOB_CLASSES:
        raise InputError(f"the job class {name!r} does not exist", hint=f"Use one of: {', '.join(JOB_CLASSES)}.")
    return replace(JOB_CLASSES[name], queue=queue) if queue else JOB_CLASSES[name]


def with_queue(manifest: Manifest, queue: str) -> Manifest:
    """Return a job's manifest in a queue, overriding its own."""
    result = copy.deepcopy(manifest)
    spec = result.setdefault("spec", {})
    policy = spec if "tasks" in spec else spec.setdefault("schedulingPolicy", {})
    policy["queue"] = queue
    return result


def with_class(manifest: Manifest, chosen: JobClass) -> Manifest:
    """Return a job's manifest in a class; queue and priority in the manifest take precedence."""
    result = copy.deepcopy(manifest)
    result.setdefault("metadata", {}).setdefault("labels", {})[CLASS_LABEL] = chosen.name
    spec = result.setdefault("spec", {})
    if "tasks" in spec:
        spec.setdefault("priorityClassName", chosen.priority_class)
        if chosen.queue:
            spec.setdefault("queue", chosen.queue)
    else:
        policy = spec.setdefault("schedulingPolicy", {})
        policy.setdefault("priorityClass", chosen.priority_class)
        if chosen.queue:
            policy.setdefault("queue", chosen.queue)
    for _, _, role in roles(result):
        template = role.setdefault("template", {})
        template.setdefault("spec", {}).setdefault("priorityClassName", chosen.priority_class)
        if chosen.preemptable:
            annotations = template.setdefault("metadata", {}).setdefault("annotations", {})
            annotations.setdefault("volcano.sh/preemptable", "true")
    return result
