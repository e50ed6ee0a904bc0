"""Kinds of Kubernetes objects: group, version and API path of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import quote

from cloudedge.errors import InputError, NotFound

__all__ = ["Kind", "Object", "api_version", "identity", "metadata", "not_served", "root"]

Object = dict[str, Any]
"""A Kubernetes object as the API server writes it."""


@dataclass(frozen=True)
class Kind:
    """A kind of object, always with its group: two groups may use one name for different kinds.

    Example: ``Kind("batch.paddlepaddle.org", "v1", "paddlejobs", "PaddleJob")``
    """

    group: str
    """Empty for the core group."""
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    POD: ClassVar[Kind]
    SERVICE: ClassVar[Kind]
    SECRET: ClassVar[Kind]
    CONFIG_MAP: ClassVar[Kind]
    EVENT: ClassVar[Kind]
    NODE: ClassVar[Kind]
    NAMESPACE: ClassVar[Kind]
    PVC: ClassVar[Kind]
    PV: ClassVar[Kind]
    SERVICE_ACCOUNT: ClassVar[Kind]
    DEPLOYMENT: ClassVar[Kind]
    STATEFUL_SET: ClassVar[Kind]
    DAEMON_SET: ClassVar[Kind]
    JOB: ClassVar[Kind]
    ROLE: ClassVar[Kind]
    ROLE_BINDING: ClassVar[Kind]
    STORAGE_CLASS: ClassVar[Kind]
    PRIORITY_CLASS: ClassVar[Kind]
    CSI_DRIVER: ClassVar[Kind]
    CRD: ClassVar[Kind]
    PADDLE_JOB: ClassVar[Kind]
    SAMPLE_SET: ClassVar[Kind]
    SAMPLE_JOB: ClassVar[Kind]
    KNATIVE_SERVICE: ClassVar[Kind]
    KNATIVE_REVISION: ClassVar[Kind]
    VOLCANO_JOB: ClassVar[Kind]
    VOLCANO_COMMAND: ClassVar[Kind]
    POD_GROUP: ClassVar[Kind]
    QUEUE: ClassVar[Kind]

    @property
    def api_version(self) -> str:
        """The kind's ``apiVersion`` in objects: ``apps/v1``, or ``v1`` for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def is_custom(self) -> bool:
        """True if a custom resource definition defines it, rather than the API server itself."""
        return "." in self.group and not self.group.endswith(".k8s.io")

    def path(self, namespace: str | None = None, name: str = "", subresource: str = "") -> str:
        """Return the API path; without a namespace, across all of them."""
        steps = [root(self.api_version)]
        if self.namespaced and namespace is not None:
            steps += ["namespaces", quote(namespace, safe="")]
        steps += [self.plural, *(quote(step, safe="") for step in (name, subresource) if step)]
        return "/".join(steps)

    def __str__(self) -> str:
        return f"{self.kind}.{self.group}" if self.is_custom else self.kind


def root(version: str) -> str:
    """Return the API path of a group and version: ``/apis/apps/v1``, ``/api/v1``."""
    return f"/apis/{version}" if "/" in version else f"/api/{version}"


def not_served(host: str, name: str, version: str) -> NotFound:
    """Return the error for a kind that a cluster does not serve."""
    return NotFound(
        f"the cluster at {host} has no {name} of {version}",
        hint="Run `cloudedge doctor` to see what the cluster has and how to install the rest.",
        kind=name,
        api_version=version,
    )


def api_version(obj: Mapping[str, Any]) -> tuple[str, str]:
    """Return ``apiVersion`` and ``kind`` of an object.

    Raises:
        InputError: either is missing, or the name is.
    """
    found = obj.get("apiVersion"), obj.get("kind")
    if not isinstance(found[0], str) or not isinstance(found[1], str) or not all(found):
        raise InputError("an object without apiVersion and kind cannot be sent to a cluster")
    metadata = obj.get("metadata")
    if not isinstance(metadata, Mapping) or not (metadata.get("name") or metadata.get("generateName")):
        raise InputError(f"a {found[1]} without metadata.name cannot be sent to a cluster")
    return found[0], found[1]


def identity(obj: Mapping[str, Any]) -> str:
    """Name an object for people: ``PaddleJob train/ctr``."""
    metadata = obj.get("metadata") or {}
    name = metadata.get("name") or f"{metadata.get('generateName', '')}..."
    where = metadata.get("namespace")
    return f"{obj.get('kind', 'object')} {where}/{name}" if where else f"{obj.get('kind', 'object')} {name}"


def metadata(
    name: str,
    namespace: str = "",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Make an object's metadata; what is empty is left out, so that applying it takes no ownership of it."""
    optional = {"namespace": namespace, "labels": dict(labels or {}), "annotations": dict(annotations or {})}
    return {"name": name, **{field: value for field, value in optional.items() if value}}


_CORE = "", "v1"
Kind.POD = Kind(*_CORE, "pods", "Pod")
Kind.SERVICE = Kind(*_CORE, "services", "Service")
Kind.SECRET = Kind(*_CORE, "secrets", "Secret")
Kind.CONFIG_MAP = Kind(*_CORE, "configmaps", "ConfigMap")
Kind.EVENT = Kind(*_CORE, "events", "Event")
Kind.NODE = Kind(*_CORE, "nodes", "Node", namespaced=False)
Kind.NAMESPACE = Kind(*_CORE, "namespaces", "Namespace", namespaced=False)
Kind.PVC = Kind(*_CORE, "persistentvolumeclaims", "PersistentVolumeClaim")
Kind.PV = Kind(*_CORE, "persistentvolumes", "PersistentVolume", namespaced=False)
Kind.SERVICE_ACCOUNT = Kind(*_CORE, "serviceaccounts", "ServiceAccount")
Kind.DEPLOYMENT = Kind("apps", "v1", "deployments", "Deployment")
Kind.STATEFUL_SET = Kind("apps", "v1", "statefulsets", "StatefulSet")
Kind.DAEMON_SET = Kind("apps", "v1", "daemonsets", "DaemonSet")
Kind.JOB = Kind("batch", "v1", "jobs", "Job")
Kind.ROLE = Kind("rbac.authorization.k8s.io", "v1", "roles", "Role")
Kind.ROLE_BINDING = Kind("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
Kind.STORAGE_CLASS = Kind("storage.k8s.io", "v1", "storageclasses", "StorageClass", namespaced=False)
Kind.PRIORITY_CLASS = Kind("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
Kind.CSI_DRIVER = Kind("storage.k8s.io", "v1", "csidrivers", "CSIDriver", namespaced=False)
Kind.CRD = Kind("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False)
Kind.PADDLE_JOB = Kind("batch.paddlepaddle.org", "v1", "paddlejobs", "PaddleJob")
Kind.SAMPLE_SET = Kind("batch.paddlepaddle.org", "v1alpha1", "samplesets", "SampleSet")
Kind.SAMPLE_JOB = Kind("batch.paddlepaddle.org", "v1alpha1", "samplejobs", "SampleJob")
Kind.KNATIVE_SERVICE = Kind("serving.knative.dev", "v1", "services", "Service")
Kind.KNATIVE_REVISION = Kind("serving.knative.dev", "v1", "revisions", "Revision")
Kind.VOLCANO_JOB = Kind("batch.volcano.sh", "v1alpha1", "jobs", "Job")
Kind.VOLCANO_COMMAND = Kind("bus.volcano.sh", "v1alpha1", "commands", "Command")
Kind.POD_GROUP = Kind("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup")
Kind.QUEUE = Kind("scheduling.volcano.sh", "v1beta1", "queues", "Queue", namespaced=False)
