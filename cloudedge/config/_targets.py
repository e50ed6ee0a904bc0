"""Targets in ``cloudedge.yaml``: their legs, and the pods of those on Kubernetes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from cloudedge.config._edge import EdgeLeg
from cloudedge.config._fields import Duration, Name, Section
from cloudedge.config._hubs import HubConfig

__all__ = [
    "CubePods",
    "DenseLeg",
    "KnativeConfig",
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


_Resources = dict[str, Annotated[str, BeforeValidator(str), Field(pattern=r"^[0-9.]+[a-zA-Z]*$")]]


class SparseLeg(Section):
    """Where sparse tables go: cube shards, each with replicas."""

    tables: tuple[Name, ...] = Field(("embedding",), min_length=1, description="the tables its servers hold, by name")
    shards: int = Field(1, ge=1, le=4096, description="into how many parts each table is cut")
    replicas: int = Field(1, ge=1, le=64, description="servers that hold the same part")


class DenseLeg(Section):
    """Where the dense part goes: serving replicas."""

    replicas: int = Field(1, ge=1, le=1024, description="servers that answer predictions")
    service: Name = Field("model", description="what Pipeline clients call it: POST /SERVICE/prediction")


class CubePods(Section):
    """Pods of a target of the kind kubernetes: the shards."""

    image: str = Field("", description="the image of cube.Dockerfile; needed with a sparse leg")
    requests: _Resources = Field({}, description="what a pod is given at least: cpu, memory")
    limits: _Resources = Field({}, description="what it may take at most: cpu, memory")
    storage_class: str = Field("", description="of the volumes; none: a pod that is deleted comes back empty")
    storage: str = Field("10Gi", pattern=r"^[0-9]+[a-zA-Z]*$", description="size of each volume")
    node_selector: dict[str, str] = Field({}, description="labels of the nodes they run on")


class KnativeConfig(Section):
    """Serving as a PaddleService, whose pods Knative scales."""

    min_scale: int = Field(1, ge=0, description="pods of a revision, at least; 0: they go when nobody asks")
    max_scale: int = Field(0, ge=0, description="at most; 0: no limit")
    metric: Literal["concurrency", "rps", "cpu"] = Field("concurrency", description="what is measured")
    target: int | None = Field(None, ge=1, description="how much of it one pod shall have; it takes no more at once")
    utilization: int | None = Field(None, ge=1, le=100, description="percent of the target that is aimed at")
    window: Duration | None = Field(None, description="over which it is measured")
    panic_window: int | None = Field(None, ge=1, le=100, description="percent of the window, for sudden load")
    panic_threshold: int | None = Field(
        None, ge=110, le=1000, description="percent of the target from which load is sudden"
    )


class ServingPods(Section):
    """Pods of a target of the kind kubernetes: the serving replicas."""

    image: str = Field("", description="the image of serving.Dockerfile; needed with a dense leg")
    requests: _Resources = Field({}, description="what a pod is given at least: cpu, memory")
    limits: _Resources = Field({}, description="what it may take at most: cpu, memory")
    node_selector: dict[str, str] = Field({}, description="labels of the nodes they run on")
    hub: HubConfig | None = Field(
        None, description="the target's hub as the pods reach it; secrets as env:NAME; needed with a dense leg"
    )
    hub_secret: str = Field("", description="a Secret whose keys are those environment variables")
    ingress_host: str = Field("", description="a host name for an Ingress; none: only the Service")
    ingress_class: str = Field("", description="who serves the Ingress; the cluster's default if left out")
    knative: KnativeConfig | None = Field(
        None, description="a PaddleService instead of a Deployment; {} for one with the defaults"
    )


class PodsConfig(Section):
    """What the pods of a target of the kind kubernetes are made of, and how they are reached."""

    cube: CubePods = CubePods()
    serving: ServingPods = ServingPods()
    pull_secrets: tuple[str, ...] = Field((), description="Secrets for the registry of the images")
    pull_policy: Literal["IfNotPresent", "Always", "Never"] = Field("IfNotPresent", description="of the images")
    service_account: str = Field("", description="of the pods; one without any right is made if left out")
    access: Literal["auto", "forward", "direct"] = Field(
        "auto", description="reach pods through the API server, or by their addresses; auto: direct inside the cluster"
    )


class TargetConfig(Section):
    """A named place that can run a bundle."""

    kind: Annotated[str, AfterValidator(_known_kind)]
    hub: Name | None = Field(None, description="the hub releases come from; the default hub if left out")
    key: str = Field("", description="a public key file; a bundle without a signature that fits it is refused")
    port: int | None = Field(
        None, ge=1024, le=65000, description="local: the first of its ports; any free ones if left out"
    )
    kubeconfig: str = Field("", description="kubernetes: the kubeconfig; KUBECONFIG or ~/.kube/config if left out")
    context: str = Field("", description="kubernetes: one of its contexts; the current one if left out")
    namespace: str = Field("", description="kubernetes: where to work; the context's own if left out")
    pods: PodsConfig | None = Field(None, description="kubernetes: images, resources, volumes, hub")
    paddle_service_group: str = Field(
        "", description="kubernetes: the API group of its PaddleService; looked for on the cluster if left out"
    )
    sparse: SparseLeg | None = None
    dense: DenseLeg | None = None
    edge: EdgeLeg | None = None
