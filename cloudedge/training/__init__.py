"""Training jobs: describe them with types or YAML, check, submit to a cluster or start locally, watch and pack.

    job = TrainingJob.collective("resnet", Role("demo:1", replicas=2, command=["python", "train.py"]))
    run = submit(job)
    run.wait(on_change=print)
    bundle = run.outputs.pack("resnet")

A job is a manifest with typed ways to make and read it. The rules inspect the manifest, so they hold for jobs from YAML
and from Python alike. Code that needs a cluster is imported on first use: describing and checking a job needs no
Kubernetes client, and `local` no cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudedge._lazy import lazy_names
from cloudedge.findings import Finding
from cloudedge.training.job import TrainingJob
from cloudedge.training.manifest import (
    GUARANTEED,
    JOB_CLASSES,
    OPPORTUNISTIC,
    CleanPodPolicy,
    Elastic,
    Flavour,
    Gang,
    HostMount,
    Intranet,
    JobClass,
    LifecyclePolicy,
    PvcMount,
    Role,
    Samples,
    Surroundings,
    Task,
    job_class,
)
from cloudedge.training.results import JobStatus, Outputs, RoleStatus, State, TrainingFailed

if TYPE_CHECKING:
    from cloudedge.training import local
    from cloudedge.training.cluster import Run, Submission, attach, carry_out, list_runs, plan_submit, submit

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
    "LifecyclePolicy",
    "Outputs",
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

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "cluster": ("Run", "Submission", "attach", "carry_out", "list_runs", "plan_submit", "submit"),
        "local": (),
    },
    {"Policy": "cloudedge.training.LifecyclePolicy"},
)
