"""Manifests of training jobs: built from typed values, read from YAML, adapted to a cluster."""

from __future__ import annotations

from cloudedge.training.manifest._adapt import OUTPUT, OUTPUT_ENV, Surroundings, adapted, written_at
from cloudedge.training.manifest._job_classes import (
    GUARANTEED,
    JOB_CLASSES,
    OPPORTUNISTIC,
    JobClass,
    job_class,
    with_class,
    with_queue,
)
from cloudedge.training.manifest._paddlejob import ELASTIC_SERVER, paddle_job
from cloudedge.training.manifest._pods import (
    containers,
    env_names,
    first_container,
    mappings,
    pod_spec,
    roles,
    section,
    without_nulls,
)
from cloudedge.training.manifest._read import is_job, read_manifests, require_job
from cloudedge.training.manifest._shape import check_shape
from cloudedge.training.manifest._values import (
    CleanPodPolicy,
    Elastic,
    Flavour,
    Gang,
    HostMount,
    Intranet,
    Manifest,
    PvcMount,
    Role,
    Samples,
)
from cloudedge.training.manifest._volcano import CTR_OUTPUT, LifecyclePolicy, Task, ctr_job, volcano_job

__all__ = [
    "CTR_OUTPUT",
    "ELASTIC_SERVER",
    "GUARANTEED",
    "JOB_CLASSES",
    "OPPORTUNISTIC",
    "OUTPUT",
    "OUTPUT_ENV",
    "CleanPodPolicy",
    "Elastic",
    "Flavour",
    "Gang",
    "HostMount",
    "Intranet",
    "JobClass",
    "LifecyclePolicy",
    "Manifest",
    "PvcMount",
    "Role",
    "Samples",
    "Surroundings",
    "Task",
    "adapted",
    "check_shape",
    "containers",
    "ctr_job",
    "env_names",
    "first_container",
    "is_job",
    "job_class",
    "mappings",
    "paddle_job",
    "pod_spec",
    "read_manifests",
    "require_job",
    "roles",
    "section",
    "volcano_job",
    "with_class",
    "with_queue",
    "without_nulls",
    "written_at",
]
