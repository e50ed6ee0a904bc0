"""Data sets on a cluster: SampleSet, SampleJob, their secrets and schedules."""

from __future__ import annotations

from cloudedge.cache.cluster._cluster import ClusterDatasets
from cloudedge.cache.cluster._samplejob import SYNC_OPTIONS, Operation, SampleJob, Strategy
from cloudedge.cache.cluster._sampleset import MOUNT_OPTIONS, SOURCES, Level, SampleSet, SecretRef
from cloudedge.cache.cluster._schedule import SCHEDULE_VARIABLE, scheduled
from cloudedge.cache.cluster._secrets import file_system_secret, source_secret
from cloudedge.cache.cluster._status import JobStatus, SampleSetStatus, parse_size, read_job, read_sample_set

__all__ = [
    "MOUNT_OPTIONS",
    "SCHEDULE_VARIABLE",
    "SOURCES",
    "SYNC_OPTIONS",
    "ClusterDatasets",
    "JobStatus",
    "Level",
    "Operation",
    "SampleJob",
    "SampleSet",
    "SampleSetStatus",
    "SecretRef",
    "Strategy",
    "file_system_secret",
    "parse_size",
    "read_job",
    "read_sample_set",
    "scheduled",
    "source_secret",
]
