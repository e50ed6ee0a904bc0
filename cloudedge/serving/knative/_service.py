"""The manifest of a PaddleService, with the checks that its controller omits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from cloudedge.errors import InputError
from cloudedge.findings import Finding, error, refuse_errors, warning
from cloudedge.kube import PADDLE_SERVICES, Kind, metadata
from cloudedge.serving.knative._parts import Autoscale, Endpoint, check_endpoint

__all__ = ["PaddleService"]

_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_NAME_MAX, _LABEL_MAX, _ALL, _HALF = 47, 63, 100, 50
_READ_ONLY = ("secret", "configMap", "projected")
_GPU = "nvidia.com/gpu"
_FIELDS = {
    "default",
    "canary",
    "canaryTrafficPercent",
    "runtimeVersion",
    "resources",
    "service",
    "volumes",
    "volumeMounts",
    "workingDir",
}


@dataclass(frozen=True)
class PaddleService:
    """A service, as it is first deployed; `PaddleServices` changes it afterwards.

    Args:
        name: Name of the service.
        default: The container that answers.
        cpu: Processors of a pod; request and limit alike, since the controller sets an omitted one to 0.2.
        memory: Memory of a pod; likewise 512Mi.
        cpu_limit: Processor limit of a pod; equal to its request if empty.
        memory_limit: Memory limit, likewise.
        gpus: GPUs of a pod.
        autoscale: The number of pods.
        container: The container's name, for logs. The resource calls this field ``runtimeVersion``.
        volumes: Volumes of a pod. Knative takes secrets and config maps; others need feature flags there.
        volume_mounts: Mounts of the volumes.
        namespace: The namespace; the connection's own if empty.
        labels: Labels of the object, copied to the Knative Service.
        annotations: Annotations of the object.
        canary: The container that answers a share of requests from the beginning; it starts once `default` is ready,
            since the two together race.
        canary_percent: That share.
    """

    name: str
    default: Endpoint
    cpu: str = "1"
    memory: str = "2Gi"
    cpu_limit: str = ""
    memory_limit: str = ""
    gpus: int = 0
    autoscale: Autoscale = field(default_factory=Autoscale)
    container: str = "paddleserving"
    volumes: Sequence[Mapping[str, Any]] = ()
    volume_mounts: Sequence[Mapping[str, Any]] = ()
    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    canary: Endpoint | None = None
    canary_percent: int = _HALF

    @classmethod
    def from_yaml(cls, text: str) -> PaddleService:
        """Read a manifest; see `from_manifest`."""
        try:
            return cls.from_manifest(yaml.safe_load(text))
        except yaml.YAMLError as broken:
            raise InputError(f"this is no YAML: {broken}") from broken

    @classmethod
    def from_manifest(cls, value: Mapping[str, Any]) -> PaddleService:
        """Read a PaddleService of either group from a manifest.

        Numbers may stand where the resource wants text. An omitted request or limit equals the other one, not the
        controller's 0.2 processors and 512 MiB.

        Raises:
            InputError: It is no PaddleService, or has fields that the resource does not; names them.
        """
        versions = [kind.api_version for kind in PADDLE_SERVICES]
        if not isinstance(value, Mapping) or (value.get("apiVersion"), value.get("kind")) not in [
            (version, "PaddleService") for version in versions
        ]:
            raise InputError(f"this is no PaddleService of {' or '.join(versions)}")
        metadata, spec = value.get("metadata") or {}, value.get("spec") or {}
        name = str(metadata.get("name", ""))
        wrong = [error("field", f"spec.{key}", "There is no such field.") for key in spec.keys() - _FIELDS]
        if "default" not in spec:
            wrong.append(error("default", "spec.default", "The container that answers is missing."))
        if spec.get("workingDir"):
            wrong.append(error("field", "spec.workingDir", "The controller ignores it.", "Write `cd ...` in arg."))
        refuse_errors(f"PaddleService {name!r}", wrong)
        sides = spec.get("resources") or {}
        requests, limits = sides.get("requests") or {}, sides.get("limits") or {}
        cpu, memory = (str(requests.get(key) or limits.get(key) or "") for key in ("cpu", "memory"))
        return cls(
            name,
            Endpoint.from_manifest(spec["default"]),
            cpu=cpu or cls.cpu,
            memory=memory or cls.memory,
            cpu_limit=str(limits.get("cpu") or ""),
            memory_limit=str(limits.get("memory") or ""),
            gpus=int(limits.get(_GPU) or requests.get(_GPU) or 0),
            autoscale=Autoscale.from_manifest(spec.get("service") or {}),
            container=str(spec.get("runtimeVersion", cls.container)),
            volumes=spec.get("volumes") or (),
            volume_mounts=spec.get("volumeMounts") or (),
            namespace=str(metadata.get("namespace", "")),
            labels=metadata.get("labels") or {},
            annotations=metadata.get("annotations") or {},
            canary=Endpoint.from_manifest(spec["canary"]) if spec.get("canary") else None,
            canary_percent=int(spec.get("canaryTrafficPercent", _HALF)),
        )

    def findings(self) -> list[Finding]:
        """List errors and warnings."""
        return [
            *self._names(),
            *check_endpoint(self.default, "spec.default"),
            *(check_endpoint(self.canary, "spec.canary") if self.canary else ()),
            *self._percent(),
            *self.autoscale.findings(),
            *self._volumes(),
            *self._mounts(),
        ]

    def manifest(self, kind: Kind) -> dict[str, Any]:
        """Return the object to create on a cluster: without its canary.

        Args:
            kind: PaddleService, in the group that this cluster's operator serves.

        Raises:
            InputError: It could not work; lists every error.
        """
        refuse_errors(f"PaddleService {self.name!r}", self.findings())
        side = {"cpu": self.cpu, "memory": self.memory}
        limits = {"cpu": self.cpu_limit or self.cpu, "memory": self.memory_limit or self.memory}
        limits |= {_GPU: str(self.gpus)} if self.gpus else {}
        spec: dict[str, Any] = {
            "runtimeVersion": self.container,
            "resources": {"requests": side, "limits": limits},
            "default": self.default.manifest(),
            "service": self.autoscale.manifest(),
        }
        if self.volumes:
            spec["volumes"] = [dict(each) for each in self.volumes]
            spec["volumeMounts"] = [dict(each) for each in self.volume_mounts]
        named = metadata(self.name, self.namespace, self.labels, self.annotations)
        return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": named, "spec": spec}

    def _names(self) -> Iterator[Finding]:
        if not _LABEL.fullmatch(self.name) or len(self.name) > _NAME_MAX:
            yield error(
                "name",
                "metadata.name",
                f"{self.name!r} becomes part of longer names.",
                f"Use at most {_NAME_MAX} of a-z, 0-9 and '-', a letter first.",
            )
        if not _LABEL.fullmatch(self.container) or len(self.container) > _LABEL_MAX:
            yield error(
                "container",
                "spec.runtimeVersion",
                f"{self.container!r} is the container's name and not a version.",
                "Use paddleserving, the usual name.",
            )

    def _percent(self) -> Iterator[Finding]:
        if not 0 <= self.canary_percent <= _ALL:
            share = f"{self.canary_percent} % is not between 0 and 100."
            yield error("percent", "spec.canaryTrafficPercent", share)

    def _volumes(self) -> Iterator[Finding]:
        for number, volume in enumerate(self.volumes):
            kinds = [key for key in volume if key != "name"]
            if not any(kind in _READ_ONLY for kind in kinds):
                yield warning(
                    "volume",
                    f"spec.volumes[{number}]",
                    f"Knative takes {', '.join(kinds) or 'it'} only with a feature flag switched on.",
                    "Use secret, configMap or projected, which always work.",
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
                    "Write `readOnly: true`, unless the volume is a claim that the server writes to.",
                )
