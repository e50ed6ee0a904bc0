"""Targets in ``cloudedge.yaml``: their legs, and the pods of Kubernetes targets."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from cloudedge.config._edge import EdgeLeg
from cloudedge.config._fields import Duration, Name, Section, Size
from cloudedge.config._hubs import HubConfig

__all__ = [
    "CubePods",
    "DenseLeg",
    "KnativeConfig",
    "PeerConfig",
    "PodsConfig",
    "ServingPods",
    "SparseLeg",
    "TargetConfig",
    "accept_target_kind",
]

_kinds = ["local", "kubernetes", "bie"]


def accept_target_kind(kind: str) -> None:
    """Let targets of cloudedge.yaml be of another kind; `cloudedge.release.register_kind` calls this."""
    if kind not in _kinds:
        _kinds.append(kind)


def _known_kind(kind: str) -> str:
    if kind not in _kinds:
        *first, last = (repr(each) for each in _kinds)
        raise PydanticCustomError(
            "literal_error", "Input should be {expected}", {"expected": f"{', '.join(first)} or {last}"}
        )
    return kind


_SIZE = r"^[0-9]+(\.[0-9]+)?([kMGTPE]|[KMGTPE]i)?$"
_Resources = dict[str, Annotated[str, BeforeValidator(str), Field(pattern=r"^([0-9.]+[a-zA-Z]*|none)$")]]
_REQUESTS = "resources reserved for a pod: cpu, memory, ephemeral-storage; `none` takes a default away"
_LIMITS = "the most a pod may use: cpu, memory, ephemeral-storage; `none` takes a default away"
_VERSION_SIZE = "the memory that the largest version takes in one pod; the default memory limit is computed from it"


class SparseLeg(Section):
    """The sparse leg: cube shards that hold the tables, each with replicas."""

    tables: tuple[Name, ...] = Field(("embedding",), min_length=1, description="the tables its servers hold, by name")
    shards: int = Field(1, ge=1, le=4096, description="number of parts each table is cut into")
    replicas: int = Field(1, ge=1, le=64, description="servers that hold each part")


class DenseLeg(Section):
    """The dense leg: serving replicas."""

    replicas: int = Field(1, ge=1, le=1024, description="servers that answer predictions")
    service: Name = Field("model", description="the service's name for Pipeline clients: POST /SERVICE/prediction")


class PeerConfig(Section):
    """Callers that a NetworkPolicy admits: pods by labels, or addresses."""

    pod_labels: dict[str, str] | None = Field(None, description="labels of the pods; all of the namespaces if left out")
    namespace_labels: dict[str, str] | None = Field(
        None, description="labels of their namespaces, {} for all; the target's own namespace if left out"
    )
    cidr: str = Field("", description="a range of addresses instead, such as 10.1.0.0/16")

    @model_validator(mode="after")
    def _names_one_thing(self) -> PeerConfig:
        by_labels = self.pod_labels is not None or self.namespace_labels is not None
        if by_labels == bool(self.cidr):
            raise PydanticCustomError("peer", "name pod_labels and namespace_labels, or cidr")
        if self.cidr:
            try:
                ipaddress.ip_network(self.cidr)
            except ValueError as error:
                raise PydanticCustomError("cidr", "cidr: {why}", {"why": str(error)}) from error
        return self


class CubePods(Section):
    """The cube pods of a Kubernetes target: one per shard replica."""

    image: str = Field("", description="the image of cube.Dockerfile; needed with a sparse leg")
    requests: _Resources = Field({}, description=_REQUESTS)
    limits: _Resources = Field({}, description=_LIMITS)
    version_size: Size | None = Field(None, description=_VERSION_SIZE)
    storage_class: str = Field(
        "", description="storage class of the volumes; without one, a deleted pod comes back empty"
    )
    storage: str = Field(
        "10Gi", pattern=_SIZE, description="size of each volume; without a storage class, the most a pod may write"
    )
    data_from: tuple[PeerConfig, ...] = Field(
        (), description="callers of the data port, besides the target's own serving pods"
    )
    node_selector: dict[str, str] = Field({}, description="labels of the nodes to run on")


class KnativeConfig(Section):
    """A PaddleService, whose serving pods Knative scales."""

    min_scale: int = Field(1, ge=0, description="fewest pods of a revision; 0: scale to zero without requests")
    max_scale: int = Field(0, ge=0, description="most pods of a revision; 0: no limit")
    metric: Literal["concurrency", "rps", "cpu"] = Field("concurrency", description="the metric to scale by")
    target: int | None = Field(
        None, ge=1, description="the metric's target for one pod, and the most requests it takes at once"
    )
    utilization: int | None = Field(None, ge=1, le=100, description="percent of the target to aim at")
    window: Duration | None = Field(None, description="time over which the metric is measured")
    panic_window: int | None = Field(
        None, ge=1, le=100, description="the window for sudden load, in percent of the window"
    )
    panic_threshold: int | None = Field(
        None, ge=110, le=1000, description="sudden load begins here, in percent of the target"
    )


class ServingPods(Section):
    """The serving pods of a Kubernetes target."""

    image: str = Field("", description="the image of serving.Dockerfile; needed with a dense leg")
    requests: _Resources = Field({}, description=_REQUESTS)
    limits: _Resources = Field({}, description=_LIMITS)
    version_size: Size | None = Field(None, description=_VERSION_SIZE)
    node_selector: dict[str, str] = Field({}, description="labels of the nodes to run on")
    hub: HubConfig | None = Field(
        None, description="the target's hub as the pods reach it; secrets as env:NAME; needed with a dense leg"
    )
    hub_secret: str = Field("", description="a Secret whose keys are those environment variables")
    storage: str = Field("10Gi", pattern=_SIZE, description="the most a pod may write: the programs that it pulls")
    data_from: tuple[PeerConfig, ...] = Field((), description="callers of the data port; anyone if left out")
    ingress_host: str = Field("", description="a host name for an Ingress; without one there is only the Service")
    ingress_class: str = Field("", description="the class of the Ingress; the cluster's default if left out")
    knative: KnativeConfig | None = Field(
        None, description="a PaddleService instead of a Deployment; {} for one with the defaults"
    )


class PodsConfig(Section):
    """The pods of a Kubernetes target: images, resources and network access."""

    cube: CubePods = CubePods()
    serving: ServingPods = ServingPods()
    pull_secrets: tuple[str, ...] = Field((), description="Secrets with the credentials of the images' registry")
    pull_policy: Literal["IfNotPresent", "Always", "Never"] = Field(
        "IfNotPresent", description="when to pull the images"
    )
    service_account: str = Field(
        "", description="the pods' service account; one without permissions is made if left out"
    )
    network_policies: bool = Field(True, description="make NetworkPolicies for the pods")
    admin_from: tuple[PeerConfig, ...] = Field(
        (), description="callers of all ports, the admin APIs among them: a cloudedge in the cluster, Prometheus"
    )
    access: Literal["auto", "forward", "direct"] = Field(
        "auto", description="reach pods through the API server or directly; auto: directly inside the cluster"
    )


class TargetConfig(Section):
    """A named place that can run a bundle."""

    kind: Annotated[str, AfterValidator(_known_kind)]
    hub: Name | None = Field(None, description="the hub releases come from; the default hub if left out")
    key: str = Field("", description="a public key file; bundles not signed with this key are refused")
    port: int | None = Field(
        None, ge=1024, le=65000, description="local: the first of its ports; any free ports if left out"
    )
    kubeconfig: str = Field("", description="kubernetes: the kubeconfig; KUBECONFIG or ~/.kube/config if left out")
    context: str = Field("", description="kubernetes: one of its contexts; the current one if left out")
    namespace: str = Field("", description="kubernetes: the namespace; the context's own if left out")
    pods: PodsConfig | None = Field(None, description="kubernetes: images, resources, volumes, hub")
    paddle_service_group: str = Field(
        "", description="kubernetes: the API group of its PaddleService; discovered on the cluster if left out"
    )
    sparse: SparseLeg | None = None
    dense: DenseLeg | None = None
    edge: EdgeLeg | None = None
