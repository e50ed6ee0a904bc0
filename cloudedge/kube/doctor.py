"""`cloudedge doctor`: the components a cluster has, their uses, and how to install the missing ones.

`examine` reads the cluster; `diagnose` decides from that alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from cloudedge.errors import NotFound, Rejected
from cloudedge.kube.api import PADDLE_SERVICES, Capabilities
from cloudedge.kube.objects import Kind, Object

if TYPE_CHECKING:
    from cloudedge.kube._cluster import Cluster

__all__ = ["COMPONENTS", "Component", "Diagnosis", "Examined", "Workload", "diagnose", "examine"]

_NO_V1BETA1 = (1, 22)
"""Servers from this version on refuse v1beta1 definitions, the only ones ElasticServing ships."""


@dataclass(frozen=True)
class Workload:
    """A Deployment, StatefulSet or DaemonSet."""

    namespace: str
    name: str
    images: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    """Commands and arguments of its containers."""
    labels: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class Examined:
    """The facts read from a cluster."""

    capabilities: Capabilities
    groups: frozenset[str] = frozenset()
    csi_drivers: frozenset[str] | None = frozenset()
    """None: no permission to read them."""
    workloads: tuple[Workload, ...] | None = ()
    """None: no permission to read them."""

    def running(self, pattern: str) -> Workload | None:
        """Return the first workload whose image matches the pattern."""
        matches = (each for each in self.workloads or () if any(re.search(pattern, image) for image in each.images))
        return next(matches, None)


@dataclass(frozen=True)
class Component:
    """A component cloudedge can use on a cluster."""

    name: str
    is_there: Callable[[Examined], bool | None]
    """None: no permission to look."""
    images: str
    """A pattern for the images of its controller, the source of its version."""
    enables: str
    install: str
    note: Callable[[Examined], str] = lambda _: ""
    """Advice for users of this cluster."""
    has_controller: bool = True
    """True if it is useless without a running controller."""


@dataclass(frozen=True)
class Diagnosis:
    """The finding about one component on a cluster."""

    name: str
    state: Literal["found", "missing", "unknown"]
    enables: str
    version: str = ""
    """Empty: it is missing, or does not report one."""
    where: str = ""
    """The workload that runs it: ``namespace/name``."""
    note: str = ""
    install: str = ""
    """The command or page to install it; empty if it is found."""


def diagnose(examined: Examined) -> list[Diagnosis]:
    """Return each component's state, version and remedy; pure."""
    return [_diagnosis(component, examined) for component in COMPONENTS]


def _diagnosis(component: Component, examined: Examined) -> Diagnosis:
    is_there = component.is_there(examined)
    if not is_there:
        state: Literal["missing", "unknown"] = "missing" if is_there is False else "unknown"
        return Diagnosis(component.name, state, component.enables, install=component.install)
    workload = examined.running(component.images)
    notes = [component.note(examined)]
    if workload is None and examined.workloads is not None and component.has_controller:
        notes.insert(0, "its definition exists, but no workload looks like its controller")
    return Diagnosis(
        component.name,
        "found",
        component.enables,
        version=_version(workload, component.images) if workload else "",
        where=str(workload) if workload else "",
        note="; ".join(filter(None, notes)),
    )


def _version(workload: Workload, pattern: str) -> str:
    """Return the image's tag, or the version label that users who pin images by digest set."""
    image = next(image for image in workload.images if re.search(pattern, image))
    name, _, digest = image.partition("@")
    tag = name.rpartition(":")[2] if ":" in name.rpartition("/")[2] else ""
    return tag or workload.labels.get("app.kubernetes.io/version") or digest[:19]


def examine(cluster: Cluster) -> Examined:
    """Read a cluster's components; without permission to read, they stay unknown.

    Raises:
        CloudEdgeError: the cluster does not answer.
    """
    capabilities = cluster.capabilities(again=True)
    workloads: tuple[Workload, ...] | None = None
    with suppress(Rejected):
        kinds = (Kind.DEPLOYMENT, Kind.STATEFUL_SET, Kind.DAEMON_SET)
        workloads = tuple(_workload(each) for kind in kinds for each in cluster.list(kind, everywhere=True))
    drivers: frozenset[str] | None = None
    with suppress(Rejected, NotFound):
        drivers = frozenset(each["metadata"]["name"] for each in cluster.list(Kind.CSI_DRIVER))
    return Examined(
        capabilities,
        groups=cluster.groups(),
        csi_drivers=drivers,
        workloads=workloads,
    )


def _workload(obj: Object) -> Workload:
    template: dict[str, Any] = ((obj.get("spec") or {}).get("template") or {}).get("spec") or {}
    containers = template.get("containers") or []
    return Workload(
        obj["metadata"].get("namespace", ""),
        obj["metadata"]["name"],
        images=tuple(str(each.get("image") or "") for each in containers),
        words=tuple(str(word) for each in containers for word in [*each.get("command", []), *each.get("args", [])]),
        labels=obj["metadata"].get("labels") or {},
    )


_PADDLE_CONTROLLER = r"paddle-operator|paddlecloud|paddlejob"
_FLAVOURS = {
    "operator": "paddle-operator",
    "sampleset": "paddle-operator's sampleset branch",
    "paddlecloud": "PaddleCloud",
}
_KFP = r"ml-pipeline/api-server|kfp-api-server"
_JUPYTER = r"jupyterhub/|k8s-hub"


def _paddle_jobs(examined: Examined) -> str:
    can = examined.capabilities
    notes = [f"defined by {_FLAVOURS[can.paddle_flavour or 'operator']}"]
    if can.sample_set_ref is False:
        notes.append("its jobs cannot name a SampleSet")
    controller = examined.running(_PADDLE_CONTROLLER)
    if controller is not None:
        watched = next((word.partition("=")[2] for word in controller.words if word.startswith("--namespace=")), "")
        notes.append(f"its controller watches jobs in {watched or 'all namespaces'}")
        gangs = any(word in ("--scheduling=volcano", "-scheduling=volcano") for word in controller.words)
        notes.append("gang scheduling by Volcano is " + ("on" if gangs else "off (--scheduling=volcano turns it on)"))
        if _version(controller, _PADDLE_CONTROLLER).removeprefix("v") == "0.3.4":
            notes.append("0.3.4 gives each pod another port, and they cannot connect: install 0.3.5")
    if "kubeflow.org" in examined.groups:
        notes.append("Kubeflow's own PaddleJob is another kind and is not used")
    return "; ".join(notes)


def _paddle_services(examined: Examined) -> str:
    can = examined.capabilities
    group = can.paddle_service.group if can.paddle_service else ""
    others = [kind.group for kind in PADDLE_SERVICES if kind in can.kinds and kind.group != group]
    notes = [f"group {group}"] + [f"{other} exists too and is not used" for other in others]
    if not can.has(Kind.KNATIVE_SERVICE):
        notes.append("it needs Knative, which is missing")
    if group == PADDLE_SERVICES[0].group and can.version >= _NO_V1BETA1:
        notes.append("this server would refuse the definition that ElasticServing ships")
    return "; ".join(notes)


def _by_image(pattern: str) -> Callable[[Examined], bool | None]:
    return lambda examined: None if examined.workloads is None else examined.running(pattern) is not None


def _has_visualdl(examined: Examined) -> bool | None:
    if examined.workloads is None:
        return None
    return any("visualdl" in " ".join((each.name, *each.images, *each.words)).lower() for each in examined.workloads)


def _has_juicefs(examined: Examined) -> bool | None:
    return None if examined.csi_drivers is None else "csi.juicefs.com" in examined.csi_drivers


_PADDLECLOUD = (
    "helm repo add paddlecloud https://paddleflow-public.hkg.bcebos.com/charts && "
    "helm install paddlecloud paddlecloud/paddlecloud -n paddlecloud --create-namespace"
)
_OPERATOR = "https://raw.githubusercontent.com/PaddleFlow/paddle-operator/main/deploy/v1"

COMPONENTS: tuple[Component, ...] = (
    Component(
        "PaddleJob",
        lambda examined: examined.capabilities.has(Kind.PADDLE_JOB),
        _PADDLE_CONTROLLER,
        "training on parameter servers and collectives",
        f"kubectl apply -f {_OPERATOR}/crd.yaml -f {_OPERATOR}/operator.yaml; with SampleSets: {_PADDLECLOUD}",
        _paddle_jobs,
    ),
    Component(
        "SampleSet, SampleJob",
        lambda examined: examined.capabilities.has(Kind.SAMPLE_SET, Kind.SAMPLE_JOB),
        _PADDLE_CONTROLLER,
        "datasets cached next to the training",
        _PADDLECLOUD,
        lambda examined: "" if _has_juicefs(examined) is not False else "they need the JuiceFS CSI driver",
    ),
    Component(
        "PaddleService",
        lambda examined: examined.capabilities.paddle_service is not None,
        r"elasticserving|paddlecloud|serving-operator",
        "Paddle Serving that scales with its load, to zero",
        _PADDLECLOUD,
        _paddle_services,
    ),
    Component(
        "Knative Serving",
        lambda examined: examined.capabilities.has(Kind.KNATIVE_SERVICE),
        r"knative\.dev/serving/cmd/controller|knative.*controller",
        "PaddleService",
        "https://knative.dev/docs/install/",
    ),
    Component(
        "Volcano",
        lambda examined: examined.capabilities.has(Kind.POD_GROUP, Kind.VOLCANO_JOB),
        r"vc-scheduler|volcano.*scheduler",
        "gang scheduling: all pods of a job or none; queues and priorities",
        "kubectl apply -f https://raw.githubusercontent.com/volcano-sh/volcano/master/installer/volcano-development.yaml",
    ),
    Component(
        "JuiceFS CSI driver",
        _has_juicefs,
        r"juicefs-csi-driver",
        "SampleSet; volumes shared by all pods of a job",
        "helm repo add juicefs https://juicedata.github.io/charts/ && "
        "helm install juicefs-csi-driver juicefs/juicefs-csi-driver -n kube-system",
    ),
    Component(
        "Kubeflow Pipelines",
        _by_image(_KFP),
        _KFP,
        "pipelines from dataset to service, run by the cluster",
        "https://www.kubeflow.org/docs/components/pipelines/operator-guides/installation/",
    ),
    Component(
        "JupyterHub",
        _by_image(_JUPYTER),
        _JUPYTER,
        "notebooks beside the training",
        "helm repo add jupyterhub https://hub.jupyter.org/helm-chart/ && "
        "helm install jupyterhub jupyterhub/jupyterhub -n jupyterhub --create-namespace",
    ),
    Component(
        "VisualDL",
        _has_visualdl,
        r"visualdl",
        "curves of a training while it runs",
        "a Deployment that runs: visualdl --host 0.0.0.0 --logdir DIR",
        has_controller=False,
    ),
)
