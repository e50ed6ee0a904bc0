"""A PaddleService as the custom resource has it, with the checks that its controller leaves out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cloudedge.errors import InputError
from cloudedge.findings import Finding, error, refuse_errors, warning
from cloudedge.kube import Kind

__all__ = ["Autoscale", "Endpoint", "PaddleService"]

_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_NAME_MAX, _LABEL_MAX, _PORT_MAX, _ALL = 47, 63, 65535, 100
_CLASSES = {"kpa": "kpa.autoscaling.knative.dev", "hpa": "hpa.autoscaling.knative.dev"}
_READ_ONLY = ("secret", "configMap", "projected")


@dataclass(frozen=True)
class Endpoint:
    """What one revision runs.

    Args:
        image: ``repository:tag``, or better ``repository@sha256:hex``: a tag is looked up once and never again.
        port: Where the server listens.
        arg: What bash runs in it; the image's own entry point is never used. End it with ``exec server ...``.
    """

    image: str
    port: int
    arg: str

    def manifest(self) -> dict[str, Any]:
        """Return it as YAML has it.

        Raises:
            InputError: the image has neither tag nor digest.
        """
        name, tag = _parted(self.image)
        return {"containerImage": name, "tag": tag, "port": self.port, "arg": self.arg}

    @classmethod
    def from_manifest(cls, value: Mapping[str, Any]) -> Endpoint:
        """Read it as YAML has it."""
        return cls(f"{value.get('containerImage')}:{value.get('tag')}", value.get("port", 0), value.get("arg", ""))


@dataclass(frozen=True)
class Autoscale:
    """How many pods a revision has.

    Args:
        min_scale: At least; 0 lets it go away when nobody asks, and the next request waits a minute or more.
        max_scale: At most; 0: no limit.
        metric: What is measured: requests under way, requests per second, or (with hpa) processor time.
        target: How much of it one pod shall have. It is also the hard limit of requests under way in a pod.
        autoscaler: Knative's own, or Kubernetes' by processor time.
        utilization_percent: How much of the target is aimed at.
        window_s: Over which it is measured.
        panic_window_percent: Of the window, for sudden load.
        panic_threshold_percent: Of the target, from which load is sudden.
    """

    min_scale: int = 1
    max_scale: int = 0
    metric: Literal["concurrency", "rps", "cpu"] = "concurrency"
    target: int | None = None
    autoscaler: Literal["kpa", "hpa"] = "kpa"
    utilization_percent: int | None = None
    window_s: int | None = None
    panic_window_percent: int | None = None
    panic_threshold_percent: int | None = None

    def manifest(self) -> dict[str, Any]:
        """Return it as YAML has it: several numbers are strings there."""
        texts = {
            "targetUtilization": self.utilization_percent,
            "panicWindow": self.panic_window_percent,
            "panicThreshold": self.panic_threshold_percent,
        }
        found: dict[str, Any] = {"autoscaler": _CLASSES.get(self.autoscaler, self.autoscaler), "metric": self.metric}
        found |= {"minScale": self.min_scale, "maxScale": self.max_scale}
        found |= {"target": self.target} if self.target is not None else {}
        found |= {"window": f"{self.window_s}s"} if self.window_s is not None else {}
        return found | {key: str(value) for key, value in texts.items() if value is not None}

    def findings(self) -> Iterator[Finding]:
        """Say what Knative would refuse, or never act on."""
        where = "spec.service"
        ranges = (
            ("targetUtilization", self.utilization_percent, 1, 100),
            ("window", self.window_s, 6, 3600),
            ("panicWindow", self.panic_window_percent, 1, 100),
            ("panicThreshold", self.panic_threshold_percent, 110, 1000),
            ("target", self.target, 1, 1_000_000),
        )
        for name, value, low, high in ranges:
            if value is not None and not low <= value <= high:
                yield error("range", f"{where}.{name}", f"{value} is not between {low} and {high}.")
        if self.min_scale < 0 or self.max_scale < 0 or (self.max_scale and self.max_scale < self.min_scale):
            yield error("scale", where, f"From {self.min_scale} to {self.max_scale} pods is no range.")
        if (self.autoscaler == "hpa") != (self.metric == "cpu"):
            yield error(
                "metric",
                f"{where}.metric",
                f"{self.autoscaler} does not scale by {self.metric}.",
                "kpa takes concurrency and rps; hpa takes cpu.",
            )
        if self.min_scale == 0:
            yield warning(
                "scale-to-zero",
                f"{where}.minScale",
                "The first request after a pause waits for a pod: a minute at least, by the fixed delay of its probe.",
                "Keep 1 for what a release asks probes of.",
            )


@dataclass(frozen=True)
class PaddleService:
    """A service, as it is first deployed; `PaddleServices` changes it afterwards.

    Args:
        name: Of the service.
        default: What answers.
        cpu: Processors of a pod; asked for and limited alike, since a side that is left out becomes 0.2.
        memory: Memory of a pod; likewise 512Mi.
        gpus: GPUs of a pod.
        autoscale: How many pods.
        container: What the container is called, for logs. The resource calls this field ``runtimeVersion``.
        volumes: Knative takes secrets and config maps; others need feature flags there.
        volume_mounts: Where.
        namespace: Where it lives; the connection's own if empty.
        labels: Labels of the object, copied to the Knative Service.
    """

    name: str
    default: Endpoint
    cpu: str = "1"
    memory: str = "2Gi"
    gpus: int = 0
    autoscale: Autoscale = Autoscale()
    container: str = "paddleserving"
    volumes: Sequence[Mapping[str, Any]] = ()
    volume_mounts: Sequence[Mapping[str, Any]] = ()
    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    def findings(self) -> list[Finding]:
        """Say what is wrong or doubtful."""
        return [
            *self._names(),
            *check_endpoint(self.default, "spec.default"),
            *self.autoscale.findings(),
            *self._volumes(),
            *self._mounts(),
        ]

    def manifest(self, kind: Kind) -> dict[str, Any]:
        """Return the object for a cluster.

        Args:
            kind: PaddleService, in the group that this cluster's operator serves.

        Raises:
            InputError: it could not work; says everything that is wrong.
        """
        refuse_errors(f"PaddleService {self.name!r}", self.findings())
        side = {"cpu": self.cpu, "memory": self.memory}
        limits = side | ({"nvidia.com/gpu": str(self.gpus)} if self.gpus else {})
        spec: dict[str, Any] = {
            "runtimeVersion": self.container,
            "resources": {"requests": side, "limits": limits},
            "default": self.default.manifest(),
            "service": self.autoscale.manifest(),
        }
        if self.volumes:
            spec["volumes"] = [dict(each) for each in self.volumes]
            spec["volumeMounts"] = [dict(each) for each in self.volume_mounts]
        metadata: dict[str, Any] = {"name": self.name}
        if self.namespace:
            metadata["namespace"] = self.namespace
        if self.labels:
            metadata["labels"] = dict(self.labels)
        return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": spec}

    def _names(self) -> Iterator[Finding]:
        if not _LABEL.fullmatch(self.name) or len(self.name) > _NAME_MAX:
            yield error(
                "name",
                "metadata.name",
                f"{self.name!r} becomes part of longer names.",
                f"At most {_NAME_MAX} of a-z, 0-9 and '-', a letter first.",
            )
        if not _LABEL.fullmatch(self.container) or len(self.container) > _LABEL_MAX:
            yield error(
                "container",
                "spec.runtimeVersion",
                f"{self.container!r} is the container's name and not a version.",
                "paddleserving is the usual one.",
            )

    def _volumes(self) -> Iterator[Finding]:
        for number, volume in enumerate(self.volumes):
            kinds = [key for key in volume if key != "name"]
            if not any(kind in _READ_ONLY for kind in kinds):
                yield warning(
                    "volume",
                    f"spec.volumes[{number}]",
                    f"Knative takes {', '.join(kinds) or 'it'} only with a feature flag switched on.",
                    "secret, configMap and projected always work.",
                )

    def _mounts(self) -> Iterator[Finding]:
        volumes = {volume.get("name"): volume for volume in self.volumes}
        for number, mount in enumerate(self.volume_mounts):
            where, volume = f"spec.volumeMounts[{number}]", volumes.get(mount.get("name"))
            if volume is None:
                yield error("mount", f"{where}.name", f"There is no volume {mount.get('name')!r}.")
            elif "emptyDir" not in volume and not mount.get("readOnly"):
                yield warning(
                    "mount",
                    f"{where}.readOnly",
                    "Older Knative refuses to mount anything but an emptyDir for writing.",
                    "Write readOnly: true, unless the volume is a claim that the server writes to.",
                )


def check_endpoint(endpoint: Endpoint, where: str) -> Iterator[Finding]:
    """Find what would make a revision exit at once, or never get ready."""
    try:
        _parted(endpoint.image)
    except InputError as refused:
        yield error("image", f"{where}.containerImage", refused.message + ".", refused.hint)
    else:
        if "@sha256:" not in endpoint.image:
            yield warning(
                "image", f"{where}.tag", "A tag may mean something else tomorrow.", "Name the image by digest."
            )
    if not 0 < endpoint.port <= _PORT_MAX:
        yield error("port", f"{where}.port", f"{endpoint.port} is not a port.")
    if not endpoint.arg.strip():
        yield error(
            "arg",
            f"{where}.arg",
            "The container runs bash with nothing else and would exit at once; the image's entry point is not used.",
            "Write what starts the server: exec python3 -m ...",
        )
    elif "exec " not in endpoint.arg:
        yield warning(
            "exec",
            f"{where}.arg",
            "Bash stays in front of the server and swallows the signal to end.",
            "Write exec before the last command.",
        )


def _parted(image: str) -> tuple[str, str]:
    """Part an image at the last colon after the last slash: a registry may have a port."""
    path, slash, last = image.rpartition("/")
    name, colon, tag = last.rpartition(":")
    if not colon or not name or not tag:
        raise InputError(
            f"the image {image!r} has neither tag nor digest", hint="Write repository@sha256:... or repository:tag."
        )
    return f"{path}{slash}{name}", tag
