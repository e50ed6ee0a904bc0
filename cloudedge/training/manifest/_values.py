"""The words of a training job: policies, flavours, and the small values that builders take."""

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
"""A Kubernetes object, or a part of one, as YAML has it."""


class Flavour(str, Enum):
    """Which PaddleJob a cluster has; the same manifest behaves differently on each."""

    OPERATOR = "operator"
    """paddle-operator 0.3.5: no ``sampleSetRef``."""
    SAMPLESET = "sampleset"
    """paddle-operator's branch of 2021 with sample caching."""
    PADDLECLOUD = "paddlecloud"
    """PaddleCloud 0.4.0."""

    @property
    def has_samples(self) -> bool:
        """Whether a job may name a SampleSet."""
        return self is not Flavour.OPERATOR


class CleanPodPolicy(str, Enum):
    """When the controller removes a finished job's pods, and their logs with them."""

    ALWAYS = "Always"
    NEVER = "Never"
    ON_FAILURE = "OnFailure"
    ON_COMPLETION = "OnCompletion"


class Intranet(str, Enum):
    """By what the pods of a job find each other."""

    POD_IP = "PodIP"
    SERVICE = "Service"
    HOST = "Host"


@dataclass(frozen=True)
class PvcMount:
    """A volume claim in a pod."""

    claim: str
    path: str
    sub_path: str = ""
    read_only: bool = False

    def volume(self) -> Manifest:
        """Return what goes into the pod's volumes, without a name."""
        return {"persistentVolumeClaim": {"claimName": self.claim} | ({"readOnly": True} if self.read_only else {})}


@dataclass(frozen=True)
class HostMount:
    """A folder of the node in a pod."""

    host_path: str
    path: str
    sub_path: str = ""
    read_only: bool = False

    def volume(self) -> Manifest:
        """Return what goes into the pod's volumes, without a name."""
        return {"hostPath": {"path": self.host_path}}


Mount = PvcMount | HostMount


@dataclass(frozen=True)
class Role:
    """The pods of one role: how many, what they run, what they get.

    Args:
        image: The image of its one container.
        replicas: How many pods.
        command: What they run; the image's own if empty.
        args: What follows the command.
        env: Environment variables; what the controller sets itself wins over them.
        cpu: Processors to ask for, as Kubernetes writes it: 2, "500m".
        memory: Memory to ask for: "4Gi".
        gpus: GPUs of each pod; with any, /dev/shm becomes a memory volume unless `shm` says otherwise.
        gpu_resource: What the cluster calls a GPU.
        shm: A memory volume at /dev/shm: True, False, or its size; None: with GPUs only.
        volumes: What is mounted where.
        node_selector: Labels a node must have.
        service_account: The account the pods run under.
        image_pull_secrets: Secrets for the registry.
        working_dir: Where the command starts.
        pod_overrides: Merged into the pod template last, deeply: whatever else a template can say.
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
        queue: The Volcano queue; its default one if empty.
        min_available: How many pods have to fit; all of them if None, which is what Paddle needs.
        priority_class: The priority of the group.
        min_resources: What has to be free; the sum of the pods' requests if empty.
        how: ``operator`` where the controller runs with ``--scheduling=volcano``; ``podgroup`` where it does not: a
            PodGroup of our own, and every pod says that it belongs to it.
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
        path: Where every pod of the job sees it.
    """

    name: str
    path: str
