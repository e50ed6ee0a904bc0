"""One loaded version: its program, its predictor, its rows, its queue and its batches."""

from __future__ import annotations

from cloudedge.serving.model._batching import QueuedRequest, VersionQueue, VersionUnloaded, WorkerPool
from cloudedge.serving.model._inputs import alias
from cloudedge.serving.model._metrics import metric, resident_bytes, sample
from cloudedge.serving.model._predictor import engine
from cloudedge.serving.model._program import read_signature
from cloudedge.serving.model._row_source import BundleRows, FoundRows, RowSource
from cloudedge.serving.model._version import ProbeResult, Version

__all__ = [
    "BundleRows",
    "FoundRows",
    "ProbeResult",
    "QueuedRequest",
    "RowSource",
    "Version",
    "VersionQueue",
    "VersionUnloaded",
    "WorkerPool",
    "alias",
    "engine",
    "metric",
    "read_signature",
    "resident_bytes",
    "sample",
]
