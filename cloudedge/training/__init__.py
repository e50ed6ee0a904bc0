"""Training jobs: described with types or YAML, checked, submitted to a cluster or started here, watched, packed.

    job = TrainingJob.collective("resnet", Role("demo:1", replicas=2, command=["python", "train.py"]))
    run = submit(job)
    run.wait(on_change=print)
    bundle = run.outputs.pack("resnet")

A job is a manifest with typed ways to make and read it; rules look at the manifest, so they hold for jobs from YAML
and from Python alike. What touches a cluster is imported when it is first used: describing and checking needs no
Kubernetes client, and `local` no cluster.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from cloudedge.findings import Finding
from cloudedge.training._adapt import Surroundings
from cloudedge.training._classes import GUARANTEED, JOB_CLASSES, OPPORTUNISTIC, JobClass, job_class
from cloudedge.training._errors import TrainingFailed
from cloudedge.training._job import TrainingJob
from cloudedge.training._outputs import Outputs
from cloudedge.training._status import JobStatus, RoleStatus, State
from cloudedge.training._values import (
    CleanPodPolicy,
    Elastic,
    Flavour,
    Gang,
    HostMount,
    Intranet,
    PvcMount,
    Role,
    Samples,
)
from cloudedge.training._volcano import Policy, Task

if TYPE_CHECKING:
    from cloudedge.training import local
    from cloudedge.training._run import Run, attach, list_runs
    from cloudedge.training._submit import Submission, carry_out, plan_submit, submit

__all__ = [
    "GUARANTEED",
    "JOB_CLASSES",
    "OPPORTUNISTIC",
    "CleanPodPolicy",
    "Elastic",
    "Finding",
    "Flavour",
    "Gang",
    "HostMount",
    "Intranet",
    "JobClass",
    "JobStatus",
    "Outputs",
    "Policy",
    "PvcMount",
    "Role",
    "RoleStatus",
    "Run",
    "Samples",
    "State",
    "Submission",
    "Surroundings",
    "Task",
    "TrainingFailed",
    "TrainingJob",
    "attach",
    "carry_out",
    "job_class",
    "list_runs",
    "local",
    "plan_submit",
    "submit",
]

_HOMES = {
    "Run": "_run",
    "attach": "_run",
    "list_runs": "_run",
    "Submission": "_submit",
    "carry_out": "_submit",
    "plan_submit": "_submit",
    "submit": "_submit",
}


def __getattr__(name: str) -> Any:
    if name == "local":
        return importlib.import_module("cloudedge.training.local")
    if name not in _HOMES:
        raise AttributeError(f"module 'cloudedge.training' has no attribute {name!r}")
    return getattr(importlib.import_module(f"cloudedge.training.{_HOMES[name]}"), name)
