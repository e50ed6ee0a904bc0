"""The typed values that describe a training job: policies, flavours, roles and mounts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

__all__ = [
    "CleanPodPolicy",
    "Elastic",
    "Flavour",
    "Gang",
    "HostMount",
    "Intranet",
    "Manifest",
    "Mount",
    "PvcMount",
    "Role",
    "Samples",
]

Manifest = dict[str, Any]
"""A Kubernetes object, or a part of one, in the form of its YAML."""


class Flavour(str, Enum):
    """The origin of a cluster's PaddleJob; the same manifest behaves differently on each."""

    OPERATOR = "operator"
    """paddle-operator 0.3.5: no ``sampleSetRef``."""
    SAMPLESET = "sampleset"
    """paddle-operator's branch of 2021 with sample caching."""
    PADDLECLOUD = "paddlecloud"
    """PaddleCloud 0.4.0."""

    @property
    def has_samples(self) -> bool:
        """True if a job may name a SampleSet."""
        return self is not Flavour.OPERATOR


class CleanPodPolicy(str, Enum):
    """The outcomes after which the controller removes a finished job's pods, and their logs with them."""

    ALWAYS = "Always"
    NEVER = "Never"
    ON_FAILURE = "OnFailure"
    ON_COMPLETION = "OnCompletion"


class Intranet(str, Enum):
    """The way the pods of a job find each other."""

    POD_IP = "PodIP"
    SERVICE = "Service"
    HOST = "Host"


@dataclass(frozen=True)
class PvcMount:
    """A volume claim mounted in a pod."""

    claim: str
    path: str
    sub_path: str = ""
    read_only: bool = False

    def volume(self) -> Manifest:
        """Return the entry for the pod's volumes, without a name."""
        return {"persistentVolumeClaim": {"claimName": self.claim} | ({"readOnly": True} if self.read_only else {})}


@dataclass(frozen=True)
class HostMount:
    """A folder of the node mounted in a pod."""

    host_path: str
    path: str
    sub_path: str = ""
    read_only: bool = False

    def volume(self) -> Manifest:
        """Return the entry for the pod's volumes, without a name."""
        return {"hostPath": {"path": self.host_path}}


Mount = PvcMount | HostMount


@dataclass(frozen=True)
class Role:
    """The pods of one role: their number, command and resources.

    Args:
        image: The image of its one container.
        replicas: The number of pods.
        command: Their command; the image's own if empty.
        args: The arguments of the command.
        env: Environment variables; those the controller sets override them.
        cpu: Processors to request, as Kubernetes writes it: 2, "500m".
        memory: Memory to request: "4Gi".
        gpus: GPUs of each pod; with any, /dev/shm becomes a memory volume unless `shm` says otherwise.
        gpu_resource: The cluster's resource name for a GPU.
        shm: A memory volume at /dev/shm: True, False, or its size; None: with GPUs only.
        volumes: The mounted volumes.
        node_selector: Labels a node must have.
        service_account: The service account of the pods.
        image_pull_secrets: Secrets for the registry.
        working_dir: The folder in which the command starts.
        pod_overrides: Merged into the pod template last, deeply: anything else a template can hold.
    """

    image: str
    replicas: int = 1
    command: Sequence[str] = ()
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cpu: str | int | None = None
    memory: str | None = None
    gpus: int = 0
    gpu_resource: str = "nvidia.com/gpu"
    shm: bool | str | None = None
    volumes: Sequence[Mount] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)
    service_account: str = ""
    image_pull_secrets: Sequence[str] = ()
    working_dir: str = ""
    pod_overrides: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Gang:
    """Schedule all pods of a job or none, through Volcano.

    Args:
        queue: The Volcano queue; Volcano's default if empty.
        min_available: The number of pods that must fit; all of them if None, which is what Paddle needs.
        priority_class: The priority of the group.
        min_resources: The resources that must be free; the sum of the pods' requests if empty.
        how: ``operator`` if the controller runs with ``--scheduling=volcano``; otherwise ``podgroup``: cloudedge makes
            a PodGroup, and every pod names it.
    """

    queue: str = ""
    min_available: int | None = None
    priority_class: str = ""
    min_resources: Mapping[str, str] = field(default_factory=dict)
    how: Literal["operator", "podgroup"] = "operator"


@dataclass(frozen=True)
class Elastic:
    """Let the number of workers change while the job runs.

    Args:
        etcd: ``host:port`` of one etcd server, without a scheme.
    """

    etcd: str


@dataclass(frozen=True)
class Samples:
    """A SampleSet whose cache the job reads.

    Args:
        name: The SampleSet, in the job's own namespace.
        path: The mount path in every pod of the job.
    """

    name: str
    path: str
