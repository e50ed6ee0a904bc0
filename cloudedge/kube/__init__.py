"""Kubernetes access: everything cloudedge does on a cluster goes through `Cluster`.

    with Cluster.connect(context="prod", namespace="ads") as cluster:
        job = cluster.apply({"apiVersion": "batch.paddlepaddle.org/v1", "kind": "PaddleJob", ...})
        cluster.wait(Kind.PADDLE_JOB, "ctr", is_done, timeout_s=3600, what="training ctr")
        for line in cluster.logs("paddle-res-type=worker", follow=True): ...

Objects are plain mappings, as the API server writes them. Rules that hold for every call:

- Only this package imports the official client, and it raises nothing but `cloudedge.errors`.
- `apply` is server-side apply under the field manager ``cloudedge``. It is idempotent, and takes no field that another
  manager owns without `force`.
- No field is dropped silently: servers from 1.25 validate strictly, older ones get a dry run first.
- Requests that are safe to repeat are retried a few times, with jitter. `create` is not, unless it never arrived.
- Every wait has a deadline; its error carries the object's state and the cluster's events about it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudedge._lazy import lazy_names
from cloudedge.kube.objects import Kind, Notice, Object, dropped, identity, metadata, state_of

if TYPE_CHECKING:
    from cloudedge.kube._cluster import FIELD_MANAGER, Cluster
    from cloudedge.kube.api import PADDLE_SERVICES, Capabilities, schema_has
    from cloudedge.kube.streams import Event, LogLine, Ran

__all__ = [
    "FIELD_MANAGER",
    "PADDLE_SERVICES",
    "Capabilities",
    "Cluster",
    "Event",
    "Kind",
    "LogLine",
    "Notice",
    "Object",
    "Ran",
    "dropped",
    "identity",
    "metadata",
    "schema_has",
    "state_of",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "_cluster": ("FIELD_MANAGER", "Cluster"),
        "api": ("PADDLE_SERVICES", "Capabilities", "schema_has"),
        "streams": ("Event", "LogLine", "Ran"),
    },
)
